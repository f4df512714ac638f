#include "parallel/watch/watchdog.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "memory/clock.h"
#include "memory/log.h"
#include "parallel/watch/watchdog_internal.h"

/* A thread that was away longer than this (or half of the shortest limit) was stopped itself, or its machine was:
 * frames missing meanwhile prove no failure. Ranks gone when it wakes, or soon after, gave this rank up: a launcher
 * that ends a job wakes the frozen first. */
#define AWAY_SECONDS    2.0
#define SOON_SECONDS    3.0
#define WARN_SECONDS    60.0
#define HEARSAY_SECONDS 2.0

/* ---- the flight record ---- */

/* Fields are atomic so that a reader in another thread is no data race; relaxed, so that they cost the same as plain
 * ones. */
typedef struct slot {
    _Atomic int64_t time, step, bytes;
    _Atomic int32_t micro_batch, peer;
    const char *_Atomic action;
    const char *_Atomic op;
    const char *_Atomic kind;
} slot;

struct history {
    _Atomic uint64_t added;
    slot slots[HISTORY_ENTRIES];
};

history *history_new(void)
{
    return must_calloc(1, sizeof(history));
}

void history_free(history *h)
{
    free(h);
}

#define STORE(member) atomic_store_explicit(&s->member, e->member, memory_order_relaxed)
#define LOAD(member)  .member = atomic_load_explicit(&s->member, memory_order_relaxed)

void history_add(history *h, const watchdog_position *e)
{
    struct timespec now;
    uint64_t added = atomic_load_explicit(&h->added, memory_order_relaxed);
    slot *s = &h->slots[added % HISTORY_ENTRIES];
    clock_gettime(CLOCK_MONOTONIC, &now);
    atomic_store_explicit(&s->time, (int64_t)now.tv_sec * 1000000000 + now.tv_nsec, memory_order_relaxed);
    STORE(step);
    STORE(bytes);
    STORE(micro_batch);
    STORE(peer);
    STORE(action);
    STORE(op);
    STORE(kind);
    atomic_store_explicit(&h->added, added + 1, memory_order_release);
}

int history_read(const history *h, watchdog_position *out)
{
    uint64_t added = atomic_load_explicit(&h->added, memory_order_acquire);
    uint64_t count = added < HISTORY_ENTRIES ? added : HISTORY_ENTRIES;
    for (uint64_t i = 0; i < count; i++) {
        const slot *s = &h->slots[(added - count + i) % HISTORY_ENTRIES];
        out[i] = (watchdog_position){LOAD(time),  LOAD(step),   LOAD(micro_batch), LOAD(peer),
                                     LOAD(bytes), LOAD(action), LOAD(op),          LOAD(kind)};
    }
    return (int)count;
}

/* ---- where this rank is ---- */

/* The fields' releases keep them after the odd version, the readers' acquires before the second read of it: no fences,
 * which the thread sanitizer does not know. */
#define PUT(member, value) atomic_store_explicit(&s->member, value, memory_order_release)

static uint64_t begin_store(watchdog_slot *s)
{
    uint64_t version = atomic_load_explicit(&s->version, memory_order_relaxed);
    atomic_store_explicit(&s->version, version + 1, memory_order_relaxed);
    return version + 2;
}

static void slot_move(watchdog_slot *s, const watchdog_position *p)
{
    uint64_t version = begin_store(s);
    PUT(step, p->step);
    PUT(micro_batch, p->micro_batch);
    PUT(action, p->action);
    PUT(op, p->op);
    PUT(version, version);
}

static void slot_enter(watchdog_slot *s, incident_phase phase, bool storage, int64_t step, const char *what)
{
    uint64_t version = begin_store(s);
    PUT(phase, (int)phase);
    PUT(storage, storage);
    PUT(step, step);
    PUT(micro_batch, -1);
    PUT(action, what);
    PUT(op, (const char *)NULL);
    PUT(version, version);
}

static void note_at(watchdog *w, const watchdog_position *p)
{
    watchdog_position noted = *p;
    noted.peer = p->bytes ? p->peer : -1;
    history_add(w->history, &noted);
}

void watchdog_at(watchdog *w, const watchdog_position *p)
{
    if (!w)
        return;
    slot_move(&w->slot, p);
    note_at(w, p);
}

void watchdog_note(watchdog *w, const watchdog_position *p)
{
    if (w)
        note_at(w, p);
}

void watchdog_enter(watchdog *w, incident_phase phase, bool storage, int64_t step, const char *what)
{
    if (!w)
        return;
    slot_enter(&w->slot, phase, storage, step, what);
    note_at(w, &(watchdog_position){.step = step, .micro_batch = -1, .action = incident_phase_name(phase), .op = what});
}

void watchdog_beside(watchdog *w, const char *what)
{
    if (!w)
        return;
    atomic_store(&w->beside_what, what);
    atomic_fetch_add(&w->beside_moves, 1);
}

void watchdog_limit(watchdog *w, const watchdog_limits *limits)
{
    for (int i = 0; w && i < INCIDENT_PHASES; i++)
        atomic_store(&w->limit[i], limits->phase[i]);
    if (w)
        atomic_store(&w->silent, limits->silent);
}

/* Seconds between frames. */
static double beat_of(const watchdog *w)
{
    double eighth = watchdog_end_shortest(w) / 8;
    return eighth < 0.5 ? eighth : 0.5;
}

void watchdog_name_device(watchdog *w, const char *device)
{
    if (!w || w->named)
        return;
    snprintf(w->device, sizeof w->device, "%s", device);
    atomic_store(&w->named, true);
}

void watchdog_name_run(watchdog *w, const char *run)
{
    if (!w || atomic_load(&w->started))
        return;
    snprintf(w->run, sizeof w->run, "%s", run);
    atomic_store(&w->started, true);
}

void watchdog_name_folder(watchdog *w, const char *folder)
{
    if (!w || atomic_load(&w->placed))
        return;
    snprintf(w->folder, sizeof w->folder, "%s", folder);
    atomic_store(&w->placed, true);
}

const char *watchdog_run(const watchdog *w)
{
    return w && atomic_load(&w->started) ? w->run : "";
}

const char *watchdog_host(const watchdog *w)
{
    return w ? w->host : "";
}

int watchdog_read_history(const watchdog *w, watchdog_position *out)
{
    return history_read(w->history, out);
}

void watchdog_where(char *out, int bytes, void *w)
{
    watchdog_frame f;
    watchdog_end_frame(w, &f, WATCHDOG_BEAT);
    watchdog_end_describe(out, (size_t)bytes, &f);
}

incident watchdog_incident(watchdog *w, watchdog_text *text, incident_verdict verdict, const char *words)
{
    watchdog_frame f;
    if (!w)
        return (incident){.verdict = verdict, .rank = log_rank(), .micro_batch = -1, .waiting_for = -1, .words = words};
    watchdog_end_frame(w, &f, WATCHDOG_BEAT);
    incident i = watchdog_end_incident(&f, verdict, w->ranks, 0, words);
    memcpy(text->action, f.action, sizeof text->action);
    memcpy(text->op, f.op, sizeof text->op);
    i.host = w->host;
    i.device = w->device;
    i.run = watchdog_run(w);
    i.action = text->action;
    i.op = text->op;
    return i;
}

/* True if this rank writes for its node, because rank 0 cannot write. */
static bool leads_node(const struct watchdog *w)
{
    const comm *job = atomic_load(&w->job);
    return w->rank == 1 || (job ? comm_local_rank(job) == 0 : w->rank == 0);
}

/* ---- a rank's view of itself ---- */

/* Warns once for each time that storage holds a rank up, a minute after it began, or earlier if the limit is short: a
 * person may help before the job ends. `warned`: time of the last progress when the last warning was given. */
static void warn_of_storage(watchdog *w, double *warned, const char *what, double moved, double time,
                            incident_phase phase)
{
    double limit = atomic_load(&w->limit[phase]), quiet = time - moved;
    bool placed = atomic_load(&w->placed);
    if (moved == *warned || quiet < (limit / 10 < WARN_SECONDS ? limit / 10 : WARN_SECONDS))
        return;
    *warned = moved;
    log_warn(
        "rank %d on %s has been %s%s%s for %.1f s: the storage is slow, or does not answer; the job ends after %.0f "
        "s of it (run.%s_seconds)",
        w->rank, w->host, what, placed ? " in " : "", placed ? w->folder : "", quiet, limit,
        phase == DURING_SAVE   ? "save"
        : phase == DURING_LOAD ? "load"
                               : "setup");
}

/* Watches work beside the training thread: no rank waits for it, so other checks miss it. */
static void watch_beside(watchdog *w, double time)
{
    uint64_t moves = atomic_load(&w->beside_moves);
    const char *what = atomic_load(&w->beside_what);
    if (moves != w->beside.moves || !what)
        w->beside.moved = time;
    w->beside.moves = moves;
    double quiet = time - w->beside.moved;
    if (what)
        warn_of_storage(w, &w->beside_warned, what, w->beside.moved, time, DURING_SAVE);
    if (quiet <= atomic_load(&w->limit[DURING_SAVE]))
        return;
    int none = 0;
    if (!atomic_compare_exchange_strong(&w->failing, &none, WATCHDOG_FAILING))
        return;
    w->fail_verdict = INCIDENT_STORAGE;
    snprintf(w->fail_words, sizeof w->fail_words, "the storage does not answer (%s, for %.1f s)", what, quiet);
    atomic_store(&w->failing, WATCHDOG_FAILED);
}

/* Makes a frame of this rank's failure; false if it has not failed. */
static bool failed_frame(watchdog *w, watchdog_frame *f)
{
    if (atomic_load(&w->failing) != WATCHDOG_FAILED)
        return false;
    watchdog_end_frame(w, f, WATCHDOG_FAIL);
    f->verdict = w->fail_verdict;
    memcpy(f->words, w->fail_words, sizeof f->words);
    return true;
}

void watchdog_fail(watchdog *w, incident_verdict verdict, const char *words)
{
    int none = 0;
    size_t length = 0;
    if (!w || !atomic_compare_exchange_strong(&w->failing, &none, WATCHDOG_FAILING))
        return;
    w->fail_verdict = (int)verdict;
    for (; words[length] && length < sizeof w->fail_words - 1; length++)
        w->fail_words[length] = words[length];
    w->fail_words[length] = 0;
    bool waits = !pthread_equal(pthread_self(), w->thread); /* it cannot wait for itself */
    atomic_store(&w->fail_waits, waits);
    atomic_store(&w->failing, WATCHDOG_FAILED);
    if (!waits || write(w->pipe[1], "f", 1) < 0)
        return;
    for (int i = 0; i < 500 && atomic_load(&w->failing) != WATCHDOG_SAID; i++)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

/* ---- rank 0: the hub; also a rank alone ---- */

/* Delays the verdict on a rank that has only lost touch with another, so that a rank that knows more can report. */
static void hear_failure(watchdog *w, const watchdog_frame *f, double time)
{
    if (f->verdict != INCIDENT_LINK)
        watchdog_end_job(w, f->rank, CAUSE_FAILED);
    if (w->lost_at > 0)
        return;
    w->lost = *f;
    w->lost_at = time;
}

static void hear_from(watchdog *w, int rank, double time)
{
    watchdog_frame f;
    watchdog_report *r = &w->reports[rank];
    int got;
    while ((got = watchdog_link_receive(&w->links[rank], &f)) > 0) {
        f.rank = rank;
        r->heard = time;
        r->left |= f.kind == WATCHDOG_BYE;
        if (f.kind != WATCHDOG_BEAT && f.kind != WATCHDOG_FAIL)
            continue;
        if (f.moves != r->last.moves)
            r->moved = time;
        r->last = f;
        if (f.kind == WATCHDOG_FAIL)
            hear_failure(w, &f, time);
    }
    if (got == 0)
        return;
    watchdog_link_close(&w->links[rank]);
    bool given_up = time - w->woke < SOON_SECONDS;
    if (!r->left)
        watchdog_end_job(w, given_up ? 0 : rank, given_up ? CAUSE_SILENT : CAUSE_GONE);
}

static void hub_turn(watchdog *w, double time, bool beats)
{
    int culprit;
    watchdog_cause why;
    watchdog_limits limits = watchdog_end_limits(w);
    for (int i = 1; i < w->ranks; i++)
        if (w->links[i].fd >= 0)
            hear_from(w, i, time);
    watchdog_end_look(w, time);
    w->reports[0] = w->own;
    if (failed_frame(w, &w->reports[0].last))
        hear_failure(w, &w->reports[0].last, time);
    if (w->lost_at > 0 && time - w->lost_at >= HEARSAY_SECONDS) {
        w->reports[w->lost.rank].last = w->lost;
        watchdog_end_job(w, w->lost.rank, CAUSE_FAILED);
    }
    if (beats) {
        watchdog_frame f = w->own.last;
        f.patience = (float)watchdog_judge_patience(w->reports, w->ranks, &limits);
        for (int i = 1; i < w->ranks; i++)
            watchdog_link_send(&w->links[i], &f);
    }
    if (watchdog_judge(&culprit, &why, w->reports, w->ranks, time, &limits, beat_of(w)))
        watchdog_end_job(w, culprit, why);
    w->own.moved = w->reports[0].moved;
}

/* ---- the other ranks ---- */

static void hear_hub(watchdog *w, double time)
{
    watchdog_frame f;
    watchdog_report *hub = &w->reports[0];
    int got;
    while ((got = watchdog_link_receive(&w->links[0], &f)) > 0) {
        hub->heard = time;
        if (f.kind == WATCHDOG_BYE) {
            hub->left = true;
            watchdog_end_bye(w);
        }
        if (f.kind == WATCHDOG_END && f.cause >= 0 && f.cause < WATCHDOG_CAUSES)
            watchdog_end_here(w, &f, (watchdog_cause)f.cause, f.quiet, false);
        if (f.kind == WATCHDOG_BEAT) {
            hub->last = f;
            w->patience = f.patience;
        }
    }
    if (got == 0 || w->links[0].fd < 0)
        return;
    watchdog_link_close(&w->links[0]);
    if (!hub->left && time - w->woke < SOON_SECONDS)
        watchdog_end_here(w, &w->own.last, CAUSE_SILENT, 0, true);
    if (!hub->left)
        watchdog_end_here(w, &hub->last, CAUSE_GONE, time - hub->heard, leads_node(w));
}

static void leaf_turn(watchdog *w, double time, bool beats)
{
    watchdog_frame own;
    watchdog_report *hub = &w->reports[0];
    hear_hub(w, time);
    watchdog_end_look(w, time);
    own = w->own.last;
    if (!w->told && failed_frame(w, &own)) {
        w->told = true;
        watchdog_link_send(&w->links[0], &own);
        w->own.moved = time; /* rank 0 judges; otherwise this rank does after the grace */
    } else if (beats) {
        watchdog_link_send(&w->links[0], &own);
    }
    if (!hub->left && time - hub->heard > atomic_load(&w->silent))
        watchdog_end_here(w, &hub->last, CAUSE_SILENT, time - hub->heard, leads_node(w));
    double limit = atomic_load(&w->limit[own.phase]);
    if (w->told)
        limit = 0;
    else if (!hub->left && w->patience > limit)
        limit = w->patience;
    if (time - w->own.moved > limit + WATCHDOG_GRACE) {
        bool failed = failed_frame(w, &own);
        watchdog_end_here(w, &own, failed ? CAUSE_FAILED : CAUSE_STUCK, time - w->own.moved, leads_node(w));
    }
}

/* ---- alone: before the job is joined, and after it has been left ---- */

static void alone_turn(watchdog *w, double time)
{
    watchdog_frame own;
    watchdog_end_look(w, time);
    own = w->own.last;
    if (failed_frame(w, &own))
        watchdog_end_here(w, &own, CAUSE_FAILED, 0, true);
    double quiet = time - w->own.moved;
    if (quiet > atomic_load(&w->limit[own.phase]))
        watchdog_end_here(w, &own, CAUSE_STUCK, quiet, w->rank < 2); /* rank 0 may be frozen */
}

/* ---- the thread ---- */

/* Resets all timers: at the start, and after this process itself was stopped. */
static void reset_timers(watchdog *w, double time)
{
    w->own.heard = w->own.moved = w->beside.moved = time;
    for (int i = 0; i < watchdog_end_links(w); i++)
        w->reports[i].heard = w->reports[i].moved = time;
}

static void take_turn(watchdog *w, double time, bool beats)
{
    incident_phase phase = (incident_phase)w->own.last.phase;
    watch_beside(w, time);
    if (w->own.last.storage && w->own.last.waiting_for < 0 &&
        (phase == DURING_SETUP || phase == DURING_LOAD || phase == DURING_SAVE))
        warn_of_storage(w, &w->warned, w->own.last.action, w->own.moved, time, phase);
    if (!w->links)
        alone_turn(w, time);
    else if (w->rank)
        leaf_turn(w, time, beats);
    else
        hub_turn(w, time, beats);
}

static void *watch_links(void *argument)
{
    watchdog *w = argument;
    int links = watchdog_end_links(w);
    double last = clock_seconds(), beaten = 0;
    reset_timers(w, last);
    for (bool on = true; on;) {
        double beat = beat_of(w),
               away = watchdog_end_shortest(w) / 2 < AWAY_SECONDS ? watchdog_end_shortest(w) / 2 : AWAY_SECONDS;
        for (int i = 0; i < links; i++)
            w->polled[i] = (struct pollfd){.fd = w->links[i].fd, .events = POLLIN};
        w->polled[links] = (struct pollfd){.fd = w->pipe[0], .events = POLLIN};
        poll(w->polled, (nfds_t)links + 1, (int)(beat * 500) + 1);
        char byte;
        if (w->polled[links].revents && read(w->pipe[0], &byte, 1) < 0)
            byte = 0; /* it only wakes */
        on = !atomic_load(&w->stopping);
        double time = clock_seconds();
        if (time - last > away + beat) {
            reset_timers(w, time);
            w->woke = time;
        }
        last = time;
        bool beats = time - beaten >= beat;
        beaten = beats ? time : beaten;
        take_turn(w, time, beats);
    }
    if (w->links) {
        if (!w->reports[0].left)
            watchdog_end_bye(w);
        watchdog_end_drain(w, 2);
    }
    return NULL;
}

static status start_thread(watchdog *w)
{
    /* signals are for the training thread */
    sigset_t all, before;
    sigfillset(&all);
    atomic_store(&w->stopping, false);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&w->thread, NULL, watch_links, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed ? status_fail(STATUS_FAILED, "cannot start the watchdog's thread") : STATUS_OK;
}

static void stop_thread(watchdog *w)
{
    atomic_store(&w->stopping, true);
    if (write(w->pipe[1], "s", 1) == 1)
        pthread_join(w->thread, NULL);
}

static void free_links(watchdog *w)
{
    for (int i = 0; i < watchdog_end_links(w); i++)
        watchdog_link_close(&w->links[i]);
    free(w->links);
    free(w->reports);
    w->links = NULL;
    w->reports = NULL;
}

static void free_watchdog(watchdog *w)
{
    free_links(w);
    watchdog_scribe_close(w);
    close(w->pipe[0]);
    close(w->pipe[1]);
    history_free(w->history);
    free(w->polled);
    free(w);
}

/* Uses these links from now on; the thread must not run. */
static void take_links(watchdog *w, int ranks, watchdog_link *links)
{
    unsigned long count = w->rank ? 1 : (unsigned long)ranks;
    w->ranks = ranks;
    w->links = links;
    w->reports = must_calloc(count, sizeof *w->reports);
    w->polled = must_realloc(w->polled, (count + 1) * sizeof *w->polled);
    for (unsigned long i = 0; i < count; i++) {
        w->reports[i].last = (watchdog_frame){.rank = (int)i, .micro_batch = -1, .waiting_for = -1};
        memcpy(w->reports[i].last.host, links[i].host, sizeof links[i].host);
    }
}

status watchdog_open(watchdog **out, const watchdog_limits *limits, watchdog_write *write_down, void *context)
{
    watchdog *w = must_calloc(1, sizeof *w);
    w->rank = log_rank();
    w->ranks = 1;
    w->woke = -SOON_SECONDS;
    w->own.last.waiting_for = w->own.last.micro_batch = -1;
    w->history = history_new();
    w->polled = must_calloc(1, sizeof *w->polled);
    watchdog_limit(w, limits);
    gethostname(w->host, sizeof w->host - 1);
    watchdog_enter(w, DURING_START, false, 0, "reading the configuration");
    MUST(pipe2(w->pipe, O_CLOEXEC) == 0, "no pipe");
    status s = write_down ? watchdog_scribe_open(w, write_down, context) : STATUS_OK;
    if (s == STATUS_OK)
        s = start_thread(w);
    if (s != STATUS_OK) {
        free_watchdog(w);
        return s;
    }
    *out = w;
    return STATUS_OK;
}

/* Restarts the thread with links; meanwhile joining watches itself (watchdog_link_star has limits). */
status watchdog_join(watchdog *w, comm *c)
{
    if (!w)
        return STATUS_OK;
    int rank = comm_rank(c), ranks = comm_ranks(c);
    watchdog_link *links = must_calloc(rank ? 1 : (unsigned long)ranks, sizeof *links);
    status s = watchdog_link_star(links, c); /* still watched alone: a rank may be frozen already */
    if (s != STATUS_OK) {
        free(links);
        return s;
    }
    stop_thread(w);
    w->rank = rank;
    take_links(w, ranks, links);
    atomic_store(&w->job, c);
    return start_thread(w);
}

void watchdog_leave(watchdog *w)
{
    if (!w || !w->links)
        return;
    watchdog_enter(w, DURING_END, false, watchdog_slot_read(&w->slot).at.step, "leaving the job");
    stop_thread(w);
    free_links(w);
    atomic_store(&w->job, NULL);
    MUST(start_thread(w) == STATUS_OK, "%s", status_message());
}

void watchdog_close(watchdog *w)
{
    if (!w)
        return;
    stop_thread(w);
    free_watchdog(w);
}
