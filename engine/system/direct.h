/* Large files written from planned memory, and read back from the storage itself.
 *
 * A `direct` collects bytes in a buffer of its caller's and writes them past the page cache (O_DIRECT) if the file
 * system can: training keeps its cache and its cores, and reading back asks the disk and not this machine's memory. It
 * does not allocate. The caller owns the struct, buffer and path until direct_close. Failures name the path; `error` is
 * their errno.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "memory/dtype.h"
#include "memory/status.h"

enum { DIRECT_ALIGNMENT = 4096 }; /* alignment of the buffer's address and length */

typedef struct direct {
    const char *path;
    char *buffer;
    int64_t capacity, used; /* bytes of the buffer */
    int64_t written;        /* bytes handed to the kernel */
    uint32_t crc32c;        /* checksum of all bytes so far */
    int descriptor, error;
    bool past_cache;
} direct;

/* Checksum of written values, and whether all are finite. They begin at a multiple of their size in the file. */
typedef struct direct_values {
    dtype type;
    uint32_t crc32c; /* 0 at first */
    bool finite;     /* true at first */
} direct_values;

/* Creates an empty file in place of an existing one, and does not follow a link. */
status direct_open(direct *d, const char *path, char *buffer, int64_t capacity);
/* Continues `of`, unless NULL, over these bytes. */
status direct_write(direct *d, const void *data, int64_t bytes, direct_values *of);
/* Writes a text of less than DIRECT_PRINT bytes. */
enum { DIRECT_PRINT = 512 };
__attribute__((format(printf, 2, 3))) status direct_print(direct *d, const char *format, ...);
/* Returns where up to *room bytes (never 0) may be put without a copy, then counted by direct_added. */
char *direct_room(direct *d, int64_t *room);
status direct_added(direct *d, int64_t bytes, direct_values *of);
int64_t direct_position(const direct *d);
/* Closes the file; `written` is the status of writing it. If that is STATUS_OK, everything is on the disk (fsync) when
 * this returns; otherwise the file is left unfinished where it is, and `written` and its message are returned. */
status direct_close(direct *d, status written);

/* Reads a file back, from the storage if the file system allows: its length and checksum must be these. `error` as
 * above, EIO if they are not. */
status direct_verify(int *error, const char *path, int64_t bytes, uint32_t crc32c, char *buffer, int64_t capacity);
