/* Faults at random moments of runs under phalanx supervise: each run ends with the bits of one that nobody disturbed,
 * and leaves nothing. `make faults FAULTS=N SEED=S` throws N of them and prints what each kind costs; each is a line
 * "fault ..." as well. Among the tests each kind of what its surroundings may do to a run is thrown once. Run number k
 * of a seed is the same alone: FIRST=k begins there. ONLY=TEXT: kinds whose names hold it. A run that is lost is kept
 * in KEEP, if that folder is named. */
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
#include "memory/scope.h"
#include "tests/jobs/disturbed.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/supervised.h"
#include "tests/jobs/workfolder.h"

/* Whom a signal is sent to. */
typedef enum target { NOBODY, RANK, TWO_RANKS, LAUNCHER, SUPERVISOR } target;

/* Where a spy looks for copies in memory, instead of in the run's folder. */
#define IN_MEMORY "/dev/shm"

static bool lose_latest(disturbed *d);
static bool flip_newest(disturbed *d);

/* A signal, then what is done to the run's surroundings, and what a spy does on one of the next `calls` calls
 * (io_faults.c, on paths in the run's folder that begin with `at`, or on sockets; allocation_faults.c, where it is
 * "memory"). */
typedef struct kind {
    const char *name;
    int number; /* the signal; 0: none */
    target target;
    const char *at, *what;
    int calls;
    bool harmless;             /* nothing ends */
    bool sockets;              /* only where messages go over sockets */
    bool (*act)(disturbed *d); /* false: it could not be done */
    double pause;              /* seconds until the same rank goes on */
    int weight;                /* how often, beside the others */
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
    {"killed, and `latest` is lost", SIGKILL, RANK, .act = lose_latest, .weight = 4},
    {"killed, and the newest checkpoint is damaged", SIGKILL, RANK, .act = flip_newest, .weight = 4},
    {"no memory for an allocation", .what = "memory", .calls = 200, .weight = 5},
    {"killed, and no memory in the start", SIGKILL, RANK, "", "memory", 20000, .weight = 6},
    {"a connection between ranks is lost", .what = "RESET 1 send", .calls = 30, .sockets = true, .weight = 14},
    {"a connection between ranks goes silent", .what = "MUTE 1 send", .calls = 30, .sockets = true, .weight = 6},
    /* its surroundings: FIRST_OF_SURROUNDINGS is the next */
    {"the clock of a rank is set back", .act = disturbed_set_back_a_clock, .harmless = true, .weight = 4},
    {"the clock of a rank is set ahead", .act = disturbed_set_ahead_a_clock, .harmless = true, .weight = 4},
    {"killed, and all ranks' clocks are wrong", SIGKILL, RANK, .act = disturbed_set_all_clocks, .weight = 5},
    {"killed, and the supervisor's clock is wrong", SIGKILL, RANK, .act = disturbed_set_supervisor_clock, .weight = 5},
    {"nobody reads the output for a while", .act = disturbed_stop_reader, .harmless = true, .weight = 5},
    {"killed, and nobody reads the output", SIGKILL, RANK, .act = disturbed_stop_reader, .weight = 5},
    {"the run's folder is renamed for a while", .act = disturbed_rename_run, .harmless = true, .weight = 5},
    {"killed, and the run's folder is renamed", SIGKILL, RANK, .act = disturbed_rename_run, .weight = 5},
    {"checkpoints are unmounted for a while", .act = disturbed_unmount_checkpoints, .harmless = true, .weight = 5},
    {"killed, and checkpoints are unmounted", SIGKILL, RANK, .act = disturbed_unmount_checkpoints, .weight = 5},
    {"a look at a file fails once", .at = "", .what = "EIO 1 look", .calls = 40, .harmless = true, .weight = 8},
    {"killed, and a look of the start fails once", SIGKILL, RANK, "", "EIO 1 look", 150, .weight = 12},
    {"killed, and a look at copies fails once", SIGKILL, RANK, IN_MEMORY, "EIO 1 look", 40, .weight = 6},
    {"a second train begins in the folder", .act = disturbed_second_train, .harmless = true, .weight = 3},
    {"a second supervisor begins in the folder", .act = disturbed_second_supervisor, .harmless = true, .weight = 4},
    {"the supervisor is killed, another begins", SIGKILL, SUPERVISOR, .weight = 5},
    {"neighbours' files are where copies are", .act = disturbed_fill_memory, .harmless = true, .weight = 4},
    {"killed, and neighbours' files are there", SIGKILL, RANK, .act = disturbed_fill_memory, .weight = 5},
    {"links lie under temporary names", .act = disturbed_plant_links, .harmless = true, .weight = 4},
};

enum { KINDS = sizeof kinds / sizeof *kinds, SURROUNDINGS = 19, FIRST_OF_SURROUNDINGS = KINDS - SURROUNDINGS };

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

enum { LAYOUTS = sizeof layouts / sizeof *layouts, LAYOUT_OF_COPIES = 4 };

typedef struct tally {
    int thrown, ended;
    double lost, worst; /* seconds */
} tally;

/* How often a kind is thrown, beside the others. */
static int weight_of(const kind *k)
{
    const char *only = getenv("ONLY");
    return !only || strstr(k->name, only) ? k->weight : 0;
}

static int draw_kind(disturbed *d)
{
    int all = 0, k = 0;
    for (int i = 0; i < KINDS; i++)
        all += weight_of(&kinds[i]);
    if (all == 0)
        fail_msg("no kind of fault is named \"%s\"", getenv("ONLY"));
    for (int left = disturbed_draw(d, all); left >= weight_of(&kinds[k]); k++)
        left -= weight_of(&kinds[k]);
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

/* ---- one fault
 * ---------------------------------------------------------------------------------------------------- */

static bool is_memory(const kind *k)
{
    return k->what && !strcmp(k->what, "memory");
}

static void set_trap(disturbed *d, const kind *k)
{
    int call = disturbed_draw(d, k->calls);
    char *words;
    if (is_memory(k))
        words = must_format("%d", call);
    else if (k->sockets)
        words = must_format("socket:* %s %d", k->what, call);
    else if (!strcmp(k->at, IN_MEMORY))
        words = must_format(IN_MEMORY "/phalanx-%u-* %s %d", (unsigned)getuid(), k->what, call);
    else
        words = must_format("%s%s* %s %d", d->run, k->at, k->what, call);
    disturbed_arm(d, is_memory(k) ? d->no_memory : d->once, words);
    free(words);
}

/* The trap is gone if somebody went into it; false, and it is taken away, if nobody did. */
static bool is_sprung(const disturbed *d, const kind *k)
{
    return unlink(is_memory(k) ? d->no_memory : d->once) != 0;
}

static bool send(disturbed *d, const kind *k)
{
    int first = disturbed_draw(d, d->ranks), pid = runs_process(d->run, first);
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

static void flip_bit(disturbed *d, const char *path)
{
    uint8_t byte;
    int file = open(path, O_RDWR);
    off_t bytes = file >= 0 ? lseek(file, 0, SEEK_END) : 0, at = bytes > 0 ? disturbed_draw(d, (int)bytes) : 0;
    if (bytes > 0 && pread(file, &byte, 1, at) == 1) {
        byte ^= (uint8_t)(1 << disturbed_draw(d, 8));
        assert_int_equal(pwrite(file, &byte, 1, at), 1);
    }
    if (file >= 0)
        close(file);
}

/* The run has just been ended: nobody writes its checkpoints any more. */
static bool lose_latest(disturbed *d)
{
    AUTO_FREE char *path = workfolder_path(d->run, "checkpoints/latest");
    return unlink(path) == 0;
}

static bool flip_newest(disturbed *d)
{
    bool flipped = false;
    d->damaged = disturbed_latest(d);
    AUTO_FREE char *path = must_format("%s/checkpoints/step-%08lld", d->run, (long long)d->damaged);
    DIR *folder = opendir(path);
    for (struct dirent *e; folder && !flipped && (e = readdir(folder));)
        if (strstr(e->d_name, ".safetensors")) {
            AUTO_FREE char *file = workfolder_path(path, e->d_name);
            flip_bit(d, file);
            flipped = true;
        }
    if (folder)
        closedir(folder);
    return flipped;
}

/* Does this fault fit this run at this moment? */
static bool is_possible(const disturbed *d, const kind *k)
{
    if (d->ranks == 1 && k->target == LAUNCHER)
        return false; /* its parent is the supervisor */
    if (k->sockets && !layouts[d->layout].sockets)
        return false;
    if (k->at && !strcmp(k->at, IN_MEMORY) && !strstr(layouts[d->layout].keys, "memory_every"))
        return false;
    /* Who puts an older folder back in the place of the only checkpoint is asked: its disk may not be mounted. */
    if (k->act == disturbed_unmount_checkpoints)
        return disturbed_latest(d) > 0;
    if (k->act == disturbed_second_train)
        return runs_process(d->run, 0);
    if (k->act == disturbed_second_supervisor)
        return disturbed_is_watched(d);
    /* Two good checkpoints, of which one may go: it takes a person where none is left. */
    return k->act != flip_newest || disturbed_latest(d) >= d->damaged + 8;
}

/* ---- one run
 * ------------------------------------------------------------------------------------------------------ */

/* Until the supervisor says once more that a new step is done; false: the run is over, or goes on undisturbed. */
static bool wait_for_restart(disturbed *d, double seconds)
{
    for (double until = clock_seconds() + seconds; clock_seconds() < until && !disturbed_is_done(d);) {
        char *rest = supervised_wait_for(d->job, "supervise: step ", d->seen + 1, 0.3);
        d->seen += rest != NULL;
        free(rest);
        if (rest)
            return true;
    }
    return false;
}

static int64_t steps_done(const disturbed *d)
{
    AUTO_FREE char *metrics = workfolder_path(d->run, "metrics.jsonl");
    json_t *last = runs_last_line(metrics);
    int64_t step = (int64_t)json_integer_value(json_object_get(last, "step"));
    json_decref(last);
    return step;
}

/* The supervisor was asked to stop, and the run has saved; or it was killed, and the run goes on without it. Another
 * one begins, and a new step is done. Has the job ended? */
static bool start_again(disturbed *d, const kind *k)
{
    launch_result r = launch_finish(d->job);
    bool stopped = r.status == 75, killed = k->number == SIGKILL && r.status == 128 + SIGKILL;
    if (!stopped && !killed && r.status != 0)
        d->loss = must_format("%s: status %d: %s%s", k->name, r.status, r.out, r.err);
    launch_free(&r);
    d->adopted |= killed;
    disturbed_begin(d);
    if (stopped || killed)
        runs_wait_for_step(d->run, steps_done(d) + 1, 30);
    return stopped;
}

/* One fault; false if it did not happen. */
static bool throw_fault(disturbed *d, int which, tally *t)
{
    const kind *k = &kinds[which];
    double began = clock_seconds();
    if (k->what)
        set_trap(d, k);
    bool happened = k->target == NOBODY || send(d, k);
    if (happened && k->act)
        happened = k->act(d) || k->number;
    bool ended = false;
    if (happened && k->target == SUPERVISOR)
        ended = start_again(d, k);
    else if (happened && !k->harmless)
        ended = wait_for_restart(d, k->number ? 25 : 14);
    else if (k->what)
        for (int i = 0; i < 100 && access(d->once, F_OK) == 0 && !disturbed_is_done(d); i++)
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

static void open_run(disturbed *d, const char *top, int number, uint64_t seed, int layout)
{
    bool few = !getenv("FAULTS") && layout < 0; /* long enough for several faults; among the tests a few will do */
    disturbed_open(d, top, number, (seed * 1000003 + (uint64_t)number + 1) * 0x9E3779B97F4A7C15u);
    d->layout = layout >= 0 ? layout : number % LAYOUTS;
    d->steps = few ? SUPERVISED_STEPS : 300;
    AUTO_FREE char *keys = must_format("train.steps=%d %s", d->steps, layouts[d->layout].keys);
    disturbed_lay_out(d, layouts[d->layout].ranks, keys, layouts[d->layout].sockets ? "OMPI_MCA_btl=self,tcp" : "");
    disturbed_begin(d);
    while (!disturbed_has(d, "metrics.jsonl") && !launch_ended(d->job))
        usleep(1000);
}

static bool has_ranks(const disturbed *d)
{
    for (int i = 0; i < d->ranks; i++)
        if (runs_process(d->run, i))
            return true;
    return false;
}

/* Waits until the run has ended. What it did last may lie in a folder that has made way for an older one: whoever has
 * done that starts it again. */
static launch_result finish(disturbed *d)
{
    launch_result r = launch_finish(d->job);
    if (d->loss || r.status || r.timed_out || disturbed_latest(d) == d->steps)
        return r;
    launch_free(&r);
    disturbed_begin(d);
    return launch_finish(d->job);
}

/* Has it ended as if nothing had happened? */
static bool close_run(disturbed *d)
{
    launch_result r = finish(d);
    const char *whole = supervised_whole(d->top, d->ranks, d->keys);
    if (!d->loss && (r.status || r.timed_out))
        d->loss = must_format("status %d%s: %s%s", r.status, r.timed_out ? " (timed out)" : "", r.out, r.err);
    if (!d->loss)
        d->loss = supervised_difference(d->run, whole);
    AUTO_FREE char *neighbours = disturbed_neighbours_go(d);
    if (!d->loss && neighbours)
        d->loss = must_strdup(neighbours);
    for (double until = clock_seconds() + 30; d->adopted && has_ranks(d) && clock_seconds() < until;)
        clock_nap(0.1); /* nobody waits for the end of processes that he has not started */
    if (!d->loss)
        d->loss = supervised_litter(d->run);
    if (d->loss)
        printf("LOST: run %d, %d ranks %s: %s\n", d->number, d->ranks, d->keys, d->loss);
    bool lost = d->loss;
    AUTO_FREE char *name = must_format("seed-%s-run-%d", getenv("SEED"), d->number);
    disturbed_close(d, getenv("KEEP"), name);
    launch_free(&r);
    return !lost;
}

static bool goes_on(disturbed *d)
{
    return !disturbed_is_done(d) && !d->loss && !launch_ended(d->job);
}

/* One run of a layout, with faults one after another until it is done. Its faults; *lost: it did not end as it
 * should. */
static int disturb(tally *tallies, bool *lost, const char *top, int number, int faults, uint64_t seed)
{
    disturbed d;
    int thrown = 0;
    open_run(&d, top, number, seed, -1);
    while (thrown < faults && goes_on(&d)) {
        int k = draw_kind(&d);
        if (!is_possible(&d, &kinds[k]))
            continue;
        usleep((unsigned)disturbed_draw(&d, 600) * 1000);
        thrown += throw_fault(&d, k, &tallies[k]);
    }
    *lost = !close_run(&d);
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

/* Runs with copies in memory, each with faults of the kinds that have not been thrown yet, until all have. */
static void each_kind_of_surroundings_changes_nothing(void **state)
{
    tally tallies[KINDS] = {0};
    int next = FIRST_OF_SURROUNDINGS, losses = 0;
    for (int number = 1000; next < KINDS && losses == 0; number++) {
        disturbed d;
        open_run(&d, *state, number, 1, LAYOUT_OF_COPIES);
        while (next < KINDS && goes_on(&d)) {
            usleep(100000);
            if (is_possible(&d, &kinds[next]))
                next += throw_fault(&d, next, &tallies[next]);
        }
        losses += !close_run(&d);
    }
    assert_int_equal(losses, 0);
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    AUTO_FREE char *waits = launch_beside("patient_waits.so");
    setenv("LD_PRELOAD", waits, 1); /* of what is started here */
    const struct CMUnitTest random[] = {cmocka_unit_test(faults_at_random_moments_change_nothing)};
    const struct CMUnitTest covering[] = {cmocka_unit_test(each_kind_of_surroundings_changes_nothing)};
    int failed = cmocka_run_group_tests(random, supervised_setup, workfolder_teardown);
    if (!getenv("FAULTS"))
        failed += cmocka_run_group_tests(covering, supervised_setup, workfolder_teardown);
    return failed;
}
