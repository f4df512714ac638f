/* A file's bytes, mapped for reading. The mapping is the caller's until mapping_close; its bytes need no alignment. */
#pragma once

#include <stdint.h>

#include "memory/status.h"

typedef struct mapping {
    const uint8_t *data; /* NULL if the file is empty */
    int64_t bytes;
} mapping;

/* Fails with a message that names the file; a folder or a device is no file. */
status mapping_open(mapping *out, const char *path);
/* A mapping that was never opened, all zero, is accepted. */
void mapping_close(mapping *m);

/* These bytes (or those of them that the file has) are read next: let the disk begin. */
void mapping_expect(const mapping *m, int64_t offset, int64_t bytes);

/* Let the pages of these bytes go: they are read again from the file when touched. What a long file leaves resident
 * would otherwise count as this process's memory. */
void mapping_forget(const mapping *m, int64_t offset, int64_t bytes);
