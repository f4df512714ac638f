#include "engine/store/object.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/system/crc32c.h"
#include "engine/system/worker.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"

enum { BLOCK = 8 << 20, SLOTS = 4, FETCHERS = 2, AHEAD = 2 };

typedef enum slot_state { SLOT_EMPTY, SLOT_WANTED, SLOT_FETCHING, SLOT_FULL, SLOT_FAILED } slot_state;

typedef struct slot {
    slot_state state;
    int64_t block, used; /* used: when it was last read, by a count of reads */
    char *data;          /* [BLOCK], or fewer of a smaller object */
} slot;

struct remote {
    char *bucket, *key;
    object_facts object;
    const atomic_bool *stop; /* the caller's */
    int64_t reads;
    worker worker; /* its lock is of what follows, but for the data of slots that are full or fetched */
    slot slot[SLOTS];
    char *why; /* the first failure */
    int64_t blocks, blocks_known;
    bool *known;   /* [blocks] */
    uint32_t *sum; /* [blocks] CRC32C */
};

/* ---- fetching ---------------------------------------------------------------------------------------------------- */

static int64_t bytes_of(const remote *r, int64_t block)
{
    int64_t left = r->object.bytes - block * BLOCK;
    return left < BLOCK ? left : BLOCK;
}

/* Stores say the checksum of an object, not of a range of it: it is compared when each block has been fetched once. */
static status check_sum(remote *r, int64_t block, uint32_t sum)
{
    uint32_t all = 0;
    if (r->known[block] || !r->object.has_crc32c)
        return STATUS_OK;
    r->known[block] = true;
    r->sum[block] = sum;
    if (++r->blocks_known < r->blocks)
        return STATUS_OK;
    for (int64_t i = 0; i < r->blocks; i++)
        all = crc32c_combine(all, r->sum[i], bytes_of(r, i));
    return all == r->object.crc32c
               ? STATUS_OK
               : status_fail(STATUS_FAILED,
                             "s3://%s/%s: the bytes that came do not have the checksum that the store says: try again",
                             r->bucket, r->key);
}

static status fetch(uint32_t *sum, remote *r, object_store *s, const slot *x)
{
    int64_t bytes = bytes_of(r, x->block);
    TRY(object_read(x->data, s, r->key, x->block * BLOCK, bytes, r->object.etag));
    *sum = crc32c(0, x->data, bytes);
    return STATUS_OK;
}

static void fetch_blocks(void *argument)
{
    remote *r = argument;
    AUTO(object_store) *s = NULL;
    status opened = object_open(&s, r->bucket, &(object_limits){.stop = &r->worker.stop});
    WORKER_HELD(&r->worker);
    while (!atomic_load(&r->worker.stop)) {
        slot *x = NULL;
        for (int i = 0; i < SLOTS; i++)
            if (r->slot[i].state == SLOT_WANTED && (!x || r->slot[i].block < x->block))
                x = &r->slot[i];
        if (!x) {
            (void)worker_wait(&r->worker);
            continue;
        }
        x->state = SLOT_FETCHING;
        worker_unlock(&r->worker);
        uint32_t sum = 0;
        status got = opened == STATUS_OK ? fetch(&sum, r, s, x) : opened;
        worker_lock(&r->worker);
        if (got == STATUS_OK)
            got = check_sum(r, x->block, sum);
        x->state = got == STATUS_OK ? SLOT_FULL : SLOT_FAILED;
        if (got != STATUS_OK && !r->why)
            r->why = must_strdup(status_message());
        worker_tell(&r->worker);
    }
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static slot *find(remote *r, int64_t block)
{
    for (int i = 0; i < SLOTS; i++)
        if (r->slot[i].state != SLOT_EMPTY && r->slot[i].block == block)
            return &r->slot[i];
    return NULL;
}

/* Asks for a block, in place of the one that was used longest ago; none if all are being fetched. */
static void want(remote *r, int64_t block)
{
    slot *oldest = NULL;
    if (block * BLOCK >= r->object.bytes || find(r, block))
        return;
    for (int i = 0; i < SLOTS; i++) {
        slot *x = &r->slot[i];
        if (x->state != SLOT_FETCHING && (!oldest || x->used < oldest->used))
            oldest = x;
    }
    if (!oldest)
        return;
    if (!oldest->data)
        oldest->data = must_alloc((unsigned long)(r->object.bytes < BLOCK ? r->object.bytes : BLOCK));
    oldest->block = block;
    oldest->used = r->reads;
    oldest->state = SLOT_WANTED;
    worker_tell(&r->worker);
}

/* Waits until the block is there. */
static status take(slot **out, remote *r, int64_t block)
{
    for (;;) {
        if (r->stop && atomic_load(r->stop))
            return status_fail(STATUS_FAILED, "s3://%s/%s: stopped", r->bucket, r->key);
        want(r, block);
        slot *x = find(r, block);
        if (x && x->state == SLOT_FULL) {
            *out = x;
            return STATUS_OK;
        }
        if (x && x->state == SLOT_FAILED)
            return status_fail(STATUS_FAILED, "%s", r->why);
        (void)worker_wait_until(&r->worker, clock_seconds() + 0.1);
    }
}

/* The block, once it is there; the next ones are asked for. */
static status use(const slot **out, remote *r, int64_t block)
{
    slot *x = NULL;
    WORKER_HELD(&r->worker);
    r->reads++;
    TRY(take(&x, r, block));
    x->used = ++r->reads;
    for (int i = 1; i <= AHEAD; i++)
        want(r, block + i);
    *out = x;
    return STATUS_OK;
}

status remote_read(remote *r, void *to, int64_t offset, int64_t bytes)
{
    MUST(offset >= 0 && bytes >= 0 && offset + bytes <= r->object.bytes, "s3://%s/%s: bytes %lld of %lld", r->bucket,
         r->key, (long long)(offset + bytes), (long long)r->object.bytes);
    for (int64_t at = offset; at < offset + bytes;) {
        int64_t block = at / BLOCK, within = at % BLOCK, there = bytes_of(r, block) - within;
        int64_t now = offset + bytes - at < there ? offset + bytes - at : there;
        const slot *x = NULL;
        TRY(use(&x, r, block));
        memcpy((char *)to + (at - offset), x->data + within, (size_t)now); /* only this thread replaces full ones */
        at += now;
    }
    return STATUS_OK;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* A store says only in answer to GET that there is no such bucket. */
static status look(object_facts *out, const char *bucket, const char *key, const atomic_bool *stop)
{
    char byte;
    AUTO(object_store) *s = NULL;
    TRY(object_open(&s, bucket, &(object_limits){.stop = stop}));
    TRY(object_look(out, s, key));
    if (out->there)
        return STATUS_OK;
    if (object_read(&byte, s, key, 0, 1, NULL) != STATUS_OK && strstr(status_message(), "NoSuchBucket"))
        return STATUS_FAILED;
    return status_fail(STATUS_FAILED, "s3://%s/%s: there is no such object%s", bucket, key,
                       *key && key[strlen(key) - 1] == '/' ? "" : " (what it begins, as a folder, ends in /)");
}

status remote_look(int64_t *bytes, const char *url)
{
    AUTO_FREE char *bucket = NULL, *key = NULL;
    object_facts o;
    TRY(object_split(&bucket, &key, url));
    TRY(look(&o, bucket, key, NULL));
    *bytes = o.bytes;
    return STATUS_OK;
}

status remote_open(remote **out, const char *url, const atomic_bool *stop)
{
    AUTO(remote) *r = must_calloc(1, sizeof *r);
    worker_init(&r->worker);
    r->stop = stop;
    TRY(object_split(&r->bucket, &r->key, url));
    TRY(look(&r->object, r->bucket, r->key, stop));
    r->blocks = (r->object.bytes + BLOCK - 1) / BLOCK;
    r->known = must_calloc((unsigned long)r->blocks + 1, sizeof *r->known);
    r->sum = must_calloc((unsigned long)r->blocks + 1, sizeof *r->sum);
    for (int i = 0; i < FETCHERS && r->object.bytes > 0; i++)
        TRY(worker_start(&r->worker, fetch_blocks, r, "fetches blocks"));
    *out = TAKE(r);
    return STATUS_OK;
}

void remote_close(remote *r)
{
    if (!r)
        return;
    worker_close(&r->worker);
    for (int i = 0; i < SLOTS; i++)
        free(r->slot[i].data);
    free(r->why);
    free(r->known);
    free(r->sum);
    free(r->bucket);
    free(r->key);
    free(r);
}

int64_t remote_bytes(const remote *r)
{
    return r->object.bytes;
}
