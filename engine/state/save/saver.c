#include "engine/state/save/saver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/checkpoint_find.h"
#include "engine/checkpoint/checkpoint_writer.h"
#include "engine/system/direct.h"
#include "engine/system/lock.h"
#include "engine/checkpoint/share.h"
#include "engine/state/rank/state.h"
#include "engine/system/worker.h"
#include "memory/arena.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"

enum { ALIGNMENT = 256 }; /* bytes */
_Static_assert((int)ALIGNMENT == (int)COMPILE_ALIGNMENT, "between pieces closer than that lies no other tensor");

/* A range of bytes of the device's arena to copy, and its target. */
typedef struct range {
    int64_t at, bytes, to;
} range;

typedef enum stage { NONE, SHARES, PUBLISHING } stage;

struct saver {
    saver_options options;
    const device_interface *interface;
    device *device;
    arena *arena;    /* the copy, then the writer's buffer */
    char *copy;      /* NULL: no copy; the state is written in place */
    char *more_copy; /* copy of other host memory */
    bool pinned;
    range *ranges;
    int range_count;
    checkpoint_writer *writer;
    checkpoint_publisher *publisher; /* rank 0's */
    saver_facts last;                /* `refused` and `seconds` are shared with the thread, under the lock */
    const share_source *memory;      /* folder of shares in memory; NULL: the run's checkpoints */
    char *buffer;                    /* the writer's buffer */
    json_t *meta;
    double stall;
    stage stage;
    bool arrived; /* the device's copies are complete */
    bool beside;  /* some of a device's state is in host memory: the thread copies it */

    /* shared with the thread, under the lock */
    worker worker;
    bool working;
    bool taken, copied; /* the thread's copies are complete; all are */
    status result;
    char message[2048];
};

/* ---- ranges to copy ---------------------------------------------------------------------------------------------- */

static checkpoint_piece *own_pieces(int *count, const compiled *c, executor *e)
{
    state_section sections[STATE_SECTIONS];
    int section_count = state_sections(sections, c);
    checkpoint_piece *all = NULL;
    *count = 0;
    for (int i = 0; i < section_count; i++)
        state_pieces(&all, count, c, e, sections[i], true);
    return all;
}

static int compare_data(const void *a, const void *b)
{
    const char *x = (*(const checkpoint_piece *const *)a)->at.data;
    const char *y = (*(const checkpoint_piece *const *)b)->at.data;
    return (x > y) - (x < y);
}

static int64_t aligned(int64_t bytes, int64_t to)
{
    return (bytes + to - 1) / to * to;
}

/* Lists the pieces' bytes as ranges, adjacent ones merged, excluding other tensors, which may change meanwhile; the
 * pieces then point into the copy, if any. Returns the copy's bytes. */
static int64_t lay_ranges(range **out, int *out_count, checkpoint_piece *pieces, int count, const char *base,
                          char *copy)
{
    AUTO_FREE checkpoint_piece **sorted = must_alloc((unsigned long)count * sizeof *sorted);
    range *ranges = must_alloc((unsigned long)count * sizeof *ranges);
    int ranges_count = 0;
    int64_t bytes = 0;
    for (int i = 0; i < count; i++)
        sorted[i] = &pieces[i];
    qsort(sorted, (size_t)count, sizeof *sorted, compare_data);
    for (int i = 0; i < count; i++) {
        int64_t at = (const char *)sorted[i]->at.data - base, end = at + checkpoint_extent(sorted[i]);
        range *last = ranges_count ? &ranges[ranges_count - 1] : NULL;
        if (!last || at - last->at - last->bytes >= ALIGNMENT) {
            bytes = aligned(bytes, ALIGNMENT);
            last = &ranges[ranges_count++];
            *last = (range){at, 0, bytes};
        }
        if (end > last->at + last->bytes) {
            bytes += end - last->at - last->bytes;
            last->bytes = end - last->at;
        }
        if (copy) {
            sorted[i]->at.data = copy + last->to + at - last->at;
            sorted[i]->source = (checkpoint_source){0};
        }
    }
    *out = ranges;
    *out_count = ranges_count;
    return aligned(bytes, DIRECT_ALIGNMENT);
}

/* Lays out the pieces of options->more after the state's own; with `copy`, the pieces then point there. */
static int64_t lay_more(checkpoint_piece *pieces, int count, char *copy)
{
    int64_t bytes = 0;
    for (int i = 0; i < count; i++) {
        if (copy)
            pieces[i].at.data = copy + bytes;
        bytes += aligned(checkpoint_extent(&pieces[i]), ALIGNMENT);
    }
    return aligned(bytes, DIRECT_ALIGNMENT);
}

int64_t saver_bytes(const compiled *c, executor *e, const checkpoint_piece *more, int more_count, bool asynchronous)
{
    int count, ranges_count;
    AUTO_FREE range *ranges = NULL;
    AUTO_FREE checkpoint_piece *pieces = own_pieces(&count, c, e);
    int64_t bytes = lay_ranges(&ranges, &ranges_count, pieces, count, executor_context(e)->arena, NULL);
    for (int i = 0; i < more_count; i++)
        bytes += aligned(checkpoint_extent(&more[i]), ALIGNMENT);
    return (asynchronous ? aligned(bytes, DIRECT_ALIGNMENT) : 0) + CHECKPOINT_WRITER_BUFFER;
}

/* ---- a rank's work: on the thread, or, without a copy, on the training thread ------------------------------------ */

/* True if the device copies the range. */
static bool by_device(const saver *s, const range *r)
{
    return s->interface->aside.copy && r->at < TENSOR_HOST;
}

/* Copies the host's ranges. A device copies its arena itself; the training thread polls for its end. */
static void take_copy(saver *s)
{
    const char *host = s->interface->host(s->device);
    for (int i = 0; i < s->range_count; i++) {
        const range *r = &s->ranges[i];
        if (!by_device(s, r))
            memcpy(s->copy + r->to, host + (r->at < TENSOR_HOST ? r->at : r->at - TENSOR_HOST), (size_t)r->bytes);
    }
    WORKER_HELD(&s->worker);
    s->taken = true;
    s->copied = s->copied || !s->interface->aside.copy;
    worker_tell(&s->worker);
    while (!s->copied)
        worker_wait(&s->worker);
}

/* Polls, on the training thread, whether the device's copies are complete. */
static void ask_device(saver *s, bool wait)
{
    if (s->stage == SHARES && s->copy && s->interface->aside.copy && !s->arrived) {
        s->arrived = s->interface->aside.done(s->device, wait);
        WORKER_HELD(&s->worker);
        s->copied = s->arrived;
        worker_tell(&s->worker);
    }
}

static status publish_save(saver *s)
{
    const saver_options *o = &s->options;
    if (o->may_publish)
        TRY(o->may_publish(o->context));
    TRY(checkpoint_publisher_publish(s->publisher, o->folder, s->last.name, s->meta));
    const checkpoint_needed needed = {o->needs, o->context};
    if (o->published)
        o->published(o->context, s->last.name);
    if (lock_check(o->owner) != STATUS_OK ||
        checkpoint_prune(o->folder, o->keep, o->keep_every, o->needs ? &needed : NULL) != STATUS_OK)
        log_warn("%s; an older checkpoint stays", status_message()); /* the new checkpoint is saved all the same */
    return STATUS_OK;
}

static status write_share(saver *s)
{
    const saver_options *o = &s->options;
    TRY(checkpoint_writer_share(s->writer, s->memory ? s->memory->folder : o->folder, s->last.name));
    if (!s->memory)
        return STATUS_OK;
    const fragment_owner owner = {.run = o->run, .name = s->last.name, .rank = o->rank, .ranks = o->ranks};
    AUTO_FREE char *folder = checkpoint_temporary(s->memory->folder, s->last.name);
    TRY(o->rank == 0 ? share_put_meta(folder, s->meta, s->buffer) : STATUS_OK);
    return share_seal(folder, &owner, s->memory->secret, s->buffer);
}

static void write_save(saver *s)
{
    double began = clock_seconds();
    status result;
    watchdog_beside(s->options.watchdog, s->stage == SHARES ? "writing a checkpoint" : "publishing a checkpoint");
    if (s->stage == SHARES) {
        if (s->copy)
            take_copy(s);
        result = write_share(s);
    } else {
        result = publish_save(s);
    }
    worker_lock(&s->worker);
    s->result = result;
    s->last.refused = result != STATUS_OK && s->stage == SHARES && checkpoint_writer_refused(s->writer);
    snprintf(s->message, sizeof s->message, "%s", status_message());
    s->last.seconds += clock_seconds() - began;
    s->working = false;
    worker_tell(&s->worker);
    worker_unlock(&s->worker);
    watchdog_beside(s->options.watchdog, NULL);
}

static bool wait_for_work(saver *s)
{
    WORKER_HELD(&s->worker);
    while (!s->working && worker_wait(&s->worker))
        continue;
    return s->working;
}

static void work_on(void *argument)
{
    while (wait_for_work(argument))
        write_save(argument);
}

static void start_work(saver *s)
{
    worker_lock(&s->worker);
    s->working = true;
    worker_tell(&s->worker);
    worker_unlock(&s->worker);
    if (!s->copy)
        write_save(s);
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

/* Makes the kernel map every page now: zeroing them would else make the first copy several times as long. */
static void touch_pages(saver *s, int64_t bytes)
{
    enum { PAGE = 4096 };
    char *base = arena_base(s->arena);
    int64_t pages = (bytes + CHECKPOINT_WRITER_BUFFER) / PAGE;
#pragma omp parallel for num_threads(executor_context(s->options.executor)->threads) schedule(static)
    for (int64_t i = 0; i < pages; i++)
        *(volatile char *)(base + i * PAGE) = 0;
}

/* Waits for the thread's copies before the state changes; the device orders its own copies itself. */
static void wait_for_copy(void *context)
{
    saver *s = context;
    if (s->stage != SHARES)
        return;
    double began = clock_seconds();
    worker_lock(&s->worker);
    while (!s->taken)
        worker_wait(&s->worker);
    worker_unlock(&s->worker);
    s->stall += clock_seconds() - began;
}

static status open_parts(saver *s, checkpoint_piece *pieces, int count)
{
    const saver_options *o = &s->options;
    const char *base = executor_context(o->executor)->arena;
    checkpoint_piece *more = pieces + count - o->more_count;
    int own = count - o->more_count;
    int64_t own_bytes = lay_ranges(&s->ranges, &s->range_count, pieces, own, base, NULL);
    int64_t bytes = o->asynchronous ? own_bytes + lay_more(more, o->more_count, NULL) : 0;
    TRY(arena_open(&s->arena, bytes + CHECKPOINT_WRITER_BUFFER));
    s->copy = o->asynchronous ? arena_base(s->arena) : NULL;
    touch_pages(s, bytes);
    if (bytes > 0 && s->interface->aside.pin)
        TRY(s->interface->aside.pin(s->device, s->copy, bytes));
    if (s->copy) {
        free(s->ranges);
        lay_ranges(&s->ranges, &s->range_count, pieces, own, base, s->copy);
        lay_more(more, o->more_count, s->copy + own_bytes);
        s->more_copy = s->copy + own_bytes;
    }
    s->pinned = bytes > 0 && s->interface->aside.pin;
    for (int i = 0; i < s->range_count; i++)
        s->beside = s->beside || !by_device(s, &s->ranges[i]);
    char *buffer = s->buffer = (char *)arena_base(s->arena) + bytes;
    s->writer = checkpoint_writer_open(&(checkpoint_writer_options){
        .share = {.pieces = pieces, .count = count, .run = o->run, .rank = o->rank, .ranks = o->ranks},
        .extras = o->extras,
        .extra_count = o->extra_count,
        .buffer = buffer,
        .owner = o->owner});
    if (o->rank == 0)
        s->publisher = checkpoint_publisher_open(o->ranks, o->run, buffer, o->owner);
    if (!s->copy)
        return STATUS_OK;
    TRY(worker_start(&s->worker, work_on, s, "writes checkpoints"));
    executor_before_change(o->executor, wait_for_copy, s);
    return STATUS_OK;
}

status saver_open(saver **out, const saver_options *options)
{
    AUTO(saver) *s = must_calloc(1, sizeof *s);
    int count;
    s->options = *options;
    s->interface = executor_device(options->executor, &s->device);
    s->taken = s->copied = true;
    worker_init(&s->worker);
    AUTO_FREE checkpoint_piece *pieces = own_pieces(&count, options->compiled, options->executor);
    for (int i = 0; i < options->more_count; i++)
        APPEND(pieces, count) = options->more[i];
    TRY(open_parts(s, pieces, count));
    *out = TAKE(s);
    return STATUS_OK;
}

/* Removes a save that is given up, on rank 0, unless the folder, and a save of this name, are another run's by now. */
static void clean_save(saver *s)
{
    AUTO_FREE char *message = must_strdup(status_message());
    if (s->options.rank == 0 && !s->memory && lock_check(s->options.owner) == STATUS_OK)
        checkpoint_clean(s->options.folder, s->last.name);
    (void)status_fail(STATUS_FAILED, "%s", message);
}

void saver_close(saver *s)
{
    if (!s)
        return;
    ask_device(s, true);
    worker_close(&s->worker);
    if (s->stage != NONE)
        clean_save(s);
    executor_before_change(s->options.executor, NULL, NULL);
    checkpoint_publisher_close(s->publisher);
    checkpoint_writer_close(s->writer);
    if (s->pinned)
        (void)s->interface->aside.pin(s->device, s->copy, 0);
    arena_close(s->arena);
    json_decref(s->meta);
    free(s->ranges);
    free(s);
}

/* ---- saving ----------------------------------------------------------------------------------------------------- */

void saver_begin(saver *s, int64_t step, json_t *meta, const share_source *memory)
{
    double began = clock_seconds();
    MUST(s->stage == NONE, "%s is still being saved", s->last.name);
    snprintf(s->last.name, sizeof s->last.name, "step-%08lld", (long long)step);
    json_decref(s->meta);
    s->meta = meta;
    s->memory = memory;
    s->last.in_memory = memory != NULL;
    s->stage = SHARES;
    s->copied = s->copy == NULL;
    s->taken = s->copied || !s->beside;
    s->arrived = false;
    s->last.seconds = 0;
    for (int i = 0; i < s->range_count && s->copy; i++)
        if (by_device(s, &s->ranges[i]))
            s->interface->aside.copy(s->device, s->copy + s->ranges[i].to, s->ranges[i].at, s->ranges[i].bytes);
    /* Copies other host memory at once: it changes between steps, where no wait for a copy exists. */
    char *to = s->more_copy;
    for (int i = 0; s->copy && i < s->options.more_count; i++) {
        int64_t bytes = checkpoint_extent(&s->options.more[i]);
        memcpy(to, s->options.more[i].at.data, (size_t)bytes);
        to += aligned(bytes, ALIGNMENT);
    }
    start_work(s);
    s->stall += clock_seconds() - began;
}

saver_progress saver_progress_of(saver *s)
{
    if (!s || s->stage == NONE)
        return SAVER_IDLE;
    ask_device(s, false);
    WORKER_HELD(&s->worker);
    return s->working ? SAVER_WORKING : s->result == STATUS_OK ? SAVER_READY : SAVER_FAILED;
}

void saver_wait(saver *s)
{
    double began = clock_seconds();
    ask_device(s, true);
    worker_lock(&s->worker);
    while (s->working)
        worker_wait(&s->worker);
    worker_unlock(&s->worker);
    s->stall += clock_seconds() - began;
}

status saver_result(const saver *s)
{
    return s->result == STATUS_OK ? STATUS_OK
                                  : status_fail(s->result, "checkpoint %s not saved: %s", s->last.name, s->message);
}

bool saver_next(saver *s, bool any_working, bool any_failed)
{
    if (s->stage == NONE || any_working)
        return false;
    if (s->stage == SHARES && !any_failed && !s->memory) {
        s->stage = PUBLISHING;
        if (s->options.rank == 0)
            start_work(s);
        return false;
    }
    s->stage = NONE;
    if (any_failed)
        clean_save(s);
    return true;
}

const saver_facts *saver_last(const saver *s)
{
    return &s->last;
}

double saver_stall(saver *s)
{
    double stall = s ? s->stall : 0;
    if (s)
        s->stall = 0;
    return stall;
}
