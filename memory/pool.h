/* A pool of small records that live and die together: bump allocation, stable addresses, freed at once. */
#pragma once

#include <stdarg.h>
#include <stddef.h>

typedef struct pool {
    struct pool_block *last;
    size_t total; /* bytes taken from the system */
} pool;

void *pool_alloc(pool *p, size_t bytes); /* zeroed, 16-byte aligned; never NULL */
char *pool_format(pool *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
void pool_free(pool *p); /* frees everything; the pool is empty and usable again */
