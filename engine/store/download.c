#include "engine/store/download.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "engine/system/crc32c.h"
#include "engine/system/direct.h"
#include "engine/store/object.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"

enum { BLOCK = 8 << 20, THREADS = 4 };
static const double TOLD_EVERY = 5; /* seconds */

typedef struct work {
    int file; /* -1: not open */
    char *part;
    int64_t blocks, taken, done;
    uint32_t *sum; /* [blocks] CRC32C */
} work;

typedef struct job {
    const char *bucket;
    const download_item *item;
    const download_watcher *watcher;
    mode_t mode;
    int count, running;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    work *work; /* [count] */
    int64_t bytes_done;
    atomic_bool failed;
    char *why; /* the first failure */
    download_fault fault;
} job;

static status fail_file(const char *what, const char *path)
{
    return status_fail(STATUS_FAILED, "cannot %s %s: %s%s", what, path, strerror(errno),
                       errno == ENOSPC || errno == EDQUOT ? " (free some, then try again)" : "");
}

static int64_t bytes_of(const download_item *item, int64_t block)
{
    int64_t left = item->bytes - block * BLOCK;
    return left < BLOCK ? left : BLOCK;
}

static status write_at(int file, const char *path, const char *data, int64_t bytes, int64_t offset)
{
    for (int64_t at = 0; at < bytes;) {
        ssize_t written = pwrite(file, data + at, (size_t)(bytes - at), offset + at);
        if (written < 0 && errno != EINTR)
            return fail_file("write", path);
        at += written > 0 ? written : 0;
    }
    return STATUS_OK;
}

static status note(download_fault *fault, download_fault what, status s)
{
    if (s != STATUS_OK)
        *fault = what;
    return s;
}

/* ---- one piece --------------------------------------------------------------------------------------------------- */

static status fetch_block(job *j, int i, int64_t block, object_store *s, char *buffer, download_fault *fault)
{
    const download_item *item = &j->item[i];
    int64_t bytes = bytes_of(item, block);
    TRY(note(fault, DOWNLOAD_UNREAD, object_read(buffer, s, item->key, block * BLOCK, bytes, item->etag)));
    j->work[i].sum[block] = crc32c(0, buffer, bytes);
    return write_at(j->work[i].file, j->work[i].part, buffer, bytes, block * BLOCK);
}

/* Eight bytes that say how long the header is, little end first, and the header. */
static status fetch_header(job *j, int i, object_store *s)
{
    enum { MOST = 100 << 20 };
    const download_item *item = &j->item[i];
    unsigned char length[8] = {0};
    int64_t bytes = 0;
    TRY(object_read(length, s, item->key, 0, item->bytes < 8 ? item->bytes : 8, item->etag));
    for (int k = 7; k >= 0 && bytes <= MOST; k--)
        bytes = bytes << 8 | length[k];
    if (bytes > MOST || bytes + 8 > item->bytes)
        return status_fail(STATUS_FAILED, "s3://%s/%s is no safetensors file", j->bucket, item->key);
    char *text = must_alloc((unsigned long)bytes + 1);
    status got = object_read(text, s, item->key, 8, bytes, item->etag);
    if (got == STATUS_OK)
        got = write_at(j->work[i].file, j->work[i].part, (const char *)length, 8, 0);
    if (got == STATUS_OK)
        got = write_at(j->work[i].file, j->work[i].part, text, bytes, 8);
    free(text);
    if (got == STATUS_OK && ftruncate(j->work[i].file, item->bytes) != 0)
        got = fail_file("write", j->work[i].part);
    return got;
}

/* What the store says of an object that has been fetched. */
static status check_version(const job *j, const download_item *item, uint32_t all, object_store *s)
{
    object_facts o;
    TRY(object_look(&o, s, item->key));
    if (!o.there || o.bytes != item->bytes || (*item->etag && *o.etag && strcmp(item->etag, o.etag) != 0))
        return status_fail(STATUS_FAILED, "s3://%s/%s has been replaced while it was fetched: try again", j->bucket,
                           item->key);
    if (o.has_crc32c && o.crc32c != all)
        return status_fail(STATUS_FAILED,
                           "s3://%s/%s: the bytes that came do not have the checksum that the store says: try again",
                           j->bucket, item->key);
    return STATUS_OK;
}

/* All blocks are there: the whole is held to the caller's checksum, or else to the store's. */
static status check_whole(const job *j, int i, object_store *s, download_fault *fault)
{
    const download_item *item = &j->item[i];
    uint32_t all = 0;
    if (item->header)
        return STATUS_OK;
    for (int64_t b = 0; b < j->work[i].blocks; b++)
        all = crc32c_combine(all, j->work[i].sum[b], bytes_of(item, b));
    if (!item->has_crc32c)
        return note(fault, DOWNLOAD_UNREAD, check_version(j, item, all, s));
    return all == item->crc32c
               ? STATUS_OK
               : note(fault, DOWNLOAD_DAMAGED,
                      status_fail(STATUS_FAILED, "s3://%s/%s has another checksum than the manifest says", j->bucket,
                                  item->key));
}

/* What must have a checksum of the caller's has it on the disk, too. */
static status finish(job *j, int i, object_store *s, char *buffer, download_fault *fault)
{
    work *w = &j->work[i];
    const download_item *item = &j->item[i];
    int error;
    TRY(check_whole(j, i, s, fault));
    if (fsync(w->file) != 0)
        return fail_file("write", w->part);
    if (item->has_crc32c)
        TRY(direct_verify(&error, w->part, item->bytes, item->crc32c, buffer, BLOCK));
    TRY(atomic_rename(w->part, item->path));
    close(w->file);
    w->file = -1;
    return STATUS_OK;
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

/* The next piece of the first file that has one; -1: there is none. The lock is held. */
static int take(job *j, int64_t *block, status *opened)
{
    for (int i = 0; i < j->count; i++) {
        work *w = &j->work[i];
        if (w->taken == w->blocks)
            continue;
        if (w->file < 0)
            w->file = atomic_create(w->part, j->mode);
        *opened = w->file < 0 ? fail_file("write", w->part) : STATUS_OK;
        *block = w->taken++;
        return i;
    }
    return -1;
}

static status do_piece(job *j, int i, int64_t block, object_store *s, char *buffer, download_fault *fault)
{
    TRY(j->item[i].header ? fetch_header(j, i, s) : fetch_block(j, i, block, s, buffer, fault));
    pthread_mutex_lock(&j->lock);
    j->bytes_done += j->item[i].header ? 0 : bytes_of(&j->item[i], block);
    bool last = ++j->work[i].done == j->work[i].blocks;
    pthread_mutex_unlock(&j->lock);
    if (!last)
        return STATUS_OK;
    TRY(finish(j, i, s, buffer, fault));
    pthread_mutex_lock(&j->lock);
    if (j->watcher->finished)
        j->watcher->finished(j->watcher->context, i);
    pthread_mutex_unlock(&j->lock);
    return STATUS_OK;
}

static void *fetch_pieces(void *argument)
{
    job *j = argument;
    AUTO(object_store) *s = NULL;
    AUTO_FREE char *buffer = aligned_alloc(DIRECT_ALIGNMENT, BLOCK);
    MUST(buffer, "out of host memory");
    download_fault fault = DOWNLOAD_ELSEWHERE;
    status result = object_open(&s, j->bucket, &(object_limits){.stop = &j->failed});
    while (result == STATUS_OK && !atomic_load(&j->failed)) {
        int64_t block = 0;
        pthread_mutex_lock(&j->lock);
        int i = take(j, &block, &result);
        pthread_mutex_unlock(&j->lock);
        if (i < 0)
            break;
        if (result == STATUS_OK)
            result = do_piece(j, i, block, s, buffer, &fault);
    }
    pthread_mutex_lock(&j->lock);
    if (result != STATUS_OK && !j->why) {
        j->why = must_strdup(status_message());
        j->fault = fault;
    }
    if (result != STATUS_OK)
        atomic_store(&j->failed, true);
    j->running--;
    pthread_cond_broadcast(&j->changed);
    pthread_mutex_unlock(&j->lock);
    return NULL;
}

static void tell(const job *j)
{
    if (j->watcher->progress)
        j->watcher->progress(j->watcher->context, j->bytes_done);
}

static void wait_for_all(job *j)
{
    double every = j->watcher->every > 0 ? j->watcher->every : TOLD_EVERY, next = clock_seconds() + every;
    pthread_mutex_lock(&j->lock);
    while (j->running > 0) {
        if (!clock_wait(&j->changed, &j->lock, next)) {
            tell(j);
            next = clock_seconds() + every;
        }
    }
    pthread_mutex_unlock(&j->lock);
}

static status start(job *j, pthread_t thread[THREADS], int *started)
{
    for (int i = 0; i < THREADS; i++) {
        pthread_mutex_lock(&j->lock);
        j->running++;
        pthread_mutex_unlock(&j->lock);
        if (pthread_create(&thread[i], NULL, fetch_pieces, j) != 0) {
            pthread_mutex_lock(&j->lock);
            j->running--;
            pthread_mutex_unlock(&j->lock);
            return i > 0 ? STATUS_OK /* fewer do as well */ : status_fail(STATUS_FAILED, "no thread can be started");
        }
        *started = i + 1;
    }
    return STATUS_OK;
}

static void prepare(job *j)
{
    pthread_mutex_init(&j->lock, NULL);
    clock_condition(&j->changed);
    j->work = must_calloc((unsigned long)j->count + 1, sizeof *j->work);
    for (int i = 0; i < j->count; i++) {
        const download_item *item = &j->item[i];
        int64_t blocks = item->header || item->bytes == 0 ? 1 : (item->bytes + BLOCK - 1) / BLOCK;
        j->work[i] = (work){.file = -1,
                            .part = must_format("%s.part", item->path),
                            .blocks = blocks,
                            .sum = must_calloc((unsigned long)blocks, sizeof(uint32_t))};
    }
}

/* A file that is still open is not whole. */
static void dispose(job *j)
{
    for (int i = 0; i < j->count; i++) {
        if (j->work[i].file >= 0) {
            close(j->work[i].file);
            unlink(j->work[i].part);
        }
        free(j->work[i].part);
        free(j->work[i].sum);
    }
    free(j->work);
    free(j->why);
    pthread_cond_destroy(&j->changed);
    pthread_mutex_destroy(&j->lock);
}

status download(const char *bucket, const download_item *items, int count, mode_t mode, const download_watcher *watcher,
                download_fault *fault)
{
    job j = {.bucket = bucket, .item = items, .count = count, .mode = mode, .watcher = watcher};
    pthread_t thread[THREADS];
    int started = 0;
    prepare(&j);
    status s = start(&j, thread, &started);
    wait_for_all(&j);
    for (int i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
    if (s == STATUS_OK && j.why)
        s = status_fail(STATUS_FAILED, "%s", j.why);
    if (s == STATUS_OK && watcher->every > 0)
        tell(&j);
    if (s != STATUS_OK && fault)
        *fault = j.fault;
    dispose(&j);
    return s;
}
