/* phalanx supervise: starts a job again when an incident has ended it, until it is done or a person is needed. */
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/host/causes.h"
#include "engine/config/config.h"
#include "engine/files/atomic.h"
#include "engine/files/lock.h"
#include "engine/host/incidents.h"
#include "engine/train/report.h"
#include "engine/train/train.h"
#include "engine/state/weights.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "parallel/watch/signals.h"
#include "tools/supervise/children.h"
#include "tools/supervise/hosts.h"
#include "tools/supervise/launcher_files.h"
#include "tools/options.h"
#include "tools/supervise/supervise_command.h"
#include "tools/tools.h"

/* A job that is over by its own account, but whose launcher stays, is ended after so long. */
#define LINGER_SECONDS 3.0
/* And one from which nothing is heard after all its limits and so much more: its watchdogs are frozen, too. */
#define SILENT_SECONDS 60.0

typedef struct supervisor {
    supervise_command command;
    config config;
    hosts hosts; /* none: a job of fixed size */
    bool elastic;
    int64_t restarts; /* allowed */
    char *output, *list, *lock;
    off_t copied; /* of the output, to our own */
    causes memory;

    /* the job at hand */
    pid_t child;
    int ranks, data;
    int64_t position; /* of its incidents */
    double began;     /* wall time */
    double over;      /* when it was seen to be over; 0: it goes on */
    double heard;     /* when it last wrote something */
    int64_t size;     /* of what it writes */
    double running;   /* when none of its processes was last seen stopped */
    double frozen;    /* for so many seconds one had been when the job was ended; 0: it was not ended for that */
    double asked;     /* when it was last asked to stop; 0: it has not been */

    /* what it took */
    int64_t started;
    double failed; /* wall time of the last incident; 0: the run goes on by now */
    int64_t failed_step;
} supervisor;

static double wall_time(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void nap(double seconds)
{
    nanosleep(
        &(struct timespec){.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)},
        NULL);
}

/* ---- what the job says ---- */

/* From the file to our own standard output, whose reader may be gone. */
static void copy_output(supervisor *s)
{
    char block[65536];
    int file = open(s->output, O_RDONLY | O_CLOEXEC);
    ssize_t got = 0;
    while (file >= 0 && (got = pread(file, block, sizeof block, s->copied)) > 0) {
        s->copied += got;
        if (write(STDOUT_FILENO, block, (size_t)got) < 0)
            break;
    }
    if (file >= 0)
        close(file);
}

static int64_t bytes_of(const char *folder, const char *name)
{
    struct stat info;
    char *path = must_format("%s/%s", folder, name);
    int64_t bytes = stat(path, &info) == 0 ? (int64_t)info.st_size : 0;
    free(path);
    return bytes;
}

/* Somebody writes: lines on the screen, or metrics. */
static void listen(supervisor *s)
{
    int64_t size = (int64_t)s->copied + bytes_of(s->config.run.folder, "metrics.jsonl");
    if (size != s->size)
        s->heard = clock_seconds();
    s->size = size;
}

static bool is_server(const supervisor *s)
{
    return strcmp(s->command.job, "server") == 0;
}

/* A server has nothing to say while its islands train. */
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

/* The ranks here; or, if none is, the launcher, which passes this on to them wherever they are. */
static void pass_on(const supervisor *s, int number)
{
    if (children_signal(number, s->command.job) == 0)
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

/* A process that a signal has stopped, with its own watchdog: where others wait for it they say so, but a rank alone has none. */
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

/* The job has said that it ends, or nobody has said anything for too long. */
static bool is_over(supervisor *s)
{
    const char *folder = s->config.run.folder;
    double time = clock_seconds();
    if (time - s->heard > patience(s)) {
        log_warn("supervise: nothing has been heard of the job for %.0f s", time - s->heard);
        return true;
    }
    if (is_frozen(s, time))
        return true;
    if (s->over <= 0 && (causes_read(folder, s->position).known || report_ending(folder, s->began) != REPORT_UNKNOWN))
        s->over = time;
    return s->over > 0 && time - s->over > LINGER_SECONDS;
}

/* Since the last job failed: the first step, or a server's merge, that it had not done. */
static void watch_recovery(supervisor *s)
{
    if (s->failed <= 0 || causes_progress(s->config.run.folder) <= s->failed_step)
        return;
    log_info("supervise: %s %lld is done, %.2f s after the incident", is_server(s) ? "merge" : "step",
             (long long)causes_progress(s->config.run.folder), wall_time() - s->failed);
    s->failed = 0;
}

/* Until it ends, however. Its exit status. */
static int attend(supervisor *s)
{
    int exit_status = 0;
    bool saved = false;
    double looked = 0;
    for (bool ended = false; !ended;) {
        ended = children_ended(s->child, &exit_status);
        copy_output(s);
        pass_on_requests(s, &saved);
        if (clock_seconds() - looked > 0.2) {
            looked = clock_seconds();
            listen(s);
            watch_recovery(s);
            if (!ended && is_over(s)) {
                exit_status = 128 + SIGKILL;
                break;
            }
        }
        if (!ended)
            nap(0.02);
    }
    if (!children_kill(5))
        log_warn("supervise: some processes of the job do not end");
    launcher_files_remove(s->child);
    copy_output(s);
    return exit_status;
}

/* ---- its size and its hosts ---- */

/* Can so many ranks be laid out, whatever parallel.data says? *data: into how many data-parallel parts. */
static bool fits(int *data, const config *c, int ranks)
{
    grid g;
    config any = *c;
    any.parallel.data = 0;
    if (config_lay_out(&g, &any, ranks, 0) != STATUS_OK)
        return false;
    *data = g.size[GRID_DATA];
    return true;
}

/* The most ranks that there are slots for, and that can be laid out; the same as before if the run is not elastic. */
static status choose_size(int *ranks, int *data, const supervisor *s)
{
    int slots = hosts_slots(&s->hosts), wanted = s->config.parallel.data;
    if (!s->elastic && s->data > 0)
        wanted = s->data;
    for (*ranks = slots; *ranks > 0; (*ranks)--)
        if (fits(data, &s->config, *ranks) && (wanted == 0 || *data == wanted || (s->elastic && *data < wanted)))
            return STATUS_OK;
    return status_fail(STATUS_FAILED, "the hosts that are left have %d slots: too few for this layout%s", slots,
                       s->elastic ? "" : " (--elastic would go on with fewer data-parallel ranks)");
}

static status fixed_size(int *ranks, int *data, const config *c)
{
    for (*ranks = 1; *ranks < 1 << 20; (*ranks)++)
        if (fits(data, c, *ranks) && *data == c->parallel.data)
            return STATUS_OK;
    return status_fail(STATUS_USAGE, "parallel.data %d cannot be laid out with this configuration", c->parallel.data);
}

static status prepare(supervisor *s)
{
    if (s->hosts.count > 0) {
        TRY(choose_size(&s->ranks, &s->data, s));
        return hosts_write(&s->hosts, s->list, s->ranks);
    }
    if (!supervise_command_sized(&s->command))
        return STATUS_OK;
    if (s->config.parallel.data == 0)
        return status_fail(STATUS_USAGE, "{ranks} needs --hosts FILE, or parallel.data in the configuration");
    return fixed_size(&s->ranks, &s->data, &s->config);
}

/* A host that is to blame is left out if the others can do without it; at its second time, also if that makes the run smaller. */
static void leave_out(supervisor *s, const cause *why)
{
    bool hardware = why->known && why->verdict != INCIDENT_DATA && why->verdict != INCIDENT_NUMBERS &&
                    why->verdict != INCIDENT_REFUSED;
    hosts_entry *e = hardware && *why->host ? hosts_find(&s->hosts, why->host) : NULL;
    int ranks, data;
    if (!e)
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
    cause why = causes_read(folder, s->position);
    if (why.known)
        return why;
    if (s->frozen > 0)
        snprintf(why.words, sizeof why.words, "a process of the job had been stopped for %.0f s", s->frozen);
    else
        snprintf(why.words, sizeof why.words, "the job ended with status %d, and no rank has said why", exit_status);
    incident what = {.verdict = s->frozen > 0 ? INCIDENT_FROZEN : INCIDENT_DEAD,
                     .phase = INCIDENT_PHASES,
                     .rank = -1,
                     .ranks = s->ranks,
                     .step = causes_progress(folder),
                     .micro_batch = -1,
                     .waiting_for = -1,
                     .words = why.words,
                     .ends = true};
    if (incidents_append(folder, &what) != STATUS_OK)
        log_warn("%s", status_message());
    return why;
}

/* What is left to be done after a job: its end as this command's exit status, or -1: another start. */
static int judge(supervisor *s, int exit_status)
{
    const char *folder = s->config.run.folder;
    report_end end = report_ending(folder, s->began);
    if (exit_status == 0 || end == REPORT_DONE)
        return 0;
    if (end == REPORT_STOPPED || exit_status == s->config.run.exit_when_stopped)
        return s->config.run.exit_when_stopped;
    if (exit_status == STATUS_USAGE || exit_status == 127)
        return exit_status == 127 ? STATUS_FAILED : STATUS_USAGE;
    cause why = find_cause(s, exit_status);
    int64_t progress = causes_progress(folder);
    causes_advice advice = causes_weigh(&s->memory, &why, progress);
    s->failed = why.time > s->began ? why.time : wall_time();
    s->failed_step = s->memory.best;
    if (s->asked > 0)
        advice.give_up = "it was asked to stop, and has failed before it could";
    else if (s->started > s->restarts)
        advice.give_up = "all restarts are used up (--restarts)";
    if (advice.give_up) {
        log_error("supervise: %s; last: %s", advice.give_up, why.words);
        return STATUS_FAILED;
    }
    lock_retire(s->lock);
    leave_out(s, &why);
    log_warn("supervise: %s; restart %lld in %.0f s", why.words, (long long)s->started, advice.wait);
    for (double until = clock_seconds() + advice.wait; clock_seconds() < until && signals_pending() != SIGNALS_STOP;)
        nap(0.05);
    if (signals_pending() != SIGNALS_STOP)
        return -1;
    log_info("supervise: asked to stop between two jobs");
    return s->config.run.exit_when_stopped;
}

static status start(supervisor *s)
{
    TRY(prepare(s));
    char **argv = supervise_command_expand(&s->command, s->ranks, s->list, s->hosts.count > 0 ? s->data : 0);
    s->position = causes_position(s->config.run.folder);
    s->began = wall_time();
    s->over = s->asked = s->frozen = 0;
    s->heard = s->running = clock_seconds();
    s->started++;
    status result = children_start(&s->child, argv, s->output);
    supervise_command_free_words(argv);
    return result;
}

static int supervise(supervisor *s)
{
    for (;;) {
        if (start(s) != STATUS_OK) {
            log_error("supervise: %s", status_message());
            return STATUS_FAILED;
        }
        int code = judge(s, attend(s));
        if (code >= 0)
            return code;
    }
}

/* ---- the command ---- */

static status open_supervisor(supervisor *s, const char *hosts_file)
{
    const supervise_command *k = &s->command;
    TRY(config_load(&s->config, k->words[k->config], k->count - k->config - 1, k->words + k->config + 1));
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
    s->list = must_format("%s/hosts", s->config.run.folder);
    s->lock = must_format("%s/lock", s->config.run.folder);
    s->copied = (off_t)bytes_of(s->config.run.folder, "output.log");
    return children_adopt();
}

int supervise_main(int argc, char **argv)
{
    supervisor s = {.restarts = 100};
    const char *hosts_file = NULL;
    const options_row rows[] = {
        {"--restarts", OPTIONS_INTEGER, "N", "give up after so many restarts (100)", &s.restarts, 0, 1e9, NULL},
        {"--elastic", OPTIONS_FLAG, NULL, "go on with fewer data-parallel ranks where hosts are lost", &s.elastic, 0, 0,
         NULL},
        {"--hosts", OPTIONS_TEXT, "FILE", "lines of \"NAME slots=N\"; more than the job needs are spares", &hosts_file,
         0, 0, NULL},
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
        .row = rows,
        .rows = sizeof rows / sizeof *rows,
    };
    int operands, code = options_parse(&command, &operands, argc, argv);
    if (code != OPTIONS_GO_ON)
        return code;
    status ready = supervise_command_open(&s.command, operands, argv + 1);
    if (ready == STATUS_OK)
        ready = open_supervisor(&s, hosts_file);
    signals_install();
    if (ready == STATUS_OK)
        code = supervise(&s);
    else
        log_error("supervise: %s", status_message());
    config_free(&s.config);
    hosts_free(&s.hosts);
    free(s.output);
    free(s.list);
    free(s.lock);
    return ready == STATUS_OK ? code : (int)ready;
}
