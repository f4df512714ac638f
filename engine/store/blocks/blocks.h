/* Reads objects of a store in blocks and keeps them in a folder on local disk: a process reuses blocks that it or
 * another one has fetched, and announces its next reads so that they are fetched ahead.
 *
 * Processes and jobs that name the same folder share it. No two of them fetch the same block: the fetching one holds
 * its lock, and the others wait for its file while it makes progress; without, they fetch it themselves. The folder
 * takes at most `bytes` and evicts the least recently used blocks. Blocks of an object's other versions have other
 * names. Each 64 KiB of a file have a checksum: damaged blocks are reported and fetched again. If the folder cannot be
 * written, blocks stay in this process's memory alone, which is bounded, and one warning says so.
 *
 * A reader of one object from its beginning to its end needs no folder and announces no reads: blocks_open_one.
 *
 * A `blocks` has threads that fetch ahead; the caller owns it until blocks_close, with all its objects. One thread at a
 * time may call blocks_read and blocks_expect. blocks_open takes all memory: later only blocks_whole without a folder
 * allocates 64 KiB or more (memory/seal.h).
 */
#pragma once

#include "engine/system/mapping.h"
#include "engine/store/object.h"

typedef struct blocks blocks;
typedef struct blocks_object blocks_object;

enum { BLOCKS_BYTES = 8 << 20, BLOCKS_SMALL = 512 << 10 };

typedef enum blocks_use {
    BLOCKS_KEPT,     /* keeps blocks in the folder */
    BLOCKS_ONCE,     /* keeps no folder and does not warn: some bytes here and there */
    BLOCKS_IN_ORDER, /* neither keeps a folder nor warns; reads objects one by one, from beginning to end: the next two
                      * blocks are fetched ahead, and all blocks together must match the store's checksum */
} blocks_use;

typedef struct blocks_settings {
    blocks_use use;
    const char *folder;   /* NULL: none is known, blocks stay in memory */
    int64_t bytes;        /* capacity of the folder */
    int sharers;          /* processes of this machine that fetch ahead into it, including this one */
    double wait;          /* seconds to wait for another process without progress; 0: 10 */
    object_limits limits; /* `stop`: reading fails soon once it is true */
} blocks_settings;

status blocks_open(blocks **out, const blocks_settings *settings);
void blocks_close(blocks *b); /* NULL is accepted */
AUTO_CLOSES(blocks, blocks_close)

/* Asks the store for the object's version and length; fails if it is missing. `block`: bytes of its blocks, a multiple
 * of 64 KiB, at most BLOCKS_BYTES; in memory they may be smaller. */
status blocks_find(blocks_object **out, blocks *b, const char *url, int64_t block);
int64_t blocks_bytes(const blocks_object *o);
uint32_t blocks_version(const blocks_object *o); /* checksum of its ETag */

/* Reads bytes [offset, offset + bytes) of the object; fails where the store does, or if it has another version now. */
status blocks_read(blocks_object *o, void *to, int64_t offset, int64_t bytes);
/* Announces a read of these bytes soon, so that their blocks are fetched. False: the limit of blocks under way is
 * reached; ask again after some have been read. */
bool blocks_expect(blocks_object *o, int64_t offset, int64_t bytes);
void blocks_expect_nothing(blocks *b); /* drops blocks not yet begun */

/* Opens an object as a file for reading in order, with a `blocks` of its own; `stop` as in the limits. Fails if there
 * is no such object. */
status blocks_open_one(blocks_object **out, const char *url, const atomic_bool *stop);
void blocks_close_one(blocks_object *o); /* NULL is accepted */
AUTO_CLOSES(blocks_object, blocks_close_one)
/* Returns the size of such an object without opening it. */
status blocks_look(int64_t *bytes, const char *url);

/* A whole object for reading: a mapped file of the folder, or memory. Checked against the store's checksum, if any. */
typedef struct blocks_file {
    const void *data;
    int64_t bytes;
    mapping map;
    void *memory;
} blocks_file;

status blocks_whole(blocks_file *out, blocks *b, const char *url);
void blocks_file_close(blocks_file *f); /* one that is all zero is accepted */

typedef struct blocks_counts {
    int64_t fetched; /* bytes fetched by this process */
    int64_t misses;  /* blocks that blocks_read had to wait for */
    double stall;    /* seconds that blocks_read has waited */
    int64_t damaged; /* damaged chunks of files */
} blocks_counts;

blocks_counts blocks_counted(blocks *b);
