#include "parallel/watchdog.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/clock.h"
#include "memory/log.h"
#include "parallel/watchdog_link.h"

/* A thread that was away longer than this (or half of hang_seconds) was stopped itself, or its machine was: what it missed proves
 * nothing. Who is gone when it wakes, or soon after, gave this rank up: a launcher that ends a job wakes the frozen first. */
#define AWAY_SECONDS 2.0
#define SOON_SECONDS 3.0
/* A rank that sees itself stuck, and hears no verdict for so much longer, ends alone. */
#define GRACE_SECONDS 4.0

enum { LISTED = 64 };

/* Why a rank is to blame. */
typedef enum verdict { VERDICT_GONE, VERDICT_SILENT, VERDICT_STUCK, VERDICT_CIRCLE, VERDICT_LEFT, VERDICTS } verdict;

static const char *const verdicts[VERDICTS] = {
    [VERDICT_GONE] = "is gone: it was killed, crashed, or exited",
    [VERDICT_SILENT] = "does not answer: it is frozen, or its machine is gone",
    [VERDICT_STUCK] = "is behind: it makes no progress, and is not known to wait for another rank",
    [VERDICT_CIRCLE] = "is part of a circle of ranks that wait for one another",
    [VERDICT_LEFT] = "is waited for, but has left the job",
};

/* What is known of one rank. */
typedef struct report {
    watchdog_frame last;
    double heard, moved; /* when: the last frame; the last progress */
    bool left;
} report;

struct watchdog {
    comm *job;
    int rank, ranks;
    double hang, beat; /* seconds */

    /* The slot. `version` is odd while the executor writes; half of it counts the positions. */
    _Atomic uint64_t version;
    _Atomic int64_t step;
    _Atomic int micro_batch;
    const char *_Atomic action;
    const char *_Atomic op;
    _Atomic int suspended;
    _Atomic uint64_t resumes;

    watchdog_link *links; /* [ranks] at rank 0; [1] elsewhere */
    report *reports;      /* [ranks] at rank 0; elsewhere [1], of rank 0 */
    report own;
    double woke;           /* when the thread last came back from having been away */
    struct pollfd *polled; /* one a link, and the pipe's end */
    int pipe[2];           /* closing `pipe[1]` asks the thread to end */
    pthread_t thread;
};

/* ---- the slot ---- */

/* The fields' releases keep them behind the odd version, the readers' acquires before the second look at it: no fences,
 * which the thread sanitizer does not know. */
void watchdog_at(watchdog *w, const watchdog_position *p)
{
    uint64_t version = atomic_load_explicit(&w->version, memory_order_relaxed);
    atomic_store_explicit(&w->version, version + 1, memory_order_relaxed);
    atomic_store_explicit(&w->step, p->step, memory_order_release);
    atomic_store_explicit(&w->micro_batch, p->micro_batch, memory_order_release);
    atomic_store_explicit(&w->action, p->action, memory_order_release);
    atomic_store_explicit(&w->op, p->op, memory_order_release);
    atomic_store_explicit(&w->version, version + 2, memory_order_release);
}

/* Read it untorn; a writer that was frozen in between leaves the odd version: then what is there is good enough. */
static uint64_t read_slot(const watchdog *w, watchdog_position *p)
{
    for (int tries = 0;; tries++) {
        uint64_t before = atomic_load_explicit(&w->version, memory_order_acquire);
        p->step = atomic_load_explicit(&w->step, memory_order_acquire);
        p->micro_batch = atomic_load_explicit(&w->micro_batch, memory_order_acquire);
        p->action = atomic_load_explicit(&w->action, memory_order_acquire);
        p->op = atomic_load_explicit(&w->op, memory_order_acquire);
        uint64_t after = atomic_load_explicit(&w->version, memory_order_relaxed);
        if (tries == 1000 || (before % 2 == 0 && after == before))
            return before / 2;
    }
}

void watchdog_suspend(watchdog *w)
{
    if (w)
        atomic_fetch_add(&w->suspended, 1);
}

void watchdog_resume(watchdog *w)
{
    if (!w)
        return;
    atomic_fetch_add(&w->resumes, 1); /* first: a resume is progress, the clock starts anew */
    MUST(atomic_fetch_sub(&w->suspended, 1) > 0, "the watchdog is resumed more often than suspended");
}

static void own_frame(watchdog *w, watchdog_frame *f, watchdog_frame_kind kind)
{
    watchdog_position p;
    *f = (watchdog_frame){.kind = kind, .rank = w->rank, .waiting_for = comm_waiting_for(w->job)};
    f->suspended = atomic_load(&w->suspended);
    f->moves = read_slot(w, &p) + atomic_load(&w->resumes);
    f->step = p.step;
    f->micro_batch = p.micro_batch;
    snprintf(f->action, sizeof f->action, "%s", p.action ? p.action : "");
    snprintf(f->op, sizeof f->op, "%s", p.op ? p.op : "");
}

static void describe(char *out, size_t bytes, const watchdog_frame *f)
{
    char part[32] = "", wait[48] = "";
    if (f->micro_batch >= 0)
        snprintf(part, sizeof part, ", micro-batch %d", f->micro_batch);
    if (f->waiting_for >= 0)
        snprintf(wait, sizeof wait, ", waiting for rank %d", f->waiting_for);
    snprintf(out, bytes, "step %lld%s%s%s%s%s%s", (long long)f->step, part, *f->action ? ", " : "", f->action,
             *f->op ? ", op " : "", f->op, wait);
}

void watchdog_where(char *out, int bytes, void *w)
{
    watchdog_frame f;
    own_frame(w, &f, WATCHDOG_BEAT);
    describe(out, (size_t)bytes, &f);
}

/* ---- the end ---- */

static int link_count(const watchdog *w)
{
    return w->rank ? 1 : w->ranks;
}

/* Read until the others have closed. A socket closed with unread bytes in it is reset, and the reset overtakes our last
 * frame. */
static void drain(watchdog *w, double seconds)
{
    double until = clock_seconds() + seconds;
    for (int open = 1; open && clock_seconds() < until;) {
        open = 0;
        for (int i = 0; i < link_count(w); i++) {
            watchdog_frame f;
            int got = 0;
            while (w->links[i].fd >= 0 && (got = watchdog_link_receive(&w->links[i], &f)) > 0)
                continue;
            if (got < 0)
                watchdog_link_close(&w->links[i]);
            w->polled[i] = (struct pollfd){.fd = w->links[i].fd, .events = POLLIN};
            open += w->links[i].fd >= 0;
        }
        if (open)
            poll(w->polled, (nfds_t)link_count(w), 50);
    }
}

static void say_bye(watchdog *w)
{
    watchdog_frame bye;
    own_frame(w, &bye, WATCHDOG_BYE);
    for (int i = 0; i < link_count(w); i++) {
        watchdog_link_send(&w->links[i], &bye);
        watchdog_link_finish(&w->links[i]);
    }
}

/* Not through the logger: a thread that is stuck may hold its stream. One write a line. */
static void say(const watchdog *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(const watchdog *w, const char *format, ...)
{
    char line[1024];
    int used = snprintf(line, sizeof line, "phalanx: rank %d: watchdog: ", w->rank);
    va_list arguments;
    va_start(arguments, format);
    used += vsnprintf(line + used, sizeof line - (size_t)used - 1, format, arguments);
    va_end(arguments);
    used = used < (int)sizeof line - 1 ? used : (int)sizeof line - 2;
    line[used++] = '\n';
    if (write(STDERR_FILENO, line, (size_t)used) < 0)
        return; /* nobody listens */
}

static void take_own(watchdog *w, double time)
{
    watchdog_frame f;
    own_frame(w, &f, WATCHDOG_BEAT);
    if (f.moves != w->own.last.moves || f.suspended)
        w->own.moved = time;
    w->own.last = f;
    w->own.heard = time;
}

/* At rank 0: the verdict, everybody's position, the same to the others, and out. */
static _Noreturn void end_job(watchdog *w, int culprit, verdict why)
{
    char where[256];
    double time = clock_seconds();
    const report *r = &w->reports[culprit];
    take_own(w, time);
    w->reports[0] = w->own;
    describe(where, sizeof where, &r->last);
    say(w, "rank %d %s; last at %s (no progress for %.1f s). The job ends.", culprit, verdicts[why], where,
        time - r->moved);
    for (int i = 0, listed = 0; i < w->ranks; i++) {
        if (i == culprit || w->reports[i].left)
            continue;
        if (listed++ == LISTED) {
            say(w, "and the other ranks, %d in all", w->ranks);
            break;
        }
        describe(where, sizeof where, &w->reports[i].last);
        say(w, "rank %d: %s%s", i, where, w->links[i].fd < 0 && i ? " (gone)" : "");
    }
    watchdog_frame end = r->last;
    end.kind = WATCHDOG_END;
    end.rank = culprit;
    end.verdict = (int)why;
    for (int i = 1; i < w->ranks; i++)
        watchdog_link_send(&w->links[i], &end);
    drain(w, 1);
    _exit(1);
}

/* Elsewhere: rank 0's verdict, or this rank's own on rank 0. */
static _Noreturn void end_here(watchdog *w, const watchdog_frame *culprit, verdict why)
{
    char where[256], here[256];
    take_own(w, clock_seconds());
    describe(where, sizeof where, culprit);
    describe(here, sizeof here, &w->own.last);
    say(w, "rank %d %s; last at %s; this rank is at %s. The job ends.", culprit->rank, verdicts[why], where, here);
    _exit(1);
}

/* ---- rank 0: the hub ---- */

/* From a rank without progress follow who waits for whom: to a rank that waits for nobody, or into a circle. */
static int find_culprit(const watchdog *w, int from, double time, verdict *why)
{
    for (int i = 0; i < w->ranks; i++)
        if (!w->reports[i].left && time - w->reports[i].heard > 4 * w->beat) {
            *why = VERDICT_SILENT;
            return i;
        }
    int at = from;
    for (int steps = 0; steps <= w->ranks; steps++) {
        int next = w->reports[at].last.waiting_for;
        if (next < 0 || next >= w->ranks) {
            *why = VERDICT_STUCK;
            return at;
        }
        at = next;
        if (w->reports[at].left) {
            *why = VERDICT_LEFT;
            return at;
        }
    }
    *why = VERDICT_CIRCLE;
    return at;
}

/* Of the ranks that have stopped, beats being that coarse: the one that has come least far. On devices nobody knows who waits for
 * whom, but ranks with the same program stop one behind the other. */
static int least_advanced(const watchdog *w, double time)
{
    int at = -1;
    for (int i = 0; i < w->ranks; i++) {
        const report *r = &w->reports[i];
        if (r->left || time - r->moved <= w->hang - 2 * w->beat)
            continue;
        const watchdog_frame *a = &r->last, *b = at < 0 ? NULL : &w->reports[at].last;
        if (!b || a->step < b->step || (a->step == b->step && a->moves < b->moves))
            at = i;
    }
    return at;
}

static void judge(watchdog *w, double time)
{
    bool excused = false;
    for (int i = 0; i < w->ranks; i++) {
        const report *r = &w->reports[i];
        excused |= !r->left && r->last.suspended && time - r->heard < w->hang;
    }
    for (int i = 0; i < w->ranks; i++) {
        const report *r = &w->reports[i];
        verdict why = VERDICT_SILENT;
        if (r->left)
            continue;
        if (time - r->heard > w->hang)
            end_job(w, i, why);
        if (!excused && time - r->moved > w->hang) {
            int culprit = find_culprit(w, least_advanced(w, time), time, &why);
            end_job(w, culprit, why);
        }
    }
    for (int i = 0; excused && i < w->ranks; i++)
        w->reports[i].moved = time;
}

static void hear_from(watchdog *w, int rank, double time)
{
    watchdog_frame f;
    report *r = &w->reports[rank];
    int got;
    while ((got = watchdog_link_receive(&w->links[rank], &f)) > 0) {
        r->heard = time;
        r->left |= f.kind == WATCHDOG_BYE;
        if (f.kind != WATCHDOG_BEAT)
            continue;
        if (f.moves != r->last.moves)
            r->moved = time;
        r->last = f;
    }
    if (got == 0)
        return;
    watchdog_link_close(&w->links[rank]);
    bool given_up = time - w->woke < SOON_SECONDS;
    if (!r->left)
        end_job(w, given_up ? 0 : rank, given_up ? VERDICT_SILENT : VERDICT_GONE);
}

static bool anyone_suspended(const watchdog *w)
{
    for (int i = 0; i < w->ranks; i++)
        if (!w->reports[i].left && w->reports[i].last.suspended)
            return true;
    return false;
}

static void hub_turn(watchdog *w, double time, bool beats)
{
    for (int i = 1; i < w->ranks; i++)
        if (w->links[i].fd >= 0)
            hear_from(w, i, time);
    take_own(w, time);
    w->reports[0] = w->own;
    if (beats) {
        watchdog_frame f = w->own.last;
        f.suspended = anyone_suspended(w);
        for (int i = 1; i < w->ranks; i++)
            watchdog_link_send(&w->links[i], &f);
    }
    judge(w, time);
    w->own.moved = w->reports[0].moved;
}

/* ---- the other ranks ---- */

static void leaf_turn(watchdog *w, double time, bool beats)
{
    watchdog_frame f;
    report *hub = &w->reports[0];
    int got;
    while ((got = watchdog_link_receive(&w->links[0], &f)) > 0) {
        hub->heard = time;
        if (f.kind == WATCHDOG_BYE) {
            hub->left = true;
            say_bye(w);
        }
        if (f.kind == WATCHDOG_END && f.verdict >= 0 && f.verdict < VERDICTS)
            end_here(w, &f, (verdict)f.verdict);
        if (f.kind == WATCHDOG_BEAT)
            hub->last = f;
    }
    if (got < 0 && w->links[0].fd >= 0) {
        watchdog_link_close(&w->links[0]);
        if (!hub->left && time - w->woke < SOON_SECONDS)
            end_here(w, &w->own.last, VERDICT_SILENT);
        if (!hub->left)
            end_here(w, &hub->last, VERDICT_GONE);
    }
    take_own(w, time);
    if (beats)
        watchdog_link_send(&w->links[0], &w->own.last);
    if (!hub->left && time - hub->heard > w->hang)
        end_here(w, &hub->last, VERDICT_SILENT);
    if (hub->last.suspended && !hub->left)
        w->own.moved = time;
    if (time - w->own.moved > w->hang + GRACE_SECONDS) {
        watchdog_frame own = w->own.last;
        end_here(w, &own, VERDICT_STUCK);
    }
}

/* ---- the thread ---- */

/* Everything heard until now is forgiven: at the start, and after this process itself was stopped. */
static void forgive(watchdog *w, double time)
{
    w->own.heard = w->own.moved = time;
    for (int i = 0; i < link_count(w); i++)
        w->reports[i].heard = w->reports[i].moved = time;
}

static void *watch(void *argument)
{
    watchdog *w = argument;
    int links = link_count(w);
    double last = clock_seconds(), beaten = 0, away = w->hang / 2 < AWAY_SECONDS ? w->hang / 2 : AWAY_SECONDS;
    forgive(w, last);
    for (bool on = true; on;) {
        for (int i = 0; i < links; i++)
            w->polled[i] = (struct pollfd){.fd = w->links[i].fd, .events = POLLIN};
        w->polled[links] = (struct pollfd){.fd = w->pipe[0], .events = POLLIN};
        poll(w->polled, (nfds_t)links + 1, (int)(w->beat * 500));
        on = !w->polled[links].revents;
        double time = clock_seconds();
        if (time - last > away + w->beat) {
            forgive(w, time);
            w->woke = time;
        }
        last = time;
        bool beats = time - beaten >= w->beat;
        beaten = beats ? time : beaten;
        (w->rank ? leaf_turn : hub_turn)(w, time, beats);
    }
    if (!w->reports[0].left)
        say_bye(w);
    drain(w, 2);
    return NULL;
}

static void release(watchdog *w)
{
    for (int i = 0; w->links && i < link_count(w); i++)
        watchdog_link_close(&w->links[i]);
    close(w->pipe[0]);
    free(w->links);
    free(w->reports);
    free(w->polled);
    free(w);
}

status watchdog_open(watchdog **out, comm *c, double hang_seconds)
{
    watchdog *w = must_calloc(1, sizeof *w);
    w->job = c;
    w->rank = comm_rank(c);
    w->ranks = comm_ranks(c);
    w->hang = hang_seconds;
    w->woke = -SOON_SECONDS;
    w->beat = hang_seconds / 8 < 0.5 ? hang_seconds / 8 : 0.5;
    w->micro_batch = -1;
    w->own.last.waiting_for = w->own.last.micro_batch = -1;
    unsigned long links = (unsigned long)link_count(w);
    w->links = must_calloc(links, sizeof *w->links);
    w->reports = must_calloc(links, sizeof *w->reports);
    w->polled = must_calloc(links + 1, sizeof *w->polled);
    for (unsigned long i = 0; i < links; i++)
        w->reports[i].last = (watchdog_frame){.rank = (int)i, .micro_batch = -1, .waiting_for = -1};
    MUST(pipe2(w->pipe, O_CLOEXEC) == 0, "no pipe");
    status s = watchdog_link_star(w->links, c);
    /* signals are for the thread that trains */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (s == STATUS_OK && pthread_create(&w->thread, NULL, watch, w))
        s = status_fail(STATUS_FAILED, "cannot start the watchdog's thread");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (s != STATUS_OK) {
        close(w->pipe[1]);
        release(w);
        return s;
    }
    *out = w;
    return STATUS_OK;
}

void watchdog_close(watchdog *w)
{
    if (!w)
        return;
    close(w->pipe[1]);
    pthread_join(w->thread, NULL);
    release(w);
}
