#include "parallel/watch/watchdog_end.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "memory/clock.h"
#include "memory/outlet.h"
#include "parallel/comm/comm.h"

/* So long may the incident take to be written: its storage may be what does not answer. */
#define WRITE_SECONDS 2.0

enum { LISTED = 64 };

/* ---- what a rank says of itself ---- */

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

/* ---- the end ---- */

int watchdog_end_links(const struct watchdog *w)
{
    return !w->links ? 0 : w->rank ? 1 : w->ranks;
}

/* Read until the others have closed. A socket closed with unread bytes in it is reset, and the reset overtakes our last
 * frame. */
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
        watchdog_link_finish(&w->links[i]);
    }
}

/* Not through a stream: a thread that is stuck may hold it. One write a line. */
static void say(const struct watchdog *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(const struct watchdog *w, const char *format, ...)
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

/* A thread that has failed ends the process in its own manner. */
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
             watchdog_judge_words(why, culprit), said ? ": " : "", said ? culprit->words : "");
}

/* At rank 0, or alone: the judgement, everybody's position, the same to the others, and out. */
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
    say(w, "%s; last in %s (no progress for %.1f s). The job ends.", words, where, quiet);
    for (int i = 0, listed = 0; i < w->ranks; i++) {
        if (i == culprit || w->reports[i].left)
            continue;
        if (listed++ == LISTED) {
            say(w, "and the other ranks, %d in all", w->ranks);
            break;
        }
        const watchdog_frame *f = &w->reports[i].last;
        watchdog_end_describe(where, sizeof where, f);
        say(w, "rank %d on %s: %s%s", i, f->host, where, i && w->links[i].fd < 0 ? " (gone)" : "");
    }
    incident what = watchdog_end_incident(&end, watchdog_judge_verdict(why, &end), w->ranks, quiet, words);
    what.ends = true;
    end.kind = WATCHDOG_END;
    end.cause = (int)why;
    end.quiet = (float)quiet;
    for (int i = 1; i < w->ranks; i++)
        watchdog_link_send(&w->links[i], &end);
    watchdog_scribe_write(w->scribe, &what, true, WRITE_SECONDS);
    watchdog_end_drain(w, 1);
    leave_process(w);
}

/* Elsewhere: rank 0's judgement, or this rank's own. */
_Noreturn void watchdog_end_here(struct watchdog *w, const watchdog_frame *culprit, watchdog_cause why, double quiet,
                                 bool ours)
{
    char where[512], here[512], words[INCIDENT_WORDS + 256];
    watchdog_frame end = *culprit;
    watchdog_end_look(w, clock_seconds());
    watchdog_end_describe(where, sizeof where, &end);
    watchdog_end_describe(here, sizeof here, &w->own.last);
    judge_words(words, sizeof words, &end, why);
    say(w, "%s; last in %s; this rank is in %s. The job ends.", words, where, here);
    incident what = watchdog_end_incident(&end, watchdog_judge_verdict(why, &end), w->ranks, quiet, words);
    what.ends = true;
    if (why == CAUSE_STUCK && end.phase == DURING_START && !end.storage) { /* it is not this rank that is to blame */
        what.rank = -1;
        what.host = NULL;
    }
    watchdog_scribe_write(w->scribe, &what, ours, WRITE_SECONDS);
    leave_process(w);
}
