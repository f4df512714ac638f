#include "engine/store/download.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "engine/system/crc32c.h"
#include "engine/system/direct.h"
#include "engine/store/pool.h"
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

/* Threads access it under the pool's lock. */
typedef struct job {
    const char *bucket;
    const download_item *item;
    const download_watcher *watcher;
    mode_t mode;
    int count;
    work *work; /* [count] */
    int64_t bytes_done;
} job;

static status fail_write(const char *path)
{
    return status_fail(STATUS_FAILED, "cannot write %s: %s%s", path, strerror(errno),
                       errno == ENOSPC || errno == EDQUOT ? " (free some, then try again)" : "");
}

static int64_t bytes_of(const download_item *item, int64_t block)
{
    int64_t left = item->bytes - block * BLOCK;
    return left < BLOCK ? left : BLOCK;
}

static status write_at(const work *w, const void *data, int64_t bytes, int64_t offset)
{
    return atomic_write_all(w->file, data, bytes, offset) == bytes ? STATUS_OK : fail_write(w->part);
}

static status note_fault(int *fault, download_fault what, status s)
{
    if (s != STATUS_OK)
        *fault = what;
    return s;
}

/* ---- one piece --------------------------------------------------------------------------------------------------- */

static status fetch_block(job *j, int i, int64_t block, object_store *s, char *buffer, int *fault)
{
    const download_item *item = &j->item[i];
    int64_t bytes = bytes_of(item, block);
    TRY(note_fault(fault, DOWNLOAD_UNREAD, object_read(buffer, s, item->key, block * BLOCK, bytes, item->etag)));
    j->work[i].sum[block] = crc32c(0, buffer, bytes);
    return write_at(&j->work[i], buffer, bytes, block * BLOCK);
}

/* Fetches eight bytes of header length, little-endian, and the header. */
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
    AUTO_FREE char *text = must_alloc((unsigned long)bytes + 1);
    TRY(object_read(text, s, item->key, 8, bytes, item->etag));
    TRY(write_at(&j->work[i], length, 8, 0));
    TRY(write_at(&j->work[i], text, bytes, 8));
    return ftruncate(j->work[i].file, item->bytes) == 0 ? STATUS_OK : fail_write(j->work[i].part);
}

/* Checks the store's facts about an object after it was fetched. */
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

/* Once all blocks are there, checks the whole against the caller's checksum, or else the store's. */
static status check_whole(const job *j, int i, object_store *s, int *fault)
{
    const download_item *item = &j->item[i];
    uint32_t all = 0;
    if (item->header)
        return STATUS_OK;
    for (int64_t b = 0; b < j->work[i].blocks; b++)
        all = crc32c_combine(all, j->work[i].sum[b], bytes_of(item, b));
    if (!item->has_crc32c)
        return note_fault(fault, DOWNLOAD_UNREAD, check_version(j, item, all, s));
    return all == item->crc32c
               ? STATUS_OK
               : note_fault(fault, DOWNLOAD_DAMAGED,
                            status_fail(STATUS_FAILED, "s3://%s/%s has another checksum than the manifest says",
                                        j->bucket, item->key));
}

/* Also reads the file back from the disk if the caller gave a checksum. */
static status finish_item(job *j, int i, object_store *s, char *buffer, int *fault)
{
    work *w = &j->work[i];
    const download_item *item = &j->item[i];
    int error;
    TRY(check_whole(j, i, s, fault));
    if (fsync(w->file) != 0)
        return fail_write(w->part);
    if (item->has_crc32c)
        TRY(direct_verify(&error, w->part, item->bytes, item->crc32c, buffer, BLOCK));
    TRY(atomic_rename(w->part, item->path));
    close(w->file);
    w->file = -1;
    return STATUS_OK;
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

/* Takes the next piece of the first file that has one; -1: there is none. The lock is held. */
static int take_block(job *j, int64_t *block, status *opened)
{
    for (int i = 0; i < j->count; i++) {
        work *w = &j->work[i];
        if (w->taken == w->blocks)
            continue;
        if (w->file < 0)
            w->file = atomic_create(w->part, j->mode);
        *opened = w->file < 0 ? fail_write(w->part) : STATUS_OK;
        *block = w->taken++;
        return i;
    }
    return -1;
}

static status do_piece(job *j, pool *p, int i, int64_t block, object_store *s, char *buffer, int *fault)
{
    TRY(j->item[i].header ? fetch_header(j, i, s) : fetch_block(j, i, block, s, buffer, fault));
    worker_lock(&p->worker);
    j->bytes_done += j->item[i].header ? 0 : bytes_of(&j->item[i], block);
    bool last = ++j->work[i].done == j->work[i].blocks;
    worker_unlock(&p->worker);
    if (!last)
        return STATUS_OK;
    TRY(finish_item(j, i, s, buffer, fault));
    WORKER_HELD(&p->worker);
    if (j->watcher->finished)
        j->watcher->finished(j->watcher->context, i);
    return STATUS_OK;
}

static status fetch_pieces(void *context, pool *p, object_store *s, int thread, int *fault)
{
    job *j = context;
    AUTO_FREE char *buffer = aligned_alloc(DIRECT_ALIGNMENT, BLOCK);
    MUST(buffer, "out of host memory");
    (void)thread;
    while (!atomic_load(&p->worker.stop)) {
        int64_t block = 0;
        status opened = STATUS_OK;
        worker_lock(&p->worker);
        int i = take_block(j, &block, &opened);
        worker_unlock(&p->worker);
        if (i < 0)
            break;
        TRY(opened);
        TRY(do_piece(j, p, i, block, s, buffer, fault));
    }
    return STATUS_OK;
}

static void log_download(void *context)
{
    const job *j = context;
    if (j->watcher->progress)
        j->watcher->progress(j->watcher->context, j->bytes_done);
}

/* Closes files; one that is still open is not whole. */
static void end_job(job *j)
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
}

status download(const char *bucket, const download_item *items, int count, mode_t mode, const download_watcher *watcher,
                download_fault *fault)
{
    RELEASED_BY(end_job) job j = {.bucket = bucket, .item = items, .count = count, .mode = mode, .watcher = watcher};
    const pool_task task = {.bucket = bucket,
                            .does = "fetches objects",
                            .threads = THREADS,
                            .work = fetch_pieces,
                            .tell = log_download,
                            .every = watcher->every > 0 ? watcher->every : TOLD_EVERY,
                            .context = &j};
    int what = DOWNLOAD_ELSEWHERE;
    j.work = must_calloc((unsigned long)j.count + 1, sizeof *j.work);
    for (int i = 0; i < j.count; i++) {
        const download_item *item = &j.item[i];
        int64_t blocks = item->header || item->bytes == 0 ? 1 : (item->bytes + BLOCK - 1) / BLOCK;
        j.work[i] = (work){.file = -1,
                           .part = must_format("%s.part", item->path),
                           .blocks = blocks,
                           .sum = must_calloc((unsigned long)blocks, sizeof(uint32_t))};
    }
    status s = pool_run(&task, &what);
    if (s == STATUS_OK && watcher->every > 0)
        log_download(&j);
    if (s != STATUS_OK && fault)
        *fault = (download_fault)what;
    return s;
}
