/* One job under supervision: what it says, what it is asked, whether it still goes on. */
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/train/report/report.h"
#include "engine/train/train.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/outlet.h"
#include "memory/scope.h"
#include "parallel/watch/signals.h"
#include "tools/supervise/children.h"
#include "tools/supervise/supervise_internal.h"

/* A job that is over by its own account, but whose launcher stays, is ended after so long. */
#define LINGER_SECONDS 3.0
/* And one from which nothing is heard after all its limits and so much more: its watchdogs are frozen, too. */
#define SILENT_SECONDS 60.0
/* ---- what the job says ---- */

/* From the file to our own standard output, as much as its reader takes without being waited for: the rest is in the
 * file. */
static bool copy_output(supervisor *s)
{
    char block[16384];
    size_t room = outlet_room();
    AUTO_CLOSE file = room > 0 ? open(s->output, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t got = file < 0 ? 0 : pread(file, block, room < sizeof block ? room : sizeof block, s->copied);
    if (got <= 0)
        return false;
    s->copied += got;
    fwrite(block, 1, (size_t)got, stdout);
    fflush(stdout);
    return true;
}

int64_t supervise_bytes(const char *folder, const char *name)
{
    struct stat info;
    AUTO_FREE char *path = must_format("%s/%s", folder, name);
    return stat(path, &info) == 0 ? (int64_t)info.st_size : 0;
}

void supervise_finish_output(supervisor *s, double seconds)
{
    const char *folder = s->config.run.folder;
    double until = clock_seconds() + seconds;
    for (; supervise_bytes(folder, "output.log") > (int64_t)s->copied && clock_seconds() < until; clock_nap(0.001))
        while (copy_output(s))
            until = clock_seconds() + seconds;
}

bool supervise_is_server(const supervisor *s)
{
    return strcmp(s->command.job, "server") == 0;
}

/* A server has nothing to say while its islands train. */
static double patience(const supervisor *s)
{
    if (supervise_is_server(s))
        return INFINITY;
    watchdog_limits l = train_limits(&s->config);
    double most = 0;
    for (int i = 0; i < INCIDENT_PHASES; i++)
        most = l.phase[i] > most ? l.phase[i] : most;
    return most + SILENT_SECONDS;
}

/* ---- one job ---- */

/* Does the job that was at work already go on? */
static bool is_at_work(supervisor *s)
{
    return lock_watch(&s->sight, s->lock, SUPERVISE_LEASE) && strcmp(s->sight.id, s->id) == 0;
}

/* The process that holds the lock: one rank that is asked tells the others. */
static void signal_holder(supervisor *s, int number)
{
    if (is_at_work(s) && s->sight.here && kill((pid_t)s->sight.pid, number) == 0)
        return;
    if (!s->unreachable)
        log_warn("supervise: the job's process %lld on %s cannot be signalled from here", s->sight.pid, s->sight.host);
    s->unreachable = true;
}

/* The ranks here; or, if none is, the launcher, which passes this on to them wherever they are. */
static void pass_on(supervisor *s, int number)
{
    if (!s->child)
        signal_holder(s, number);
    else if (children_signal(number, s->command.job) == 0)
        kill(s->child, number);
}

static void pass_on_requests(supervisor *s, bool *saved)
{
    signals_request asked = signals_pending();
    if (asked == SIGNALS_SAVE && !*saved)
        pass_on(s, SIGUSR2);
    *saved = asked == SIGNALS_SAVE;
    if (asked == SIGNALS_SAVE)
        signals_saved();
    if (asked != SIGNALS_STOP || clock_seconds() - s->asked < 2)
        return;
    if (s->asked <= 0)
        log_info("supervise: asked to stop (%s): the ranks save and end", signals_name());
    s->asked = clock_seconds();
    pass_on(s, SIGUSR1);
}

/* A process that a signal has stopped, with its own watchdog: where others wait for it they say so, but a rank alone
 * has none. */
static bool is_frozen(supervisor *s, double time)
{
    pid_t stopped = children_stopped();
    if (!stopped)
        s->running = time;
    if (time - s->running <= train_limits(&s->config).silent + LINGER_SECONDS)
        return false;
    s->frozen = time - s->running;
    log_warn("supervise: process %d of the job has been stopped for %.0f s", (int)stopped, s->frozen);
    return true;
}

/* Has this start itself said that it ends? */
static bool has_said_end(const supervisor *s)
{
    const char *folder = s->config.run.folder;
    return causes_read(folder, s->position, s->id).known || report_ending(folder, s->id) != REPORT_UNKNOWN;
}

/* A rank has begun: it holds the folder's lock, or has said something. */
static void watch_begin(supervisor *s)
{
    lock_sight seen = {0};
    if (s->begun)
        return;
    (void)lock_watch(&seen, s->lock, SUPERVISE_LEASE);
    s->begun = strcmp(seen.id, s->id) == 0 || has_said_end(s);
}

/* The job has said that it ends, or nobody has said anything for too long. */
static bool is_over(supervisor *s)
{
    double time = clock_seconds();
    if (time - s->heard > patience(s)) {
        log_warn("supervise: nothing has been heard of the job for %.0f s", time - s->heard);
        return true;
    }
    if (is_frozen(s, time))
        return true;
    if (s->over <= 0 && has_said_end(s))
        s->over = time;
    return s->over > 0 && time - s->over > LINGER_SECONDS;
}

/* Since the last job failed: the first step, or a server's merge, that it had not done. */
static void watch_recovery(supervisor *s)
{
    if (s->failed <= 0 || causes_progress(s->config.run.folder) <= s->failed_step)
        return;
    log_info("supervise: %s %lld is done, %.2f s after the incident", supervise_is_server(s) ? "merge" : "step",
             (long long)causes_progress(s->config.run.folder), clock_seconds() - s->failed);
    s->failed = 0;
}

/* Whatever is left of it. */
static void end_job(supervisor *s)
{
    if (s->child) {
        if (!children_kill(5))
            log_warn("supervise: some processes of the job do not end");
        children_remove_files(s->child);
        return;
    }
    for (double until = clock_seconds() + 5; is_at_work(s) && clock_seconds() < until; clock_nap(0.05))
        signal_holder(s, SIGKILL);
    s->unreachable = is_at_work(s);
}

bool supervise_is_evicted(const supervisor *s)
{
    return s->own && lock_lost(s->own);
}

int supervise_attend(supervisor *s)
{
    int exit_status = STATUS_FAILED;
    bool saved = false;
    double looked = 0;
    for (bool ended = false; !ended;) {
        ended = s->child ? children_ended(s->child, &exit_status) : !is_at_work(s);
        while (copy_output(s))
            continue;
        pass_on_requests(s, &saved);
        if (clock_seconds() - looked > 0.2) {
            looked = clock_seconds();
            /* Somebody writes: lines on the screen, or metrics. */
            int64_t size = supervise_bytes(s->config.run.folder, "output.log") +
                           supervise_bytes(s->config.run.folder, "metrics.jsonl");
            if (size != s->size)
                s->heard = clock_seconds();
            s->size = size;
            watch_begin(s);
            watch_recovery(s);
            if (supervise_is_evicted(s))
                return exit_status;
            if (!ended && is_over(s)) {
                exit_status = 128 + SIGKILL;
                break;
            }
        }
        if (!ended)
            clock_nap(0.02);
    }
    s->over = s->over > 0 ? s->over : clock_seconds();
    end_job(s);
    supervise_finish_output(s, 0.5);
    watch_begin(s);
    return exit_status;
}
