/* The folder of blocks.h: a file for each block, FOLDER/OBJECT-BLOCK, where OBJECT is 32 hexadecimal digits that stand
 * for one version of one object, and a file `lock`.
 *
 * A block's file is its bytes, and then the crc32c of each 64 KiB of them. It is written as OBJECT-BLOCK.tmp and
 * renamed when it is whole, without fsync: what a power failure leaves of it has wrong checksums, and is fetched
 * again. Who writes a block holds the lock of its number, a byte of `lock` (fcntl's locks of open files, which end
 * with their process, however it ends). The file begins with the bytes that the folder takes: who adds a block holds
 * the byte 0, adds them first, and removes blocks that were not used for longest where they would be too many. A
 * process that was killed leaves the number too high, or a file .tmp whose lock nobody holds; both are set right when
 * blocks are removed. The blocks_disk is the caller's until blocks_disk_close. None of this allocates 64 KiB but
 * opening.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "memory/status.h"

enum { BLOCKS_CHUNK = 64 << 10, BLOCKS_HEX = 33 };

typedef struct blocks_disk blocks_disk;

typedef struct blocks_name {
    char object[BLOCKS_HEX];
    int64_t block; /* -1: the object whole */
} blocks_name;

/* Makes the folder; fails where nothing can be written to it. */
status blocks_disk_open(blocks_disk **out, const char *folder, int64_t bytes);
void blocks_disk_close(blocks_disk *d); /* NULL is accepted */
const char *blocks_disk_folder(const blocks_disk *d);

/* A descriptor for the locks of one thread, the caller's to close; -1 with errno. */
int blocks_disk_descriptor(const blocks_disk *d);
/* false: somebody else holds it. It is given back by blocks_disk_unlock, and when the descriptor is closed. */
bool blocks_disk_lock(int descriptor, const blocks_name *name);
void blocks_disk_unlock(int descriptor, const blocks_name *name);

/* Is a file of so many bytes there? It counts as used now. */
bool blocks_disk_has(const blocks_disk *d, const blocks_name *name, int64_t bytes);

typedef enum blocks_sight { BLOCKS_THERE, BLOCKS_MISSING, BLOCKS_DAMAGED } blocks_sight;
/* The bytes of chunk number `chunk` of a block of `bytes` bytes, verified, into `to` [BLOCKS_CHUNK]. */
blocks_sight blocks_disk_read(const blocks_disk *d, void *to, const blocks_name *name, int64_t bytes, int64_t chunk);

/* Room for a file of so many bytes is made, and the file begun: a descriptor, to which pieces are written that begin
 * at multiples of BLOCKS_CHUNK. `locks`: this thread's descriptor, with the lock of the name. Failures leave errno. */
int blocks_disk_begin(blocks_disk *d, int locks, const blocks_name *name, int64_t bytes);
bool blocks_disk_put(int file, const void *data, int64_t offset, int64_t bytes, int64_t total);
/* Closes it; `good`: it takes its name, else it is removed. */
bool blocks_disk_end(const blocks_disk *d, int file, const blocks_name *name, bool good);
/* A damaged block, so that it is fetched again; false: it cannot be removed. */
bool blocks_disk_remove(const blocks_disk *d, const blocks_name *name);
/* "FOLDER/OBJECT-BLOCK", the caller's */
char *blocks_disk_path(const blocks_disk *d, const blocks_name *name);
