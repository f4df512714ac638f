#include "engine/store/remote.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/system/crc32c.h"
#include "engine/store/object.h"
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
    atomic_bool closing;     /* what the handles of the threads look at */
    pthread_t thread[FETCHERS];
    int threads;
    int64_t reads;
    pthread_mutex_t lock; /* of what follows, but for the data of slots that are full or fetched */
    pthread_cond_t changed;
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

static slot *wanted_slot(remote *r)
{
    slot *first = NULL;
    for (int i = 0; i < SLOTS; i++)
        if (r->slot[i].state == SLOT_WANTED && (!first || r->slot[i].block < first->block))
            first = &r->slot[i];
    return first;
}

static status fetch(uint32_t *sum, remote *r, object_store *s, const slot *x)
{
    int64_t bytes = bytes_of(r, x->block);
    TRY(object_read(x->data, s, r->key, x->block * BLOCK, bytes, r->object.etag));
    *sum = crc32c(0, x->data, bytes);
    return STATUS_OK;
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

static void *fetch_blocks(void *argument)
{
    remote *r = argument;
    AUTO(object_store) *s = NULL;
    status opened = object_open(&s, r->bucket, &(object_limits){.stop = &r->closing});
    pthread_mutex_lock(&r->lock);
    while (!atomic_load(&r->closing)) {
        slot *x = wanted_slot(r);
        if (!x) {
            pthread_cond_wait(&r->changed, &r->lock);
            continue;
        }
        x->state = SLOT_FETCHING;
        pthread_mutex_unlock(&r->lock);
        uint32_t sum = 0;
        status got = opened == STATUS_OK ? fetch(&sum, r, s, x) : opened;
        pthread_mutex_lock(&r->lock);
        if (got == STATUS_OK)
            got = check_sum(r, x->block, sum);
        x->state = got == STATUS_OK ? SLOT_FULL : SLOT_FAILED;
        if (got != STATUS_OK && !r->why)
            r->why = must_strdup(status_message());
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
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
    pthread_cond_broadcast(&r->changed);
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
        (void)clock_wait(&r->changed, &r->lock, clock_seconds() + 0.1);
    }
}

status remote_read(remote *r, void *to, int64_t offset, int64_t bytes)
{
    MUST(offset >= 0 && bytes >= 0 && offset + bytes <= r->object.bytes, "s3://%s/%s: bytes %lld of %lld", r->bucket,
         r->key, (long long)(offset + bytes), (long long)r->object.bytes);
    for (int64_t at = offset; at < offset + bytes;) {
        int64_t block = at / BLOCK, within = at % BLOCK, there = bytes_of(r, block) - within;
        int64_t now = offset + bytes - at < there ? offset + bytes - at : there;
        slot *x = NULL;
        pthread_mutex_lock(&r->lock);
        r->reads++;
        status s = take(&x, r, block);
        if (s == STATUS_OK) {
            x->used = ++r->reads;
            for (int i = 1; i <= AHEAD; i++)
                want(r, block + i);
        }
        pthread_mutex_unlock(&r->lock);
        TRY(s);
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

static status start_thread(remote *r)
{
    if (pthread_create(&r->thread[r->threads], NULL, fetch_blocks, r) != 0)
        return status_fail(STATUS_FAILED, "s3://%s/%s: no thread can be started", r->bucket, r->key);
    r->threads++;
    return STATUS_OK;
}

status remote_open(remote **out, const char *url, const atomic_bool *stop)
{
    remote *r = must_calloc(1, sizeof *r);
    pthread_mutex_init(&r->lock, NULL);
    clock_condition(&r->changed);
    r->stop = stop;
    status s = object_split(&r->bucket, &r->key, url);
    if (s == STATUS_OK)
        s = look(&r->object, r->bucket, r->key, stop);
    if (s == STATUS_OK) {
        r->blocks = (r->object.bytes + BLOCK - 1) / BLOCK;
        r->known = must_calloc((unsigned long)r->blocks + 1, sizeof *r->known);
        r->sum = must_calloc((unsigned long)r->blocks + 1, sizeof *r->sum);
    }
    for (int i = 0; i < FETCHERS && s == STATUS_OK && r->object.bytes > 0; i++)
        s = start_thread(r);
    if (s == STATUS_OK)
        *out = r;
    else
        remote_close(r);
    return s;
}

void remote_close(remote *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&r->lock);
    atomic_store(&r->closing, true);
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    for (int i = 0; i < r->threads; i++)
        pthread_join(r->thread[i], NULL);
    for (int i = 0; i < SLOTS; i++)
        free(r->slot[i].data);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
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
