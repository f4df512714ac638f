#include "engine/store/blocks/blocks.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/system/crc32c.h"
#include "engine/system/worker.h"
#include "engine/store/blocks/blocks_disk.h"
#include "engine/store/s3/signature.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"

/* BLOCKS_WORKERS: number of fetching threads, and the caller's. BLOCKS_SLOTS: blocks in memory, used while the folder
 * fails or without one; a working folder needs few. IN_ORDER: slots for a sequential reader, which fetches the next
 * BLOCKS_ORDER_AHEAD ahead. */
enum {
    BLOCKS_WORKERS = 5,
    BLOCKS_READER = BLOCKS_WORKERS - 1,
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
    /* set where all blocks must match the store's checksum, under the lock; else NULL */
    int64_t unknown; /* blocks with unknown checksums */
    bool *known;     /* [blocks] */
    uint32_t *sum;   /* [blocks] */
};

typedef enum slot_state { SLOT_EMPTY, SLOT_FILLING, SLOT_VALID } slot_state;

/* A block in memory. */
typedef struct slot {
    slot_state state;
    blocks_object *object;
    int64_t block;
    uint64_t used;
    char *bytes;
} slot;

/* A block that will be read, listed in reading order. */
typedef struct expected_block {
    blocks_object *object;
    int64_t block;
    bool begun;
} expected_block;

/* A fetching thread's state. */
typedef struct fetcher {
    blocks *owner;
    int locks; /* descriptor of the folder's locks; -1: none */
    object_store *store[BLOCKS_BUCKETS];
} fetcher;

struct blocks {
    blocks_settings settings;
    blocks_disk *disk; /* NULL: there is none */
    char *bucket[BLOCKS_BUCKETS];
    int buckets;
    blocks_object *objects;
    fetcher fetcher[BLOCKS_WORKERS];

    worker worker; /* guards all members below */
    slot slot[BLOCKS_SMALL_SLOTS];
    int slots, ahead, most_ahead; /* most_ahead: limit in memory */
    int64_t slot_bytes;
    uint64_t uses;
    expected_block expected[BLOCKS_MOST_AHEAD];
    blocks_counts counts;
    double write_after; /* earliest time of the next write to the folder */
    bool told, told_damage, distrusted;

    /* One chunk of a file, used by the reader. */
    char *chunk;
    blocks_object *chunk_object;
    int64_t chunk_block, chunk_number;
};

static const double WRITE_AGAIN = 60; /* seconds */

static int64_t block_bytes(const blocks_object *o, int64_t block)
{
    int64_t left = o->bytes - block * o->block;
    return left < o->block ? left : o->block;
}

/* True if the threads are to end, or the caller has set `stop`. */
static bool is_stopped(const blocks *b)
{
    const atomic_bool *told = b->settings.limits.stop;
    return atomic_load(&b->worker.stop) || (told && atomic_load(told));
}

static blocks_name name_of(const blocks_object *o, int64_t block)
{
    blocks_name name = {.block = block};
    memcpy(name.object, o->name, sizeof name.object);
    return name;
}

/* ---- a folder that fails ----------------------------------------------------------------------------------------- */

static void log_fetch(blocks *b, const char *why)
{
    worker_lock(&b->worker);
    bool first = !b->told;
    b->told = true;
    worker_unlock(&b->worker);
    if (first)
        log_warn("data.cache: %s: blocks are read from the store into memory meanwhile, and are not kept", why);
}

/* Notes that a write to the folder failed, and pauses writing for a minute. */
static void rest_disk(blocks *b, int error)
{
    if (atomic_load(&b->worker.stop))
        return;
    AUTO_FREE char *why = must_format("%s cannot be written to: %s", blocks_disk_folder(b->disk),
                                      error == EFBIG ? "data.cache_size is less than a block" : strerror(error));
    worker_lock(&b->worker);
    b->write_after = clock_seconds() + WRITE_AGAIN;
    worker_unlock(&b->worker);
    log_fetch(b, why);
}

/* True unless the folder is known to fail. The lock is held. */
static bool folder_works(const blocks *b)
{
    return b->disk && !b->distrusted && clock_seconds() >= b->write_after;
}

static bool may_write(blocks *b)
{
    WORKER_HELD(&b->worker);
    return folder_works(b);
}

static bool may_read(blocks *b)
{
    WORKER_HELD(&b->worker);
    return b->disk && !b->distrusted;
}

/* Removes the file of a chunk with a wrong checksum, so that the block is fetched again. A disk that fails so again and
 * again is read no more. */
static void drop_damaged(blocks *b, const blocks_object *o, int64_t block)
{
    blocks_name name = name_of(o, block);
    bool gone = blocks_disk_remove(b->disk, &name);
    worker_lock(&b->worker);
    bool first = !b->told_damage;
    b->told_damage = true;
    b->distrusted = !gone || ++b->counts.damaged >= BLOCKS_MOST_DAMAGED;
    bool distrusted = b->distrusted;
    worker_unlock(&b->worker);
    AUTO_FREE char *path = blocks_disk_path(b->disk, &name);
    if (first)
        log_warn("%s is damaged: the block is fetched again", path);
    if (distrusted)
        log_fetch(b, "the disk has damaged many blocks");
}

/* ---- slots ------------------------------------------------------------------------------------------------------- */

static slot *find_slot(blocks *b, const blocks_object *o, int64_t block)
{
    for (int i = 0; i < b->slots; i++)
        if (b->slot[i].state != SLOT_EMPTY && b->slot[i].object == o && b->slot[i].block == block)
            return &b->slot[i];
    return NULL;
}

/* Returns the empty or least recently used slot; NULL: all are being filled. A working folder touches few slots. */
static slot *take_slot(blocks *b)
{
    int count = folder_works(b) ? BLOCKS_WORKERS + 1 : b->slots;
    slot *best = NULL;
    for (int i = 0; i < count; i++) {
        slot *s = &b->slot[i];
        if (s->state == SLOT_EMPTY)
            return s;
        if (s->state == SLOT_VALID && (!best || s->used < best->used))
            best = s;
    }
    return best;
}

/* Returns a slot to fill with the block; NULL: it is in memory already, or stop. */
static slot *claim_slot(blocks *b, blocks_object *o, int64_t block)
{
    slot *s = NULL;
    WORKER_HELD(&b->worker);
    while (!s && !is_stopped(b)) {
        const slot *there = find_slot(b, o, block);
        if (there && there->state == SLOT_VALID)
            break;
        s = there ? NULL : take_slot(b);
        if (!s)
            (void)worker_wait_until(&b->worker, clock_seconds() + 0.1);
    }
    if (s) {
        s->state = SLOT_FILLING;
        s->object = o;
        s->block = block;
    }
    return s;
}

static void release_slot(blocks *b, slot *s, bool valid, int64_t fetched)
{
    worker_lock(&b->worker);
    s->state = valid ? SLOT_VALID : SLOT_EMPTY;
    s->used = ++b->uses;
    b->counts.fetched += fetched;
    worker_tell(&b->worker);
    worker_unlock(&b->worker);
}

static bool copy_from_slot(blocks *b, void *to, const blocks_object *o, int64_t block, int64_t within, int64_t bytes)
{
    WORKER_HELD(&b->worker);
    slot *s = find_slot(b, o, block);
    if (!s || s->state != SLOT_VALID)
        return false;
    s->used = ++b->uses;
    memcpy(to, s->bytes + within, (size_t)bytes);
    return true;
}

/* ---- fetching ---------------------------------------------------------------------------------------------------- */

static status store_of(object_store **out, fetcher *h, int bucket)
{
    if (!h->store[bucket]) {
        object_limits limits = h->owner->settings.limits;
        if (h != &h->owner->fetcher[BLOCKS_READER] || !limits.stop)
            limits.stop = &h->owner->worker.stop;
        TRY(object_open(&h->store[bucket], h->owner->bucket[bucket], &limits));
    }
    *out = h->store[bucket];
    return STATUS_OK;
}

static status fetch_range(fetcher *h, const blocks_object *o, void *to, int64_t offset, int64_t bytes)
{
    object_store *store = NULL;
    TRY(store_of(&store, h, o->bucket));
    return object_read(to, store, o->key, offset, bytes, o->etag);
}

/* Compares checksums once each block has been fetched: stores state one for an object, not for a range of it. */
static status check_sum(blocks_object *o, int64_t block, const void *data)
{
    uint32_t sum = o->sum ? crc32c(0, data, block_bytes(o, block)) : 0, all = 0;
    WORKER_HELD(&o->owner->worker);
    if (o->sum && !o->known[block]) {
        o->known[block] = true;
        o->sum[block] = sum;
        if (--o->unknown == 0) {
            for (int64_t i = 0; i * o->block < o->bytes; i++)
                all = crc32c_combine(all, o->sum[i], block_bytes(o, i));
            o->came_damaged = all != o->crc32c;
        }
    }
    return !o->came_damaged
               ? STATUS_OK
               : status_fail(STATUS_FAILED,
                             "s3://%s/%s: the bytes that came do not have the checksum that the store says: try again",
                             o->owner->bucket[o->bucket], o->key);
}

/* Waits until no other process or thread fetches the block. True: this thread holds its lock; *there: its file has
 * come. */
static bool lock_block(bool *there, fetcher *h, const blocks_name *name, int64_t bytes)
{
    blocks *b = h->owner;
    *there = false;
    if (!may_write(b) || h->locks < 0)
        return false;
    blocks_turn turn = blocks_disk_wait(b->disk, h->locks, name, bytes, &b->worker.stop);
    if (turn == BLOCKS_STUCK && !atomic_load(&b->worker.stop))
        log_fetch(b, "another process that fetches a block does not move (is it stopped?)");
    if (turn == BLOCKS_UNLOCKED)
        rest_disk(b, errno);
    *there = turn == BLOCKS_COME;
    return turn == BLOCKS_LOCKED;
}

static void keep_block(fetcher *h, const blocks_name *name, const void *data, int64_t bytes)
{
    blocks *b = h->owner;
    int file = blocks_disk_begin(b->disk, h->locks, name, bytes);
    bool good = file >= 0 && blocks_disk_put(file, data, 0, bytes, bytes);
    if (file >= 0)
        good = blocks_disk_end(b->disk, file, name, good);
    if (!good)
        rest_disk(b, errno);
}

/* Fetches the block into memory and the folder, unless it is there. */
static status fetch_block(fetcher *h, blocks_object *o, int64_t block)
{
    blocks *b = h->owner;
    const blocks_name name = name_of(o, block);
    int64_t bytes = block_bytes(o, block), fetched = 0;
    slot *s = claim_slot(b, o, block);
    if (!s)
        return STATUS_OK;
    bool there = false, locked = lock_block(&there, h, &name, bytes);
    status got = there ? STATUS_OK : fetch_range(h, o, s->bytes, block * o->block, bytes);
    if (!there && got == STATUS_OK)
        got = check_sum(o, block, s->bytes);
    if (!there && got == STATUS_OK) {
        fetched = bytes;
        if (locked)
            keep_block(h, &name, s->bytes, bytes);
    }
    if (locked)
        blocks_disk_unlock(h->locks, &name);
    release_slot(b, s, fetched > 0, fetched);
    return got;
}

/* ---- fetching ahead ---------------------------------------------------------------------------------------------- */

static int find_expected(const blocks *b, const blocks_object *o, int64_t block)
{
    for (int i = b->ahead - 1; i >= 0; i--)
        if (b->expected[i].object == o && b->expected[i].block == block)
            return i;
    return -1;
}

bool blocks_expect(blocks_object *o, int64_t offset, int64_t bytes)
{
    blocks *b = o->owner;
    WORKER_HELD(&b->worker);
    /* no more than the folder, or memory, has room for until they are read */
    int64_t most = folder_works(b) ? b->settings.bytes / 4 / b->settings.sharers / o->block : b->most_ahead;
    most = most < 1 ? 1 : most > BLOCKS_MOST_AHEAD ? BLOCKS_MOST_AHEAD : most;
    for (int64_t n = offset / o->block; n * o->block < offset + bytes; n++) {
        if (find_expected(b, o, n) >= 0 || (b->settings.use == BLOCKS_IN_ORDER && find_slot(b, o, n)))
            continue;
        if (b->ahead >= most)
            return false;
        b->expected[b->ahead++] = (expected_block){.object = o, .block = n};
        worker_tell(&b->worker);
    }
    return true;
}

void blocks_expect_nothing(blocks *b)
{
    worker_lock(&b->worker);
    b->ahead = 0;
    worker_unlock(&b->worker);
}

/* Waits for the next block that no thread has begun; false: stop. */
static bool wait_for_expected(blocks *b, blocks_object **o, int64_t *block)
{
    WORKER_HELD(&b->worker);
    while (!atomic_load(&b->worker.stop)) {
        for (int i = 0; i < b->ahead; i++)
            if (!b->expected[i].begun) {
                b->expected[i].begun = true;
                *o = b->expected[i].object;
                *block = b->expected[i].block;
                return true;
            }
        (void)worker_wait(&b->worker);
    }
    return false;
}

/* Fetches expected blocks. After a failure the block's reader tries again and reports. */
static void fetch_ahead(void *argument)
{
    fetcher *h = argument;
    blocks *b = h->owner;
    blocks_object *o;
    int64_t block;
    while (wait_for_expected(b, &o, &block)) {
        const blocks_name name = name_of(o, block);
        if (!may_read(b) || !blocks_disk_has(b->disk, &name, block_bytes(o, block)))
            (void)fetch_block(h, o, block);
    }
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Copies bytes of one chunk from the folder. */
static bool copy_from_disk(blocks *b, void *to, blocks_object *o, int64_t block, int64_t within, int64_t bytes)
{
    const blocks_name name = name_of(o, block);
    int64_t number = within / BLOCKS_CHUNK;
    if (!may_read(b))
        return false;
    b->chunk_object = NULL;
    blocks_sight seen = blocks_disk_read(b->disk, b->chunk, &name, block_bytes(o, block), number);
    if (seen == BLOCKS_DAMAGED)
        drop_damaged(b, o, block);
    if (seen != BLOCKS_THERE)
        return false;
    b->chunk_object = o;
    b->chunk_block = block;
    b->chunk_number = number;
    memcpy(to, b->chunk + within % BLOCKS_CHUNK, (size_t)bytes);
    return true;
}

static bool copy_from_chunk(const blocks *b, void *to, const blocks_object *o, int64_t block, int64_t within,
                            int64_t bytes)
{
    if (b->chunk_object != o || b->chunk_block != block || b->chunk_number != within / BLOCKS_CHUNK)
        return false;
    memcpy(to, b->chunk + within % BLOCKS_CHUNK, (size_t)bytes);
    return true;
}

/* Copies bytes of one chunk from memory or the folder, or waits until they are there. */
static status read_piece(blocks_object *o, void *to, int64_t block, int64_t within, int64_t bytes)
{
    blocks *b = o->owner;
    double began = 0;
    /* The block is being read now. */
    worker_lock(&b->worker);
    int at = find_expected(b, o, block);
    if (at >= 0) {
        b->ahead--;
        memmove(&b->expected[at], &b->expected[at + 1], (size_t)(b->ahead - at) * sizeof *b->expected);
    }
    worker_unlock(&b->worker);
    if (copy_from_chunk(b, to, o, block, within, bytes))
        return STATUS_OK;
    status got = STATUS_OK;
    while (got == STATUS_OK && !copy_from_slot(b, to, o, block, within, bytes) &&
           !copy_from_disk(b, to, o, block, within, bytes)) {
        if (began == 0)
            began = clock_seconds();
        got = fetch_block(&b->fetcher[BLOCKS_READER], o, block);
        if (is_stopped(b))
            got = status_fail(STATUS_FAILED, "s3://%s/%s: stopped", b->bucket[o->bucket], o->key);
    }
    if (began > 0) {
        worker_lock(&b->worker);
        b->counts.misses++;
        b->counts.stall += clock_seconds() - began;
        worker_unlock(&b->worker);
    }
    return got;
}

status blocks_read(blocks_object *o, void *to, int64_t offset, int64_t bytes)
{
    MUST(offset >= 0 && bytes >= 0 && offset <= o->bytes - bytes, "%s: bytes %lld to %lld of %lld", o->key,
         (long long)offset, (long long)(offset + bytes), (long long)o->bytes);
    for (int64_t done = 0, now; done < bytes; done += now) {
        int64_t block = (offset + done) / o->block, within = (offset + done) % o->block;
        now = BLOCKS_CHUNK - within % BLOCKS_CHUNK;
        now = now < bytes - done ? now : bytes - done;
        TRY(read_piece(o, (char *)to + done, block, within, now));
    }
    int64_t left = o->bytes - offset - bytes, most = BLOCKS_ORDER_AHEAD * o->block;
    if (o->owner->settings.use == BLOCKS_IN_ORDER && left > 0) {
        blocks_expect_nothing(o->owner); /* drops expectations of skipped blocks */
        (void)blocks_expect(o, offset + bytes, left < most ? left : most);
    }
    return STATUS_OK;
}

blocks_counts blocks_counted(blocks *b)
{
    WORKER_HELD(&b->worker);
    return b->counts;
}

/* ---- objects ----------------------------------------------------------------------------------------------------- */

static status find_bucket(int *out, blocks *b, const char *bucket)
{
    for (*out = 0; *out < b->buckets; ++*out)
        if (!strcmp(b->bucket[*out], bucket))
            return STATUS_OK;
    if (b->buckets == BLOCKS_BUCKETS)
        return status_fail(STATUS_USAGE, "data sets lie in more than %d buckets", BLOCKS_BUCKETS);
    b->bucket[b->buckets++] = must_strdup(bucket);
    return STATUS_OK;
}

/* Takes ownership of `key`. */
static void add_object(blocks_object **out, blocks *b, int bucket, char *key, const object_facts *facts, int64_t block)
{
    blocks_object *o = must_calloc(1, sizeof *o);
    *o = (blocks_object){.owner = b,
                         .key = key,
                         .bucket = bucket,
                         .bytes = facts->bytes,
                         .block = block < b->slot_bytes ? block : b->slot_bytes,
                         .has_crc32c = facts->has_crc32c,
                         .crc32c = facts->crc32c,
                         .next = b->objects};
    memcpy(o->etag, facts->etag, sizeof o->etag);
    /* Identifies this version of the object, cut into blocks of this size. */
    char hex[SIGNATURE_HEX];
    AUTO_FREE char *text =
        must_format("%s/%s\n%s\n%lld\n%lld", b->bucket[bucket], key, o->etag, (long long)o->bytes, (long long)o->block);
    signature_hash(hex, text, (int64_t)strlen(text));
    snprintf(o->name, BLOCKS_HEX, "%.*s", BLOCKS_HEX - 1, hex);
    if (b->settings.use == BLOCKS_IN_ORDER && o->has_crc32c) {
        o->unknown = (o->bytes + o->block - 1) / o->block;
        o->known = must_calloc((unsigned long)o->unknown + 1, sizeof *o->known);
        o->sum = must_calloc((unsigned long)o->unknown + 1, sizeof *o->sum);
    }
    b->objects = *out = o;
}

status blocks_find(blocks_object **out, blocks *b, const char *url, int64_t block)
{
    AUTO_FREE char *bucket = NULL, *key = NULL;
    object_store *store = NULL;
    object_facts facts;
    int number;
    TRY(object_split(&bucket, &key, url));
    TRY(find_bucket(&number, b, bucket));
    TRY(store_of(&store, &b->fetcher[BLOCKS_READER], number));
    TRY(object_look(&facts, store, key));
    if (!facts.there)
        return status_fail(STATUS_FAILED, "there is no object %s", url);
    if (!*facts.etag)
        return status_fail(STATUS_FAILED, "%s: the store says no ETag, so that a change of it could not be noticed",
                           url);
    add_object(out, b, number, TAKE(key), &facts, block);
    return STATUS_OK;
}

int64_t blocks_bytes(const blocks_object *o)
{
    return o->bytes;
}

uint32_t blocks_version(const blocks_object *o)
{
    return crc32c(0, o->etag, (int64_t)strlen(o->etag));
}

/* ---- whole objects ----------------------------------------------------------------------------------------------- */

/* Maps a whole object's file, and verifies each of its chunks. */
static bool map_whole(blocks_file *out, blocks *b, const blocks_object *o)
{
    const blocks_name name = name_of(o, -1);
    AUTO_FREE char *path = blocks_disk_path(b->disk, &name);
    bool good = blocks_disk_has(b->disk, &name, o->bytes) && mapping_open(&out->map, path) == STATUS_OK;
    for (int64_t at = 0; good && at < o->bytes; at += BLOCKS_CHUNK) {
        uint32_t crc;
        memcpy(&crc, out->map.data + o->bytes + at / BLOCKS_CHUNK * 4, sizeof crc);
        good = crc32c(0, out->map.data + at, o->bytes - at < BLOCKS_CHUNK ? o->bytes - at : BLOCKS_CHUNK) == crc;
    }
    if (good) {
        out->data = out->map.data;
        out->bytes = o->bytes;
        return true;
    }
    if (out->map.data) {
        mapping_close(&out->map);
        drop_damaged(b, o, -1);
    }
    return false;
}

/* Fetches all bytes piece by piece into memory or a file, and checks them against the store's checksum. *kept: the file
 * has all of them. */
static status fetch_whole(bool *kept, fetcher *h, blocks_object *o, char *memory, int file)
{
    blocks *b = h->owner;
    uint32_t crc = 0;
    slot *s = claim_slot(b, o, -1);
    status got = s ? STATUS_OK : status_fail(STATUS_FAILED, "stopped");
    *kept = file >= 0;
    for (int64_t at = 0, now; at < o->bytes && got == STATUS_OK; at += now) {
        now = o->bytes - at < b->slot_bytes ? o->bytes - at : b->slot_bytes;
        char *to = memory ? memory + at : s->bytes;
        got = fetch_range(h, o, to, at, now);
        if (got != STATUS_OK)
            break;
        crc = crc32c(crc, to, now);
        *kept = *kept && blocks_disk_put(file, to, at, now, o->bytes);
        if (file >= 0 && !*kept)
            break;
    }
    int error = errno;
    if (s)
        release_slot(b, s, false, o->bytes);
    o->came_damaged = got == STATUS_OK && (memory || *kept) && o->has_crc32c && crc != o->crc32c;
    if (o->came_damaged)
        got = status_fail(STATUS_FAILED, "s3://%s/%s: its checksum is not the store's: it came damaged",
                          b->bucket[o->bucket], o->key);
    errno = error;
    return got;
}

static status fetch_to_file(bool *kept, fetcher *h, blocks_object *o, const blocks_name *name)
{
    blocks *b = h->owner;
    int file = blocks_disk_begin(b->disk, h->locks, name, o->bytes);
    status got = STATUS_OK;
    *kept = false;
    if (file >= 0) {
        got = fetch_whole(kept, h, o, NULL, file);
        *kept = blocks_disk_end(b->disk, file, name, got == STATUS_OK && *kept);
    }
    if (got == STATUS_OK && !*kept)
        rest_disk(b, errno);
    return got;
}

static status take_whole(blocks_file *out, fetcher *h, blocks_object *o)
{
    blocks *b = h->owner;
    const blocks_name name = name_of(o, -1);
    bool there = false, kept = false, locked = may_read(b) && lock_block(&there, h, &name, o->bytes);
    status got = STATUS_OK;
    if (locked) {
        got = fetch_to_file(&kept, h, o, &name);
        blocks_disk_unlock(h->locks, &name);
    }
    if (got != STATUS_OK || ((there || kept) && map_whole(out, b, o)))
        return got;
    out->memory = must_alloc((unsigned long)o->bytes + 1);
    got = fetch_whole(&kept, h, o, out->memory, -1);
    out->data = out->memory;
    out->bytes = o->bytes;
    if (got != STATUS_OK)
        blocks_file_close(out);
    return got;
}

status blocks_whole(blocks_file *out, blocks *b, const char *url)
{
    enum { TRIES = 4 };
    blocks_object *o = NULL;
    *out = (blocks_file){0};
    TRY(blocks_find(&o, b, url, BLOCKS_BYTES));
    status got = take_whole(out, &b->fetcher[BLOCKS_READER], o);
    for (int i = 1; i < TRIES && got != STATUS_OK && o->came_damaged; i++)
        got = take_whole(out, &b->fetcher[BLOCKS_READER], o);
    return got;
}

void blocks_file_close(blocks_file *f)
{
    mapping_close(&f->map);
    free(f->memory);
    *f = (blocks_file){0};
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

status blocks_open(blocks **out, const blocks_settings *settings)
{
    blocks *b = must_calloc(1, sizeof *b);
    b->settings = *settings;
    b->settings.sharers = settings->sharers > 0 ? settings->sharers : 1;
    worker_init(&b->worker);
    const char *folder = b->settings.folder;
    bool kept = settings->use == BLOCKS_KEPT, in_order = settings->use == BLOCKS_IN_ORDER;
    if (kept && !folder)
        log_fetch(b, "no folder is known");
    else if (kept && blocks_disk_open(&b->disk, folder, b->settings.bytes, settings->wait) != STATUS_OK) {
        AUTO_FREE char *why = must_strdup(status_message());
        log_fetch(b, why);
    }
    b->slots = b->disk ? BLOCKS_SLOTS : in_order ? BLOCKS_ORDER_SLOTS : BLOCKS_SMALL_SLOTS;
    b->slot_bytes = b->disk || in_order ? BLOCKS_BYTES : BLOCKS_SMALL;
    b->most_ahead = in_order ? BLOCKS_ORDER_AHEAD : b->slots - BLOCKS_WORKERS - 1;
    for (int i = 0; i < b->slots; i++)
        b->slot[i].bytes = must_alloc((unsigned long)b->slot_bytes);
    b->chunk = must_alloc(BLOCKS_CHUNK);
    for (int i = 0; i < BLOCKS_WORKERS; i++) {
        b->fetcher[i].owner = b;
        b->fetcher[i].locks = b->disk ? blocks_disk_descriptor(b->disk) : -1;
    }
    for (int i = 0; i < (in_order ? BLOCKS_ORDER_AHEAD : BLOCKS_READER); i++)
        if (worker_start(&b->worker, fetch_ahead, &b->fetcher[i], "fetches data") != STATUS_OK && i == 0) {
            blocks_close(b);
            return STATUS_FAILED;
        }
    *out = b;
    return STATUS_OK;
}

void blocks_close(blocks *b)
{
    if (!b)
        return;
    worker_close(&b->worker);
    for (int i = 0; i < BLOCKS_WORKERS; i++) {
        for (int k = 0; k < BLOCKS_BUCKETS; k++)
            object_close(b->fetcher[i].store[k]);
        if (b->fetcher[i].locks >= 0)
            close(b->fetcher[i].locks);
    }
    for (blocks_object *o = b->objects, *next; o; o = next) {
        next = o->next;
        free(o->key);
        free(o->known);
        free(o->sum);
        free(o);
    }
    for (int i = 0; i < b->slots; i++)
        free(b->slot[i].bytes);
    for (int i = 0; i < b->buckets; i++)
        free(b->bucket[i]);
    free(b->chunk);
    blocks_disk_close(b->disk);
    free(b);
}

/* ---- one object -------------------------------------------------------------------------------------------------- */

/* Asks by GET, since a store reports a missing bucket only in answer to GET. */
static status look_at_one(object_facts *out, object_store *s, const char *bucket, const char *key)
{
    char byte;
    TRY(object_look(out, s, key));
    if (out->there)
        return STATUS_OK;
    if (object_read(&byte, s, key, 0, 1, NULL) != STATUS_OK && strstr(status_message(), "NoSuchBucket"))
        return STATUS_FAILED;
    return status_fail(STATUS_FAILED, "s3://%s/%s: there is no such object%s", bucket, key,
                       *key && key[strlen(key) - 1] == '/' ? "" : " (what it begins, as a folder, ends in /)");
}

status blocks_look(int64_t *bytes, const char *url)
{
    AUTO_FREE char *bucket = NULL, *key = NULL;
    AUTO(object_store) *s = NULL;
    object_facts facts;
    TRY(object_split(&bucket, &key, url));
    TRY(object_open(&s, bucket, NULL));
    TRY(look_at_one(&facts, s, bucket, key));
    *bytes = facts.bytes;
    return STATUS_OK;
}

status blocks_open_one(blocks_object **out, const char *url, const atomic_bool *stop)
{
    AUTO_FREE char *bucket = NULL, *key = NULL;
    AUTO(blocks) *b = NULL;
    object_store *s = NULL;
    object_facts facts;
    int number;
    TRY(object_split(&bucket, &key, url));
    TRY(blocks_open(&b, &(blocks_settings){.use = BLOCKS_IN_ORDER, .limits = {.stop = stop}}));
    TRY(find_bucket(&number, b, bucket));
    TRY(store_of(&s, &b->fetcher[BLOCKS_READER], number));
    TRY(look_at_one(&facts, s, bucket, key));
    add_object(out, TAKE(b), number, TAKE(key), &facts, BLOCKS_BYTES);
    return STATUS_OK;
}

void blocks_close_one(blocks_object *o)
{
    if (o)
        blocks_close(o->owner);
}
