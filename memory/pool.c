#include "memory/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"

struct pool_block {
    struct pool_block *previous;
    size_t used, size;
    _Alignas(16) unsigned char bytes[];
};

enum { FIRST_BLOCK = 16 << 10, LARGEST_BLOCK = 4 << 20 };

static void grow(pool *p, size_t bytes)
{
    size_t size = p->last ? p->last->size * 2 : FIRST_BLOCK;
    if (size > LARGEST_BLOCK)
        size = LARGEST_BLOCK;
    if (size < bytes)
        size = bytes;
    struct pool_block *block = must_calloc(1, sizeof *block + size);
    block->previous = p->last;
    block->size = size;
    p->last = block;
    p->total += sizeof *block + size;
}

void *pool_alloc(pool *p, size_t bytes)
{
    bytes = (bytes + 15) & ~(size_t)15;
    if (!p->last || p->last->used + bytes > p->last->size)
        grow(p, bytes);
    void *at = p->last->bytes + p->last->used;
    p->last->used += bytes;
    return at;
}

char *pool_format(pool *p, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    MUST(length >= 0 && length < (int)sizeof text, "a label of %d characters", length);
    return memcpy(pool_alloc(p, (size_t)length + 1), text, (size_t)length + 1);
}

void pool_free(pool *p)
{
    while (p->last) {
        struct pool_block *previous = p->last->previous;
        free(p->last);
        p->last = previous;
    }
    p->total = 0;
}
