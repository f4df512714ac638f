/* What the files of blocks.h share. */
#pragma once

#include "engine/store/blocks/blocks.h"
#include "engine/store/blocks/blocks_disk.h"
#include "engine/system/worker.h"

/* BLOCKS_HANDS: threads that fetch, and the caller's. BLOCKS_SLOTS: blocks in memory, which are used while the folder
 * fails or where there is none; where it works, a few. IN_ORDER: as many for who reads in order, whose next
 * BLOCKS_ORDER_AHEAD are fetched ahead. */
enum {
    BLOCKS_HANDS = 5,
    BLOCKS_READER = BLOCKS_HANDS - 1,
    BLOCKS_SLOTS = 16,
    BLOCKS_SMALL_SLOTS = 128,
    BLOCKS_ORDER_SLOTS = 4,
    BLOCKS_ORDER_AHEAD = 2,
    BLOCKS_BUCKETS = 16,
    BLOCKS_MOST_AHEAD = 1024,
    BLOCKS_MOST_DAMAGED = 16
};

struct blocks_object {
    blocks *owner;
    char *key, name[BLOCKS_HEX], etag[OBJECT_ETAG];
    int bucket;
    int64_t bytes, block;
    bool has_crc32c, came_damaged;
    uint32_t crc32c;
    struct blocks_object *next;
    /* where all blocks are held to the store's checksum, under the lock; else NULL */
    int64_t unknown; /* blocks whose checksums are not known */
    bool *known;     /* [blocks] */
    uint32_t *sum;   /* [blocks] */
};

typedef enum blocks_slot_state { SLOT_EMPTY, SLOT_FILLING, SLOT_VALID } blocks_slot_state;

/* A block in memory. */
typedef struct blocks_slot {
    blocks_slot_state state;
    blocks_object *object;
    int64_t block;
    uint64_t used;
    char *bytes;
} blocks_slot;

/* A block that will be read: in the order in which they are. */
typedef struct blocks_expected {
    blocks_object *object;
    int64_t block;
    bool begun;
} blocks_expected;

/* What a thread fetches with. */
typedef struct blocks_hand {
    blocks *owner;
    int locks; /* a descriptor of the folder's locks; -1: none */
    object_store *store[BLOCKS_BUCKETS];
} blocks_hand;

struct blocks {
    blocks_settings settings;
    blocks_disk *disk; /* NULL: there is none */
    char *bucket[BLOCKS_BUCKETS];
    int buckets;
    blocks_object *objects;
    blocks_hand hand[BLOCKS_HANDS];

    worker worker; /* its lock is of all below */
    blocks_slot slot[BLOCKS_SMALL_SLOTS];
    int slots, ahead, most_ahead; /* most_ahead: in memory */
    int64_t slot_bytes;
    uint64_t uses;
    blocks_expected expected[BLOCKS_MOST_AHEAD];
    blocks_counts counts;
    double write_after; /* the folder is not written to before */
    bool told, told_damage, distrusted;

    /* The reader's: a chunk of a file. */
    char *chunk;
    blocks_object *chunk_object;
    int64_t chunk_block, chunk_number;
};

blocks_name blocks_name_of(const blocks_object *o, int64_t block);

/* The folder could not be written to, for this error: not tried again for a minute. */
void blocks_rest_disk(blocks *b, int error);
/* false: there is no folder, or it has damaged many blocks. */
bool blocks_may_read(blocks *b);
/* A file whose checksums are wrong goes. */
void blocks_drop_damaged(blocks *b, const blocks_object *o, int64_t block);

/* A slot to be filled with the block; NULL: it is in memory already, or the threads are to stop. */
blocks_slot *blocks_claim_slot(blocks *b, blocks_object *o, int64_t block);
void blocks_release_slot(blocks *b, blocks_slot *s, bool valid, int64_t fetched);

/* Waits until no other process or thread fetches the block: *there: its file has come. true: its lock is held. */
bool blocks_lock(bool *there, blocks_hand *h, const blocks_name *name, int64_t bytes);
status blocks_fetch(blocks_hand *h, const blocks_object *o, void *to, int64_t offset, int64_t bytes);
