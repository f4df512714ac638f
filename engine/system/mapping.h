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
/* Closes a mapping; accepts one that was never opened, all zero. */
void mapping_close(mapping *m);

/* Starts reading these bytes (as far as the file has them) from the disk. */
void mapping_expect(const mapping *m, int64_t offset, int64_t bytes);

/* Releases the pages of these bytes; a later access reads them again from the file. Resident pages of a long file would
 * otherwise count as this process's memory. */
void mapping_forget(const mapping *m, int64_t offset, int64_t bytes);
