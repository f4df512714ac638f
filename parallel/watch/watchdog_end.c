#include "parallel/watch/watchdog_internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "memory/clock.h"
#include "memory/outlet.h"
#include "parallel/comm/comm.h"

/* The incident may take this long to be written: its storage may be the one that does not answer. */
#define WRITE_SECONDS 2.0

enum { LISTED = 64 };

/* ---- who holds up the job ---- */

double watchdog_judge_patience(const watchdog_report *reports, int ranks, const watchdog_limits *limits)
{
    double most = 0, working = 0;
    for (int i = 0; i < ranks; i++) {
        double limit = limits->phase[reports[i].last.phase];
        if (reports[i].left)
            continue;
        most = limit > most ? limit : most;
        if (reports[i].last.waiting_for < 0 && limit > working)
            working = limit;
    }
    return working > 0 ? working : most;
}

/* Follows the chain of waiting ranks from a rank without progress: to a rank that does not wait, or into a circle. */
static int find_culprit(const watchdog_report *reports, int ranks, int from, double time, double beat,
                        watchdog_cause *why)
{
    for (int i = 0; i < ranks; i++)
        if (!reports[i].left && time - reports[i].heard > 4 * beat) {
            *why = CAUSE_SILENT;
            return i;
        }
    int at = from;
    for (int steps = 0; steps <= ranks; steps++) {
        int next = reports[at].last.waiting_for;
        if (next < 0 || next >= ranks) {
            *why = CAUSE_STUCK;
            return at;
        }
        at = next;
        if (reports[at].left) {
            *why = CAUSE_LEFT;
            return at;
        }
    }
    *why = CAUSE_CIRCLE;
    return at;
}

/* Picks the rank to blame among the stopped ones, beats being that coarse: one that waits for files, else the least
 * advanced. Devices do not say which rank waits for which, but ranks with the same program stop one after the other. */
static int least_advanced(const watchdog_report *reports, int ranks, double time, double limit, double beat)
{
    int at = -1;
    for (int i = 0; i < ranks; i++) {
        const watchdog_report *r = &reports[i];
        if (r->left || time - r->moved <= limit - 2 * beat)
            continue;
        const watchdog_frame *a = &r->last, *b = at < 0 ? NULL : &reports[at].last;
        bool files = a->storage && a->waiting_for < 0, theirs = b && b->storage && b->waiting_for < 0;
        if (!b || (files && !theirs) ||
            (files == theirs && (a->step < b->step || (a->step == b->step && a->moves < b->moves))))
            at = i;
    }
    return at;
}

bool watchdog_judge(int *culprit, watchdog_cause *why, watchdog_report *reports, int ranks, double time,
                    const watchdog_limits *limits, double beat)
{
    double patience = watchdog_judge_patience(reports, ranks, limits);
    for (int i = 0; i < ranks; i++) {
        watchdog_report *r = &reports[i];
        if (r->left)
            continue;
        if (time - r->heard > limits->silent) {
            *culprit = i;
            *why = CAUSE_SILENT;
            return true;
        }
        double limit = limits->phase[r->last.phase];
        if (limit < patience)
            r->moved = time;
        else if (time - r->moved > limit) {
            *culprit = find_culprit(reports, ranks, least_advanced(reports, ranks, time, limit, beat), time, beat, why);
            return true;
        }
    }
    return false;
}

/* ---- a rank's report of itself ---- */

#define GET(member) atomic_load_explicit(&s->member, memory_order_acquire)

watchdog_view watchdog_slot_read(const watchdog_slot *s)
{
    for (int tries = 0;; tries++) {
        uint64_t before = atomic_load_explicit(&s->version, memory_order_acquire);
        watchdog_view v = {
            .moves = before / 2,
            .at = {.step = GET(step), .micro_batch = GET(micro_batch), .action = GET(action), .op = GET(op)},
            .phase = (incident_phase)GET(phase),
            .storage = GET(storage)};
        uint64_t after = atomic_load_explicit(&s->version, memory_order_relaxed);
        if (tries == 1000 || (before % 2 == 0 && after == before))
            return v;
    }
}

watchdog_limits watchdog_end_limits(const struct watchdog *w)
{
    watchdog_limits l = {.silent = atomic_load(&w->silent)};
    for (int i = 0; i < INCIDENT_PHASES; i++)
        l.phase[i] = atomic_load(&w->limit[i]);
    return l;
}

double watchdog_end_shortest(const struct watchdog *w)
{
    watchdog_limits l = watchdog_end_limits(w);
    double least = l.silent;
    for (int i = 0; i < INCIDENT_PHASES; i++)
        least = l.phase[i] < least ? l.phase[i] : least;
    return least;
}

void watchdog_end_frame(struct watchdog *w, watchdog_frame *f, watchdog_frame_kind kind)
{
    watchdog_view v = watchdog_slot_read(&w->slot);
    const comm *job = atomic_load(&w->job);
    *f = (watchdog_frame){.kind = kind,
                          .rank = w->rank,
                          .waiting_for = job ? comm_waiting_for(job) : -1,
                          .moves = v.moves,
                          .step = v.at.step,
                          .micro_batch = v.at.micro_batch,
                          .phase = (int32_t)v.phase,
                          .storage = v.storage};
    snprintf(f->action, sizeof f->action, "%s", v.at.action ? v.at.action : "");
    snprintf(f->op, sizeof f->op, "%s", v.at.op ? v.at.op : "");
    memcpy(f->host, w->host, sizeof f->host);
    if (atomic_load(&w->named))
        memcpy(f->device, w->device, sizeof f->device);
}

void watchdog_end_describe(char *out, size_t bytes, const watchdog_frame *f)
{
    char phase[64] = "", part[32] = "", wait[48] = "";
    if (f->phase == DURING_STEP)
        snprintf(phase, sizeof phase, "step %lld", (long long)f->step);
    else if (f->step > 0)
        snprintf(phase, sizeof phase, "%s after step %lld", incident_phase_name((incident_phase)f->phase),
                 (long long)f->step);
    else
        snprintf(phase, sizeof phase, "%s", incident_phase_name((incident_phase)f->phase));
    if (f->micro_batch >= 0)
        snprintf(part, sizeof part, ", micro-batch %d", f->micro_batch);
    if (f->waiting_for >= 0)
        snprintf(wait, sizeof wait, ", waiting for rank %d", f->waiting_for);
    snprintf(out, bytes, "%s%s%s%s%s%s%s", phase, part, *f->action ? ", " : "", f->action, *f->op ? ", op " : "", f->op,
             wait);
}

incident watchdog_end_incident(const watchdog_frame *f, incident_verdict verdict, int ranks, double quiet,
                               const char *words)
{
    return (incident){.verdict = verdict,
                      .phase = (incident_phase)f->phase,
                      .rank = f->rank,
                      .ranks = ranks,
                      .host = f->host,
                      .device = f->device,
                      .step = f->step,
                      .micro_batch = f->micro_batch,
                      .action = f->action,
                      .op = f->op,
                      .waiting_for = f->waiting_for,
                      .quiet = quiet,
                      .words = words};
}

/* ---- writing it down ---- */

static void *run_scribe(void *argument)
{
    watchdog *w = argument;
    for (;;) {
        while (sem_wait(&w->scribe.asked))
            continue;
        if (w->scribe.ends)
            return NULL;
        w->scribe.write(w->scribe.context, &w->scribe.what, w->scribe.ours);
        sem_post(&w->scribe.done);
    }
}

status watchdog_scribe_open(watchdog *w, watchdog_write *write, void *context)
{
    if (!write)
        return STATUS_OK;
    w->scribe.context = context;
    sem_init(&w->scribe.asked, 0, 0);
    sem_init(&w->scribe.done, 0, 0);
    if (pthread_create(&w->scribe.thread, NULL, run_scribe, w))
        return status_fail(STATUS_FAILED, "cannot start the watchdog's second thread");
    w->scribe.write = write;
    return STATUS_OK;
}

/* Has the scribe write the incident, and waits for it for WRITE_SECONDS. */
static void write_down(watchdog *w, const incident *what, bool ours)
{
    if (!w->scribe.write)
        return;
    w->scribe.what = *what;
    w->scribe.ours = ours;
    sem_post(&w->scribe.asked);
    struct timespec until = clock_timespec(clock_seconds() + WRITE_SECONDS);
    while (sem_clockwait(&w->scribe.done, CLOCK_MONOTONIC, &until) && errno == EINTR)
        continue;
}

void watchdog_scribe_close(watchdog *w)
{
    if (!w->scribe.write)
        return;
    w->scribe.ends = true;
    sem_post(&w->scribe.asked);
    pthread_join(w->scribe.thread, NULL);
    sem_destroy(&w->scribe.asked);
    sem_destroy(&w->scribe.done);
}

/* ---- the end ---- */

static const struct {
    const char *words;
    incident_verdict verdict;
} causes[WATCHDOG_CAUSES] = {
    [CAUSE_GONE] = {"is gone: it was killed, crashed, or exited", INCIDENT_DEAD},
    [CAUSE_SILENT] = {"does not answer: it is frozen, or its machine is gone", INCIDENT_FROZEN},
    [CAUSE_STUCK] = {"is stuck: it makes no progress, and is not known to wait for another rank", INCIDENT_FROZEN},
    [CAUSE_CIRCLE] = {"is part of a circle of ranks that wait for one another", INCIDENT_FROZEN},
    [CAUSE_LEFT] = {"is waited for, but has left the job", INCIDENT_DEAD},
    [CAUSE_FAILED] = {"fails", INCIDENT_DEAD},
};

static const char *words_of(watchdog_cause why, const watchdog_frame *culprit)
{
    if (why == CAUSE_FAILED && culprit->verdict == INCIDENT_LINK)
        return "has lost touch with another rank, and none says why";
    if (why == CAUSE_STUCK && culprit->storage)
        return "waits for files: the storage does not answer";
    if (why == CAUSE_STUCK && culprit->phase == DURING_START)
        return "waits to join the job: another rank, or the launcher, does not answer";
    return causes[why].words;
}

static incident_verdict verdict_of(watchdog_cause why, const watchdog_frame *culprit)
{
    if (why == CAUSE_FAILED)
        return (incident_verdict)culprit->verdict;
    if (why == CAUSE_STUCK && culprit->storage)
        return INCIDENT_STORAGE;
    return causes[why].verdict;
}

int watchdog_end_links(const struct watchdog *w)
{
    return !w->links ? 0 : w->rank ? 1 : w->ranks;
}

/* Reads until the others have closed. A socket closed with unread bytes in it is reset, and the reset overtakes our
 * last frame. */
void watchdog_end_drain(struct watchdog *w, double seconds)
{
    double until = clock_seconds() + seconds;
    for (int open = 1; open && clock_seconds() < until;) {
        open = 0;
        for (int i = 0; i < watchdog_end_links(w); i++) {
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
            poll(w->polled, (nfds_t)watchdog_end_links(w), 50);
    }
}

void watchdog_end_bye(struct watchdog *w)
{
    watchdog_frame bye;
    watchdog_end_frame(w, &bye, WATCHDOG_BYE);
    for (int i = 0; i < watchdog_end_links(w); i++) {
        watchdog_link_send(&w->links[i], &bye);
        if (w->links[i].fd >= 0)
            shutdown(w->links[i].fd, SHUT_WR); /* the other side sees the end after the last frame */
    }
}

/* Writes a line at once, past the streams: a stuck thread may hold one. */
static void report_end(const struct watchdog *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void report_end(const struct watchdog *w, const char *format, ...)
{
    char line[2048];
    int used = snprintf(line, sizeof line, "phalanx: rank %d: watchdog: ", w->rank);
    va_list arguments;
    va_start(arguments, format);
    used += vsnprintf(line + used, sizeof line - (size_t)used - 1, format, arguments);
    va_end(arguments);
    used = used < (int)sizeof line - 1 ? used : (int)sizeof line - 2;
    line[used++] = '\n';
    outlet_last_words(line, (size_t)used, OUTLET_LAST_SECONDS);
}

void watchdog_end_look(struct watchdog *w, double time)
{
    watchdog_frame f;
    watchdog_end_frame(w, &f, WATCHDOG_BEAT);
    if (f.moves != w->own.last.moves)
        w->own.moved = time;
    w->own.last = f;
    w->own.heard = time;
}

/* Leaves ending the process to a thread that has failed, if one waits. */
static _Noreturn void leave_process(struct watchdog *w)
{
    atomic_store(&w->failing, WATCHDOG_SAID);
    if (atomic_load(&w->fail_waits))
        sleep((unsigned)WATCHDOG_GRACE);
    _exit(1);
}

/* "rank 2 on node7 is gone: ..." */
static void judge_words(char *out, size_t bytes, const watchdog_frame *culprit, watchdog_cause why)
{
    bool said = why == CAUSE_FAILED;
    snprintf(out, bytes, "rank %d on %s %s%s%s", culprit->rank, *culprit->host ? culprit->host : "an unknown host",
             words_of(why, culprit), said ? ": " : "", said ? culprit->words : "");
}

/* Ends the job at rank 0, or alone: prints the judgement and every rank's position, tells the others, and exits. */
_Noreturn void watchdog_end_job(struct watchdog *w, int culprit, watchdog_cause why)
{
    char where[512], words[INCIDENT_WORDS + 256];
    double time = clock_seconds();
    watchdog_frame end = w->reports[culprit].last;
    double quiet = time - w->reports[culprit].moved;
    watchdog_end_look(w, time);
    w->reports[0].last = w->own.last;
    watchdog_end_describe(where, sizeof where, &end);
    judge_words(words, sizeof words, &end, why);
    report_end(w, "%s; last in %s (no progress for %.1f s). The job ends.", words, where, quiet);
    for (int i = 0, listed = 0; i < w->ranks; i++) {
        if (i == culprit || w->reports[i].left)
            continue;
        if (listed++ == LISTED) {
            report_end(w, "and the other ranks, %d in all", w->ranks);
            break;
        }
        const watchdog_frame *f = &w->reports[i].last;
        watchdog_end_describe(where, sizeof where, f);
        report_end(w, "rank %d on %s: %s%s", i, f->host, where, i && w->links[i].fd < 0 ? " (gone)" : "");
    }
    incident what = watchdog_end_incident(&end, verdict_of(why, &end), w->ranks, quiet, words);
    what.ends = true;
    end.kind = WATCHDOG_END;
    end.cause = (int)why;
    end.quiet = (float)quiet;
    for (int i = 1; i < w->ranks; i++)
        watchdog_link_send(&w->links[i], &end);
    write_down(w, &what, true);
    watchdog_end_drain(w, 1);
    leave_process(w);
}

/* Ends this rank elsewhere, after rank 0's judgement or its own. */
_Noreturn void watchdog_end_here(struct watchdog *w, const watchdog_frame *culprit, watchdog_cause why, double quiet,
                                 bool ours)
{
    char where[512], here[512], words[INCIDENT_WORDS + 256];
    watchdog_frame end = *culprit;
    watchdog_end_look(w, clock_seconds());
    watchdog_end_describe(where, sizeof where, &end);
    watchdog_end_describe(here, sizeof here, &w->own.last);
    judge_words(words, sizeof words, &end, why);
    report_end(w, "%s; last in %s; this rank is in %s. The job ends.", words, where, here);
    incident what = watchdog_end_incident(&end, verdict_of(why, &end), w->ranks, quiet, words);
    what.ends = true;
    if (why == CAUSE_STUCK && end.phase == DURING_START && !end.storage) { /* this rank is not to blame */
        what.rank = -1;
        what.host = NULL;
    }
    write_down(w, &what, ours);
    leave_process(w);
}
