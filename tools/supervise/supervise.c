/* phalanx supervise: starts a job again when an incident has ended it, until it is done or a person is needed.
 *
 * Every start has an id, and the supervisor believes only records that carry it: the folder's lock, incidents, the
 * summary, events. Any process may write to the folder, and a clock may be wrong: records and times of other starts
 * decide nothing. One supervisor holds a folder. It watches a job that is already at work there until it ends, and does
 * not start it again. */
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "engine/host/incident_log.h"
#include "engine/checkpoint/manifest.h"
#include "engine/train/report/report.h"
#include "engine/train/train.h"
#include "engine/state/weights/weights.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/outlet.h"
#include "memory/scope.h"
#include "parallel/watch/signals.h"
#include "tools/supervise/children.h"
#include "tools/options.h"
#include "tools/tools.h"
#include "engine/config/config.h"
#include "engine/system/lock.h"
#include "engine/host/causes.h"
#include "tools/supervise/hosts.h"
#include "tools/supervise/supervise_command.h"

/* A lock is stale if its holder on another machine has been silent for this many seconds. */
#define LEASE 30.0

typedef struct supervisor {
    supervise_command command;
    config config;
    hosts hosts; /* empty: a job of fixed size */
    bool elastic;
    int64_t restarts; /* restarts allowed */
    char *output, *list, *lock;
    lock *own;    /* lock against a second supervisor; NULL: run.lock is off */
    off_t copied; /* bytes of output copied to our own */
    causes memory;

    /* the current job */
    char id[INCIDENT_RUN]; /* id of its start */
    pid_t child;           /* 0: a job that was already at work */
    lock_sight sight;      /* last sight of that job's lock */
    int ranks, data;
    int64_t position; /* offset of its first incident */
    bool begun;       /* a rank has reported */
    double over;      /* time at which it was seen to be over; 0: it goes on */
    double heard;     /* time of its last write */
    int64_t size;     /* bytes it has written */
    double running;   /* last time at which none of its processes was stopped */
    double frozen;    /* seconds that a process had been stopped when the job was ended for it; 0: another end */
    double asked;     /* time of the last request to stop; 0: none */
    bool unreachable; /* this machine can neither ask nor end it */

    /* the run as a whole */
    bool own_files; /* a start of ours has made files of the run: later starts resume from its own checkpoints */
    int64_t started;
    double failed; /* time at which the last job was seen to have failed; 0: the run goes on by now */
    int64_t failed_step;
} supervisor;

/* The supervisor ends a job that reports its end but leaves its launcher running, after this many seconds. */
#define LINGER_SECONDS 3.0
/* It also ends a job that is silent for this long beyond all its limits: its watchdogs are frozen, too. */
#define SILENT_SECONDS 60.0

/* ---- the job's output ---- */

/* Copies from the file to our own standard output as much as the reader takes without blocking; the rest stays in the
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

static int64_t bytes_in(const char *folder, const char *name)
{
    struct stat info;
    AUTO_FREE char *path = must_format("%s/%s", folder, name);
    return stat(path, &info) == 0 ? (int64_t)info.st_size : 0;
}

/* Copies the rest of the job's output, as long as its reader takes some within `seconds`. */
static void finish_output(supervisor *s, double seconds)
{
    const char *folder = s->config.run.folder;
    double until = clock_seconds() + seconds;
    for (; bytes_in(folder, "output.log") > (int64_t)s->copied && clock_seconds() < until; clock_nap(0.001))
        while (copy_output(s))
            until = clock_seconds() + seconds;
}

static bool is_server(const supervisor *s)
{
    return strcmp(s->command.job, "server") == 0;
}

/* Returns the seconds of silence allowed; a server is silent while its islands train. */
static double patience(const supervisor *s)
{
    if (is_server(s))
        return INFINITY;
    watchdog_limits l = train_limits(&s->config);
    double most = 0;
    for (int i = 0; i < INCIDENT_PHASES; i++)
        most = l.phase[i] > most ? l.phase[i] : most;
    return most + SILENT_SECONDS;
}

/* ---- one job ---- */

/* Tells whether the job that was already at work goes on. */
static bool is_at_work(supervisor *s)
{
    return lock_watch(&s->sight, s->lock, LEASE) && strcmp(s->sight.id, s->id) == 0;
}

/* Signals the process that holds the lock: one rank that is asked tells the others. */
static void signal_holder(supervisor *s, int number)
{
    if (is_at_work(s) && s->sight.here && kill((pid_t)s->sight.pid, number) == 0)
        return;
    if (!s->unreachable)
        log_warn("supervise: the job's process %lld on %s cannot be signalled from here", s->sight.pid, s->sight.host);
    s->unreachable = true;
}

/* Signals the ranks here, or, if none is here, the launcher, which passes the signal on to them. */
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

/* Detects a process that a signal has stopped, with its own watchdog: waiting ranks would report it, but a single rank
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

/* Tells whether this start itself has reported its end. */
static bool has_said_end(const supervisor *s)
{
    const char *folder = s->config.run.folder;
    return causes_read(folder, s->position, s->id).known || report_ending(folder, s->id) != REPORT_UNKNOWN;
}

/* Notes that a rank has begun: it holds the folder's lock, or has reported. */
static void watch_begin(supervisor *s)
{
    lock_sight seen = {0};
    if (s->begun)
        return;
    (void)lock_watch(&seen, s->lock, LEASE);
    s->begun = strcmp(seen.id, s->id) == 0 || has_said_end(s);
}

/* Tells whether the job has reported its end, or has been silent for too long. */
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

/* Reports the first step, or a server's merge, done after the last job failed that it had not done. */
static void watch_recovery(supervisor *s)
{
    if (s->failed <= 0 || causes_progress(s->config.run.folder) <= s->failed_step)
        return;
    log_info("supervise: %s %lld is done, %.2f s after the incident", is_server(s) ? "merge" : "step",
             (long long)causes_progress(s->config.run.folder), clock_seconds() - s->failed);
    s->failed = 0;
}

/* Kills the remaining processes of the job. */
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

/* Tells whether another supervisor has taken this folder over. */
static bool is_evicted(const supervisor *s)
{
    return lock_check(s->own) != STATUS_OK;
}

/* Attends to the job until it ends, and removes its remains, or until another supervisor has taken it over. Returns its
 * exit status. */
static int attend_job(supervisor *s)
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
            /* Growth of the output or the metrics shows that a rank writes. */
            int64_t size =
                bytes_in(s->config.run.folder, "output.log") + bytes_in(s->config.run.folder, "metrics.jsonl");
            if (size != s->size)
                s->heard = clock_seconds();
            s->size = size;
            watch_begin(s);
            watch_recovery(s);
            if (is_evicted(s))
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
    finish_output(s, 0.5);
    watch_begin(s);
    return exit_status;
}

/* ---- its size and its hosts ---- */

/* True if `ranks` ranks can be laid out with any parallel.data; *data: the number of data-parallel ranks. */
static bool fits(int *data, const config *c, int ranks)
{
    grid g;
    config any = *c;
    any.parallel.size[GRID_DATA] = 0;
    if (config_make_grid(&g, &any, ranks, 0) != STATUS_OK)
        return false;
    *data = g.size[GRID_DATA];
    return true;
}

/* Chooses the most ranks that have slots and can be laid out; the same as before if the run is not elastic. */
static status choose_size(int *ranks, int *data, const supervisor *s)
{
    int slots = hosts_slots(&s->hosts), wanted = s->config.parallel.size[GRID_DATA];
    if (!s->elastic && s->data > 0)
        wanted = s->data;
    for (*ranks = slots; *ranks > 0; (*ranks)--)
        if (fits(data, &s->config, *ranks) && (wanted == 0 || *data == wanted || (s->elastic && *data < wanted)))
            return STATUS_OK;
    return status_fail(STATUS_FAILED, "the hosts that are left have %d slots: too few for this layout%s", slots,
                       s->elastic ? "" : " (--elastic would go on with fewer data-parallel ranks)");
}

static status choose_ranks(supervisor *s)
{
    if (s->hosts.count > 0)
        return choose_size(&s->ranks, &s->data, s);
    if (!supervise_command_sized(&s->command))
        return STATUS_OK;
    if (s->config.parallel.size[GRID_DATA] == 0)
        return status_fail(STATUS_USAGE, "{ranks} needs --hosts FILE, or parallel.data in the configuration");
    for (s->ranks = 1; s->ranks < 1 << 20; s->ranks++)
        if (fits(&s->data, &s->config, s->ranks) && s->data == s->config.parallel.size[GRID_DATA])
            return STATUS_OK;
    return status_fail(STATUS_USAGE, "parallel.data %d cannot be laid out with this configuration",
                       s->config.parallel.size[GRID_DATA]);
}

static hosts_entry *find_host(const hosts *h, const char *name)
{
    hosts_entry *e = hosts_find(h, name);
    if (!e)
        e = hosts_find_address(h, name);
    if (!e)
        log_warn("supervise: %s, which is to blame, is none of the hosts of --hosts, nor does one of them lead to its "
                 "address: it is not left out; write its name there as `hostname` says it",
                 name);
    return e;
}

/* Excludes a host that is to blame if the others suffice; at its second incident, also if the run gets smaller. */
static void leave_out(supervisor *s, const cause *why)
{
    /* Only some verdicts on a named host exclude it. */
    bool wanted = s->hosts.count > 0 &&
                  (why->known && why->verdict != INCIDENT_DATA && why->verdict != INCIDENT_NUMBERS &&
                   why->verdict != INCIDENT_REFUSED && why->verdict != INCIDENT_LINK) &&
                  *why->host;
    hosts_entry *e = wanted ? find_host(&s->hosts, why->host) : NULL;
    int ranks, data;
    if (!e || e->out)
        return;
    e->named++;
    e->out = true;
    bool possible = choose_size(&ranks, &data, s) == STATUS_OK;
    if (!possible || (data < s->data && e->named < 2))
        e->out = false;
    if (e->out)
        log_warn("supervise: %s is left out from now on (%s)", e->name, incident_verdict_name(why->verdict));
}

/* ---- between two jobs ---- */

static cause find_cause(supervisor *s, int exit_status)
{
    const char *folder = s->config.run.folder;
    cause why = causes_read(folder, s->position, s->id);
    if (why.known)
        return why;
    if (s->frozen > 0)
        snprintf(why.words, sizeof why.words, "a process of the job had been stopped for %.0f s", s->frozen);
    else if (!s->child)
        snprintf(why.words, sizeof why.words, "the job that was at work already has ended, and has not said why");
    else if (!s->begun)
        snprintf(why.words, sizeof why.words, "the command ended with status %d before a rank had begun", exit_status);
    else
        snprintf(why.words, sizeof why.words, "the job ended with status %d, and no rank has said why", exit_status);
    incident what = {.verdict = s->frozen > 0 ? INCIDENT_FROZEN : INCIDENT_DEAD,
                     .phase = INCIDENT_PHASES,
                     .rank = -1,
                     .ranks = s->ranks,
                     .step = causes_progress(folder),
                     .micro_batch = -1,
                     .waiting_for = -1,
                     .run = s->id,
                     .words = why.words,
                     .ends = true};
    if (incident_log_append(folder, &what) != STATUS_OK)
        log_warn("%s", status_message());
    return why;
}

/* Decides about a failure: returns this command's exit status, or -1 for another start. */
static int decide_restart(supervisor *s, const cause *why)
{
    int64_t progress = causes_progress(s->config.run.folder);
    causes_advice advice = causes_weigh(&s->memory, why, s->begun, progress);
    if (s->asked > 0)
        advice.give_up = "it was asked to stop, and has failed before it could";
    else if (!s->child && s->unreachable)
        advice.give_up = "the job that was at work already cannot be ended from here";
    else if (s->started > s->restarts)
        advice.give_up = "all restarts are used up (--restarts)";
    if (advice.give_up) {
        log_error("supervise: %s; last: %s", advice.give_up, why->words);
        return STATUS_FAILED;
    }
    leave_out(s, why);
    log_warn("supervise: %s; restart %lld in %.0f s", why->words, (long long)s->started, advice.wait);
    for (double until = clock_seconds() + advice.wait; clock_seconds() < until && signals_pending() != SIGNALS_STOP;)
        clock_nap(0.05);
    if (signals_pending() != SIGNALS_STOP)
        return -1;
    log_info("supervise: asked to stop between two jobs");
    return s->config.run.exit_when_stopped;
}

/* Decides after a job: returns its end as this command's exit status, or -1 for another start. Only a command that was
 * started here has a known exit status. */
static int classify_exit(supervisor *s, int exit_status)
{
    if (is_evicted(s)) /* the folder, and perhaps the job, are another supervisor's */
        return STATUS_FAILED;
    report_end end = report_ending(s->config.run.folder, s->id);
    if ((s->child && exit_status == 0) || end == REPORT_DONE)
        return 0;
    if (end == REPORT_STOPPED || (s->child && exit_status == s->config.run.exit_when_stopped))
        return s->config.run.exit_when_stopped;
    if (s->child && (exit_status == STATUS_USAGE || exit_status == 127))
        return exit_status == 127 ? STATUS_FAILED : STATUS_USAGE;
    cause why = find_cause(s, exit_status);
    /* The first start begins as checkpoint.resume=never, or a checkpoint's name, says. Later starts must not undo its
     * results. */
    const char *folder = s->config.run.folder;
    bool never = strcmp(s->config.checkpoint.resume, "never") == 0;
    s->own_files |= never ? causes_began(folder, s->id) : causes_saved(folder, s->id);
    s->failed = s->over;
    int code = decide_restart(s, &why);
    s->failed_step = s->memory.best;
    if (code < 0)
        lock_retire(s->lock, s->id);
    return code;
}

/* Resets the state for a job that begins now. */
static void begin_job(supervisor *s)
{
    s->over = s->asked = s->frozen = 0;
    s->begun = s->unreachable = false;
    s->heard = s->running = clock_seconds();
    s->started++;
}

static status start_job(supervisor *s)
{
    begin_job(s);
    TRY(manifest_draw_run_id(s->id));
    s->position = causes_position(s->config.run.folder);
    if (s->hosts.count > 0)
        TRY(hosts_write(&s->hosts, s->list, s->ranks));
    const supervise_start how = {.id = s->id,
                                 .hosts = s->list,
                                 .ranks = s->ranks,
                                 .data = s->hosts.count > 0 ? s->data : 0,
                                 .resume = s->own_files ? "auto" : NULL};
    char **argv = supervise_command_expand(&s->command, &how);
    status result = children_start(&s->child, argv, s->output);
    supervise_command_free_words(argv);
    return result;
}

/* Takes over a living job: its supervisor was killed, or it never had one. False if no job works in the folder. After
 * its own job, a supervisor finds another one only if that job's folder was not the run's, which has come back since;
 * it does not wait for the lease of lost hosts then. */
static bool adopt_job(supervisor *s)
{
    if (!s->config.run.lock || !lock_watch(&s->sight, s->lock, LEASE))
        return false;
    if (s->started > 0 && (!s->sight.here || strcmp(s->sight.id, s->id) == 0))
        return false;
    begin_job(s);
    s->child = 0;
    s->position = 0;
    s->begun = true;
    snprintf(s->id, sizeof s->id, "%s", s->sight.id);
    log_info("supervise: a job is at work in %s already, process %lld on %s: it is watched until it ends",
             s->config.run.folder, s->sight.pid, s->sight.host);
    return true;
}

/* Runs one job until it ends or cannot begin; returns this command's exit status, or -1 for another start. */
static int run_job(supervisor *s)
{
    if (adopt_job(s))
        return classify_exit(s, attend_job(s));
    if (choose_ranks(s) != STATUS_OK) {
        log_error("supervise: %s", status_message());
        return STATUS_FAILED;
    }
    if (start_job(s) == STATUS_OK)
        return classify_exit(s, attend_job(s));
    cause why = {.rank = -1, .step = -1};
    snprintf(why.words, sizeof why.words, "%s", status_message());
    return decide_restart(s, &why);
}

static int supervise_jobs(supervisor *s)
{
    int code = -1;
    while (code < 0 && !is_evicted(s))
        code = run_job(s);
    if (!is_evicted(s))
        return code;
    log_error("supervise: another supervisor has taken %s over; the job goes on under it", s->config.run.folder);
    return STATUS_FAILED;
}

/* ---- the command ---- */

static status open_supervisor(supervisor *s, const char *hosts_file)
{
    const supervise_command *k = &s->command;
    const options_said said = options_said_of(k->count - k->config, k->words + k->config);
    TRY(config_load(&s->config, said.file, said.overrides, said.override));
    if (s->config.run.log_format == CONFIG_LOG_JSON)
        outlet_write_json(log_rank); /* the job's own lines carry their time and pass unchanged */
    TRY(weights_configure(&s->config));
    if (is_server(s) && (hosts_file || s->elastic || supervise_command_sized(k)))
        return status_fail(STATUS_USAGE, "a server's size is fixed: write it as mpirun -np N phalanx server ..., "
                                         "without --hosts, --elastic, {ranks} and {hosts}");
    if (hosts_file)
        TRY(hosts_read(&s->hosts, hosts_file));
    if (s->elastic && (!hosts_file || !supervise_command_sized(k)))
        return status_fail(STATUS_USAGE,
                           "--elastic needs --hosts FILE, and {ranks} and {hosts} in the command: mpirun -np {ranks} "
                           "--hostfile {hosts} phalanx train ...");
    TRY(atomic_make_folders(s->config.run.folder));
    s->output = must_format("%s/output.log", s->config.run.folder);
    s->list = must_format("%s/hostfile", s->config.run.folder);
    s->lock = must_format("%s/lock", s->config.run.folder);
    s->copied = (off_t)bytes_in(s->config.run.folder, "output.log");
    TRY(children_adopt());
    /* Two supervisors in a folder would take each other's jobs for strangers'. */
    char id[MANIFEST_RUN];
    if (!s->config.run.lock)
        return STATUS_OK;
    TRY(manifest_draw_run_id(id));
    AUTO_FREE char *path = must_format("%s/supervisor", s->config.run.folder);
    status taken = lock_take(&s->own, path, id, LEASE);
    return taken == STATUS_OK ? STATUS_OK : status_context(taken, "a supervisor is at work here already");
}

/* A reader that takes no output for this many seconds is stuck; output.log holds the rest. */
#define READER_SECONDS 1.0

/* Writes the last output, to a reader that may read no more. */
static void finish(supervisor *s)
{
    if (s->output)
        finish_output(s, READER_SECONDS);
    int64_t left = s->output ? bytes_in(s->config.run.folder, "output.log") - (int64_t)s->copied : 0;
    if (left > 0)
        log_warn("supervise: %lld bytes of the job's output have not been read; %s holds all of it", (long long)left,
                 s->output);
    outlet_close(READER_SECONDS);
}

int supervise_main(int argc, char **argv)
{
    supervisor s = {.restarts = 100};
    const char *hosts_file = NULL;
    const options_row rows[] = {
        OPTION_INTEGER("--restarts", "N", "give up after so many restarts (100)", &s.restarts, 0, 1e9),
        OPTION_FLAG("--elastic", "go on with fewer data-parallel ranks where hosts are lost", &s.elastic),
        OPTION_TEXT("--hosts", "FILE", "lines of \"NAME slots=N\"; more than the job needs are spares", &hosts_file),
    };
    const options_command command = {
        .name = "supervise",
        .operands = "-- mpirun ... phalanx train|server CONFIG.yaml [key=value ...]",
        .summary =
            "Runs a training job, and starts it again after an incident: at once the first time, later ever more\n"
            "slowly, until it is done, has been stopped, or the same trouble comes again and again. Hosts that are to\n"
            "blame are left out. {ranks} and {hosts} in the command become the number of ranks and a host file.\n"
            "SIGTERM, SIGINT, SIGHUP and SIGUSR1 let the ranks save and end; SIGUSR2 lets them save and go on. The\n"
            "job's output goes to output.log in the run's folder, and from there to this command's. If this command "
            "is\n"
            "killed, the job goes on by itself. A server of islands (phalanx server) is watched in the same way, at a\n"
            "fixed size.",
        .least = 1,
        .most = -1,
        OPTION_ROWS(rows),
    };
    int operands, code = options_parse(&command, &operands, argc, argv);
    if (code != OPTIONS_GO_ON)
        return code;
    outlet_open();
    status ready = supervise_command_open(&s.command, operands, argv + 1);
    if (ready == STATUS_OK)
        ready = open_supervisor(&s, hosts_file);
    signals_install();
    if (ready == STATUS_OK)
        code = supervise_jobs(&s);
    else
        log_error("supervise: %s", status_message());
    finish(&s);
    lock_release(s.own);
    config_free(&s.config);
    hosts_free(&s.hosts);
    free(s.output);
    free(s.list);
    free(s.lock);
    return ready == STATUS_OK ? code : (int)ready;
}
