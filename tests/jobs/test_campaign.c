/* Faults at random moments of runs under phalanx supervise: each run ends with the bits of one that nobody disturbed,
 * and leaves nothing. `make faults FAULTS=N SEED=S` throws N of them and prints what each kind costs; each is a line
 * "fault ..." as well. Run number k of a seed is the same alone: FIRST=k begins there. A run that is lost is kept in
 * KEEP, if that folder is named. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "memory/clock.h"
#include "memory/log.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/supervised.h"
#include "tests/jobs/workfolder.h"

/* Whom a signal is sent to. */
typedef enum target { NOBODY, RANK, TWO_RANKS, LAUNCHER, SUPERVISOR } target;

/* What is done to the files of a run that has just been ended. */
typedef enum damage { NONE, LOSE_LATEST, FLIP_NEWEST } damage;

/* A signal, and what a spy does on one of the next `calls` calls (io_faults.c, on paths in the run's folder that begin
 * with `at`, or on sockets; allocation_faults.c, where it is "memory"). */
typedef struct kind {
    const char *name;
    int number; /* the signal; 0: none */
    target target;
    const char *at, *what;
    int calls;
    bool harmless; /* nothing ends */
    bool sockets;  /* only where messages go over sockets */
    damage damage;
    double pause; /* seconds until the same rank goes on */
    bool intruder;
    int weight; /* how often, beside the others */
} kind;

static const kind kinds[] = {
    {"a rank is killed", SIGKILL, RANK, .weight = 6},
    {"a rank is frozen", SIGSTOP, RANK, .weight = 3},
    {"a rank crashes", SIGSEGV, RANK, .weight = 3},
    {"a rank sleeps for a second", SIGSTOP, RANK, .harmless = true, .pause = 1, .weight = 3},
    {"two ranks are killed", SIGKILL, TWO_RANKS, .weight = 4},
    {"mpirun is killed", SIGKILL, LAUNCHER, .weight = 3},
    {"mpirun is frozen", SIGSTOP, LAUNCHER, .weight = 2},
    {"the job is asked to stop, and started again", SIGTERM, SUPERVISOR, .weight = 3},
    {"storage hangs in a save", .at = "/checkpoints", .what = "HANG 1 any", .calls = 60, .weight = 2},
    {"storage is slow once", .at = "/checkpoints", .what = "SLOW 1 any", .calls = 60, .harmless = true, .weight = 2},
    {"a write fails once", .at = "/checkpoints", .what = "EIO 1 write", .calls = 8, .harmless = true, .weight = 3},
    {"a disk is full once", .at = "/checkpoints", .what = "ENOSPC 1 write", .calls = 8, .harmless = true, .weight = 3},
    {"a sync fails once", .at = "/checkpoints", .what = "EIO 1 fsync", .calls = 8, .harmless = true, .weight = 2},
    {"a rename fails once", .at = "/checkpoints", .what = "EIO 1 rename", .calls = 3, .harmless = true, .weight = 2},
    {"a file cannot be opened once", .at = "/checkpoints", .what = "EIO 1 open", .calls = 8, .harmless = true,
     .weight = 2},
    {"killed at a call of a save", .at = "/checkpoints", .what = "KILL 1 any", .calls = 120, .weight = 12},
    {"killed, and again at a call of the load", SIGKILL, RANK, "/checkpoints/step", "KILL 1 any", 24, .weight = 10},
    {"killed, and again at a call of the start", SIGKILL, RANK, "", "KILL 1 any", 60, .weight = 10},
    {"killed, and a read of the load fails once", SIGKILL, RANK, "/checkpoints", "EIO 1 read", 4, .weight = 4},
    {"killed, and the load hangs once", SIGKILL, RANK, "/checkpoints", "HANG 1 any", 12, .weight = 2},
    {"killed, and `latest` is lost", SIGKILL, RANK, .damage = LOSE_LATEST, .weight = 4},
    {"killed, and the newest checkpoint is damaged", SIGKILL, RANK, .damage = FLIP_NEWEST, .weight = 4},
    {"no memory for an allocation", .what = "memory", .calls = 200, .weight = 5},
    {"killed, and no memory in the start", SIGKILL, RANK, "", "memory", 20000, .weight = 6},
    {"a second run begins in the folder", .intruder = true, .harmless = true, .weight = 2},
    {"a connection between ranks is lost", .what = "RESET 1 send", .calls = 30, .sockets = true, .weight = 14},
    {"a connection between ranks goes silent", .what = "MUTE 1 send", .calls = 30, .sockets = true, .weight = 6},
};

enum { KINDS = sizeof kinds / sizeof *kinds };

static const struct {
    int ranks;
    bool sockets;
    const char *keys;
} layouts[] = {
    {3, false, "parallel.zero=1"},
    {4, false, "parallel.tensor=2 parallel.pipeline=2"},
    {2, true, "parallel.zero=3"},
    {1, false, ""},
    {3, false, "parallel.zero=2 checkpoint.memory_every=2"},
    {3, true, "parallel.zero=1"},
    {2, false, "parallel.pipeline=2 parallel.schedule=zb-h1 checkpoint.asynchronous=false"},
};

enum { LAYOUTS = sizeof layouts / sizeof *layouts };

typedef struct tally {
    int thrown, ended;
    double lost, worst; /* seconds */
} tally;

typedef struct disturbed {
    int number, ranks, layout;
    const char *top;
    char *run, *once, *no_memory, *before, *keys;
    launch *job;
    int seen; /* restarts of this supervisor */
    int64_t damaged;
    uint64_t random;
    char *loss; /* why the run counts as lost; NULL: it does not */
} disturbed;

static int draw(disturbed *d, int below)
{
    d->random ^= d->random << 13; /* xorshift64 */
    d->random ^= d->random >> 7;
    d->random ^= d->random << 17;
    return (int)(d->random % (uint64_t)below);
}

static int draw_kind(disturbed *d)
{
    int all = 0, k = 0;
    for (int i = 0; i < KINDS; i++)
        all += kinds[i].weight;
    for (int left = draw(d, all); left >= kinds[k].weight; k++)
        left -= kinds[k].weight;
    return k;
}

static int parent_of(int pid)
{
    char *path = must_format("/proc/%d/stat", pid), text[512] = "";
    FILE *f = fopen(path, "r");
    int parent = 0;
    if (f && fgets(text, sizeof text, f) && strrchr(text, ')'))
        sscanf(strrchr(text, ')') + 1, " %*c %d", &parent);
    if (f)
        fclose(f);
    free(path);
    return parent;
}

static bool exists(const char *folder, const char *name)
{
    char *path = workfolder_path(folder, name);
    bool is = access(path, F_OK) == 0;
    free(path);
    return is;
}

static bool is_done(const disturbed *d)
{
    return exists(d->run, "summary.json");
}

/* ---- one fault
 * ---------------------------------------------------------------------------------------------------- */

/* The words come into being whole: a spy must not read half of them. */
static void arm(const disturbed *d, const char *path, const char *words)
{
    char *new = must_format("%s.new", d->once);
    workfolder_write(new, words, (int64_t)strlen(words));
    assert_int_equal(rename(new, path), 0);
    free(new);
}

static bool is_memory(const kind *k)
{
    return k->what && !strcmp(k->what, "memory");
}

static void set_trap(disturbed *d, const kind *k)
{
    int call = draw(d, k->calls);
    char *words;
    if (is_memory(k))
        words = must_format("%d", call);
    else if (k->sockets)
        words = must_format("socket:* %s %d", k->what, call);
    else
        words = must_format("%s%s* %s %d", d->run, k->at, k->what, call);
    arm(d, is_memory(k) ? d->no_memory : d->once, words);
    free(words);
}

/* The trap is gone if somebody went into it; false, and it is taken away, if nobody did. */
static bool is_sprung(const disturbed *d, const kind *k)
{
    return unlink(is_memory(k) ? d->no_memory : d->once) != 0;
}

static bool send(disturbed *d, const kind *k)
{
    int first = draw(d, d->ranks), pid = runs_process(d->run, first);
    if (k->target == SUPERVISOR)
        return kill(launch_pid(d->job), k->number) == 0;
    if (pid && k->target == LAUNCHER)
        pid = parent_of(pid);
    if (pid <= 1 || kill(pid, k->number) != 0)
        return false;
    if (k->target == TWO_RANKS && d->ranks > 1 && runs_process(d->run, (first + 1) % d->ranks))
        kill(runs_process(d->run, (first + 1) % d->ranks), k->number);
    if (k->pause > 0) {
        usleep((unsigned)(k->pause * 1e6));
        kill(pid, SIGCONT);
    }
    return true;
}

static int64_t step_of_latest(const disturbed *d)
{
    long long step = 0;
    char *path = workfolder_path(d->run, "checkpoints/latest");
    FILE *f = fopen(path, "r");
    if (f && fscanf(f, "step-%lld", &step) != 1)
        step = 0;
    if (f)
        fclose(f);
    free(path);
    return step;
}

static void flip_bit(disturbed *d, const char *path)
{
    uint8_t byte;
    int file = open(path, O_RDWR);
    off_t bytes = file >= 0 ? lseek(file, 0, SEEK_END) : 0, at = bytes > 0 ? draw(d, (int)bytes) : 0;
    if (bytes > 0 && pread(file, &byte, 1, at) == 1) {
        byte ^= (uint8_t)(1 << draw(d, 8));
        assert_int_equal(pwrite(file, &byte, 1, at), 1);
    }
    if (file >= 0)
        close(file);
}

/* The run has just been ended: nobody writes the newest checkpoint any more. */
static void do_damage(disturbed *d, const kind *k)
{
    if (k->damage == LOSE_LATEST) {
        char *path = workfolder_path(d->run, "checkpoints/latest");
        unlink(path);
        free(path);
    }
    if (k->damage != FLIP_NEWEST)
        return;
    d->damaged = step_of_latest(d);
    char *path = must_format("%s/checkpoints/step-%08lld", d->run, (long long)d->damaged);
    DIR *folder = opendir(path);
    for (struct dirent *e; folder && (e = readdir(folder));)
        if (strstr(e->d_name, ".safetensors")) {
            char *file = workfolder_path(path, e->d_name);
            flip_bit(d, file);
            free(file);
            break;
        }
    if (folder)
        closedir(folder);
    free(path);
}

/* Does this fault fit this run at this moment? */
static bool is_possible(const disturbed *d, const kind *k)
{
    if (d->ranks == 1 && k->target == LAUNCHER)
        return false; /* its parent is the supervisor */
    if (k->sockets && !layouts[d->layout].sockets)
        return false;
    if (k->intruder && !runs_process(d->run, 0))
        return false;
    /* Two good checkpoints, of which one may go: it takes a person where none is left. */
    return k->damage != FLIP_NEWEST || step_of_latest(d) >= d->damaged + 8;
}

/* Another run in the same folder is refused, and writes nothing. */
static void intrude(disturbed *d)
{
    char *program = launch_beside("../phalanx");
    launch_result r = launch_run(60, "exec %s train %s/run.yaml run.folder=%s", program, d->top, d->run);
    if (r.status == 0 ? !is_done(d) : !strstr(r.err, "another run"))
        d->loss = must_format("a second run was not refused: status %d, %s%s", r.status, r.out, r.err);
    launch_free(&r);
    free(program);
}

/* ---- one run
 * ------------------------------------------------------------------------------------------------------ */

static void begin(disturbed *d)
{
    d->job = supervised_start(d->top, d->run, d->ranks, d->before, d->keys);
    d->seen = 0;
}

/* Until the supervisor says once more that a new step is done; false: the run is over, or goes on undisturbed. */
static bool wait_for_restart(disturbed *d, double seconds)
{
    for (double until = clock_seconds() + seconds; clock_seconds() < until && !is_done(d);) {
        char *rest = supervised_wait_for(d->job, "supervise: step ", d->seen + 1, 0.3);
        d->seen += rest != NULL;
        free(rest);
        if (rest)
            return true;
    }
    return false;
}

/* Asked to stop, it has saved: it is started again, and has done a new step. */
static bool start_again(disturbed *d)
{
    launch_result r = launch_finish(d->job);
    bool stopped = r.status == 75, good = stopped || r.status == 0;
    if (!good)
        d->loss = must_format("asked to stop: status %d: %s%s", r.status, r.out, r.err);
    launch_free(&r);
    begin(d);
    if (!stopped)
        return false;
    char *checkpoints = workfolder_path(d->run, "metrics.jsonl");
    json_t *last = runs_last_line(checkpoints);
    runs_wait_for_step(d->run, (int64_t)json_integer_value(json_object_get(last, "step")) + 1, 30);
    json_decref(last);
    free(checkpoints);
    return true;
}

/* One fault; false if it did not happen. */
static bool throw_fault(disturbed *d, int which, tally *t)
{
    const kind *k = &kinds[which];
    double began = clock_seconds();
    if (k->what)
        set_trap(d, k);
    bool happened = k->target == NOBODY || send(d, k);
    if (happened && k->intruder)
        intrude(d);
    if (happened && k->damage)
        do_damage(d, k);
    bool ended = false;
    if (happened && k->target == SUPERVISOR)
        ended = start_again(d);
    else if (happened && !k->harmless)
        ended = wait_for_restart(d, k->number ? 25 : 14);
    else if (k->what)
        for (int i = 0; i < 100 && access(d->once, F_OK) == 0 && !is_done(d); i++)
            usleep(20000);
    /* of a compound fault the first half has happened, whatever became of the trap */
    if (k->what && !is_sprung(d, k) && !k->number)
        happened = false;
    if (!happened)
        return false;
    double lost = clock_seconds() - began;
    t->thrown++;
    t->ended += ended;
    t->lost += ended ? lost : 0;
    t->worst = ended && lost > t->worst ? lost : t->worst;
    printf("fault\t%s\t%d\t%.2f\n", k->name, ended, ended ? lost : 0);
    return true;
}

static void open_run(disturbed *d, const char *top, int number, uint64_t seed)
{
    char *files = launch_beside("io_faults.so"), *memory = launch_beside("allocation_faults.so");
    *d = (disturbed){.number = number, .top = top, .layout = number % LAYOUTS};
    d->ranks = layouts[d->layout].ranks;
    d->random = (seed * 1000003 + (uint64_t)number + 1) * 0x9E3779B97F4A7C15u;
    for (int i = 0; i < 8; i++)
        draw(d, 2);
    d->run = must_format("%s/run%d", top, number);
    d->once = must_format("%s/once%d", top, number);
    d->no_memory = must_format("%s/memory%d", top, number);
    d->before = must_format("'LD_PRELOAD=%s %s' PHALANX_IO_ONCE=%s PHALANX_ALLOCATION_ONCE=%s PHALANX_NODE=f%d %s",
                            files, memory, d->once, d->no_memory, (int)getpid(),
                            layouts[d->layout].sockets ? "OMPI_MCA_btl=self,tcp" : "");
    /* long enough for several faults; among the tests a few will do */
    d->keys = must_format("train.steps=%d %s", getenv("FAULTS") ? 300 : SUPERVISED_STEPS, layouts[d->layout].keys);
    free(memory);
    free(files);
}

static void close_run(disturbed *d)
{
    const char *keep = getenv("KEEP");
    char *line = d->loss && keep ? must_format("mv %s %s/seed-%s-run-%d", d->run, keep, getenv("SEED"), d->number)
                                 : must_format("rm -rf %s", d->run);
    assert_int_equal(system(line), 0);
    free(line);
    free(d->run);
    free(d->once);
    free(d->no_memory);
    free(d->before);
    free(d->keys);
    free(d->loss);
}

/* One run of a layout, with faults one after another until it is done. Its faults; *lost: it did not end as it
 * should. */
static int disturb(tally *tallies, bool *lost, const char *top, int number, int faults, uint64_t seed)
{
    disturbed d;
    int thrown = 0;
    open_run(&d, top, number, seed);
    const char *whole = supervised_whole(top, d.ranks, d.keys);
    begin(&d);
    while (!exists(d.run, "metrics.jsonl") && !launch_ended(d.job))
        usleep(1000);
    while (thrown < faults && !is_done(&d) && !d.loss && !launch_ended(d.job)) {
        int k = draw_kind(&d);
        if (!is_possible(&d, &kinds[k]))
            continue;
        usleep((unsigned)draw(&d, 1000) * 1000);
        thrown += throw_fault(&d, k, &tallies[k]);
    }
    launch_result r = launch_finish(d.job);
    if (!d.loss && (r.status || r.timed_out))
        d.loss = must_format("status %d%s: %s%s", r.status, r.timed_out ? " (timed out)" : "", r.out, r.err);
    if (!d.loss)
        d.loss = supervised_difference(d.run, whole);
    if (!d.loss)
        d.loss = supervised_litter(d.run);
    if (d.loss)
        printf("LOST: run %d, %d ranks %s: %s\n", number, d.ranks, d.keys, d.loss);
    *lost = d.loss;
    launch_free(&r);
    close_run(&d);
    return thrown;
}

static void faults_at_random_moments_change_nothing(void **state)
{
    const char *wanted = getenv("FAULTS"), *seed = getenv("SEED"), *first = getenv("FIRST");
    int faults = wanted && atoi(wanted) > 0 ? atoi(wanted) : 3, from = first ? atoi(first) : 0, number = from,
        losses = 0;
    tally tallies[KINDS] = {0};
    for (int thrown = 0; thrown < faults; number++) {
        int left = faults - thrown, now = 3 + number % 6;
        bool lost;
        thrown += disturb(tallies, &lost, *state, number, now < left ? now : left, seed ? (uint64_t)atoll(seed) : 1);
        losses += lost;
    }
    printf("%d runs, %d lost; seconds from the fault to the next new step:\n", number - from, losses);
    printf("%-46s %7s %14s %7s %7s\n", "fault", "thrown", "ended the job", "mean", "worst");
    for (int k = 0; k < KINDS; k++)
        printf("%-46s %7d %14d %7.1f %7.1f\n", kinds[k].name, tallies[k].thrown, tallies[k].ended,
               tallies[k].ended ? tallies[k].lost / tallies[k].ended : 0, tallies[k].worst);
    assert_int_equal(losses, 0);
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faults_at_random_moments_change_nothing),
    };
    return cmocka_run_group_tests(tests, supervised_setup, workfolder_teardown);
}
