/* The folder of blocks.h has a file for each block, FOLDER/OBJECT-BLOCK, where OBJECT is 32 hexadecimal digits for one
 * version of one object, and a file `lock`.
 *
 * A block's file is its bytes, and then the crc32c of each 64 KiB of them. It is written as OBJECT-BLOCK.tmp and
 * renamed when it is whole, without fsync: after a power failure its checksums are wrong, and it is fetched again. A
 * block's writer holds the lock of its number, a byte of `lock` (fcntl's locks of open files, which end with their
 * process, however it ends). The file begins with the bytes that the folder takes: to add a block, a process locks byte
 * 0, adds the block's bytes first, and evicts the least recently used blocks if they exceed the capacity. A killed
 * process leaves the number too high, or a .tmp file with an unheld lock; eviction corrects both. The blocks_disk is
 * the caller's until blocks_disk_close. Only opening allocates 64 KiB or more.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "memory/status.h"

enum { BLOCKS_CHUNK = 64 << 10, BLOCKS_HEX = 33 };

typedef struct blocks_disk blocks_disk;

typedef struct blocks_name {
    char object[BLOCKS_HEX];
    int64_t block; /* -1: the whole object */
} blocks_name;

/* Makes the folder; fails if it cannot be written. `patience`: seconds to wait for another process that writes a block
 * and makes no progress; 0: 10. */
status blocks_disk_open(blocks_disk **out, const char *folder, int64_t bytes, double patience);
void blocks_disk_close(blocks_disk *d); /* NULL is accepted */
const char *blocks_disk_folder(const blocks_disk *d);

/* Returns a descriptor for the locks of one thread, which the caller closes; -1 with errno. */
int blocks_disk_descriptor(const blocks_disk *d);

typedef enum blocks_turn {
    BLOCKS_LOCKED,   /* this thread has the block's lock */
    BLOCKS_COME,     /* the block's file is there */
    BLOCKS_STUCK,    /* another process holds the lock, and its file has not grown for the patience; or stop */
    BLOCKS_UNLOCKED, /* the lock cannot be taken; errno says why */
} blocks_turn;
/* Waits for a block's lock, or for the file of the process that holds it. After a wait in vain there is none for ten
 * minutes, so that a frozen process costs one and not one a block.
 * blocks_disk_unlock releases the lock, and so does closing the descriptor. */
blocks_turn blocks_disk_wait(blocks_disk *d, int locks, const blocks_name *name, int64_t bytes,
                             const atomic_bool *stop);
void blocks_disk_unlock(int descriptor, const blocks_name *name);

/* True if a file of `bytes` bytes is there. Marks it as used now. */
bool blocks_disk_has(const blocks_disk *d, const blocks_name *name, int64_t bytes);

typedef enum blocks_sight { BLOCKS_THERE, BLOCKS_MISSING, BLOCKS_DAMAGED } blocks_sight;
/* Reads chunk number `chunk` of a block of `bytes` bytes, verified, into `to` [BLOCKS_CHUNK]. */
blocks_sight blocks_disk_read(const blocks_disk *d, void *to, const blocks_name *name, int64_t bytes, int64_t chunk);

/* Makes room for a file of `bytes` bytes and begins it. Returns a descriptor; pieces written to it begin at multiples
 * of BLOCKS_CHUNK. `locks`: this thread's descriptor, with the lock of the name. Failures leave errno. */
int blocks_disk_begin(blocks_disk *d, int locks, const blocks_name *name, int64_t bytes);
bool blocks_disk_put(int file, const void *data, int64_t offset, int64_t bytes, int64_t total);
/* Closes it; `good`: renames it to its final name, else removes it. */
bool blocks_disk_end(const blocks_disk *d, int file, const blocks_name *name, bool good);
/* Removes a damaged block so that it is fetched again; false: it cannot be removed. */
bool blocks_disk_remove(const blocks_disk *d, const blocks_name *name);
/* Returns "FOLDER/OBJECT-BLOCK", which the caller frees. */
char *blocks_disk_path(const blocks_disk *d, const blocks_name *name);
