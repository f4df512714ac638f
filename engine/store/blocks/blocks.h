/* Objects of a store read in blocks, which a folder on local disk keeps: a process reads what it or another one has
 * fetched before, and says what it will read so that it is there by then.
 *
 * Processes and jobs that name the same folder share it. No two of them fetch the same block: who fetches it holds its
 * lock, and the others wait for its file. The folder takes at most `bytes`; what was not used for longest goes first.
 * Blocks of an object's other versions have other names. Each 64 KiB of a file have a checksum: what is damaged is
 * fetched again, and said. Where the folder cannot be written to, blocks are kept in this process's memory alone,
 * which is bounded, and one warning says so.
 *
 * A reader of one object from its beginning to its end needs no folder and expects nothing itself: blocks_open_one.
 *
 * A `blocks` has threads that fetch ahead, and is its caller's until blocks_close, with all its objects. blocks_read
 * and blocks_expect are for one thread at a time. Memory is taken by blocks_open: nothing here allocates 64 KiB later
 * (memory/seal.h), but blocks_whole where there is no folder.
 */
#pragma once

#include "engine/system/mapping.h"
#include "engine/store/object.h"

typedef struct blocks blocks;
typedef struct blocks_object blocks_object;

enum { BLOCKS_BYTES = 8 << 20, BLOCKS_SMALL = 512 << 10 };

typedef enum blocks_use {
    BLOCKS_KEPT,     /* in the folder */
    BLOCKS_ONCE,     /* without a folder, and no warning says so: some bytes here and there */
    BLOCKS_IN_ORDER, /* the same for one object after another, each from its beginning to its end: the next two blocks
                      * are fetched ahead, and all blocks together must have the checksum that the store says */
} blocks_use;

typedef struct blocks_settings {
    blocks_use use;
    const char *folder;   /* NULL: none is known, blocks are kept in memory */
    int64_t bytes;        /* that the folder may take */
    int sharers;          /* processes of this machine that fetch ahead into it, this one among them */
    object_limits limits; /* `stop`: reading fails soon when it becomes true */
} blocks_settings;

status blocks_open(blocks **out, const blocks_settings *settings);
void blocks_close(blocks *b); /* NULL is accepted */
AUTO_CLOSES(blocks, blocks_close)

/* Asks the store for the object's version and length; one that it does not have is a failure. `block`: bytes of its
 * blocks, a multiple of 64 KiB, at most BLOCKS_BYTES; in memory they may be smaller. */
status blocks_find(blocks_object **out, blocks *b, const char *url, int64_t block);
int64_t blocks_bytes(const blocks_object *o);
uint32_t blocks_version(const blocks_object *o); /* a checksum of its ETag */

/* Bytes [offset, offset + bytes) of the object; fails where the store does, or where it has another version by now. */
status blocks_read(blocks_object *o, void *to, int64_t offset, int64_t bytes);
/* These bytes are read soon: their blocks are fetched. false: as many are on their way as may be; ask again after some
 * have been read. */
bool blocks_expect(blocks_object *o, int64_t offset, int64_t bytes);
void blocks_expect_nothing(blocks *b); /* what has not been begun is not fetched */

/* An object as a file that is read in order, by a `blocks` of its own; `stop` as in the limits. Fails if there is no
 * such object. */
status blocks_open_one(blocks_object **out, const char *url, const atomic_bool *stop);
void blocks_close_one(blocks_object *o); /* NULL is accepted */
AUTO_CLOSES(blocks_object, blocks_close_one)
/* The size of such an object, without opening it. */
status blocks_look(int64_t *bytes, const char *url);

/* An object whole, for reading: a file of the folder, mapped, or memory. Held to the store's checksum, if any. */
typedef struct blocks_file {
    const void *data;
    int64_t bytes;
    mapping map;
    void *memory;
} blocks_file;

status blocks_whole(blocks_file *out, blocks *b, const char *url);
void blocks_file_close(blocks_file *f); /* one that is all zero is accepted */

typedef struct blocks_counts {
    int64_t fetched; /* bytes, by this process */
    int64_t misses;  /* blocks that blocks_read had to wait for */
    double stall;    /* seconds that it has waited */
    int64_t damaged; /* chunks of files */
} blocks_counts;

blocks_counts blocks_counted(blocks *b);
