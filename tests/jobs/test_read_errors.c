/* One read that fails, at every call by which a start looks at files: of loading, resuming, the metrics, the copies in
 * memory, a server's journal. What may pass is tried again, what stays ends the start with words; nothing is deleted,
 * nothing is emptied, and the run ends with the bits of one that nobody disturbed.
 *
 * `make check` tries the calls of one call of each (call, file), `make check-all` the others. */
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

#include "memory/log.h"
#include "memory/scope.h"
#include "tests/cover.h"
#include "tests/jobs/island_jobs.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/servers.h"
#include "tests/jobs/supervised.h"
#include "tests/jobs/workfolder.h"
#include "tests/skip.h"

enum {
    SECONDS = ISLAND_JOBS_LIMIT,
    MOST_CALLS = 4096,
    CHECKED = 20 /* one call in so many, and one of each (call, file) */
};

/* A line for the shell, which must not fail; it is freed. */
static void shell(char *line)
{
    if (system(line) != 0)
        fail_msg("%s", line);
    free(line);
}

/* ---- the calls ---- */

/* Calls that look at files, in their order: "open step-00000012/manifest.json". */
typedef struct calls {
    int count;
    char *text[MOST_CALLS];
    bool takes[MOST_CALLS]; /* this process tries it */
} calls;

/* The last two parts of the path, digits that differ from run to run left out. */
static char *fact_of(char *line)
{
    char *slash = strrchr(line, '/'), *before = slash;
    while (before && before > line && before[-1] != '/' && before[-1] != ' ')
        before--;
    const char *space = strchr(line, ' ');
    char *fact = must_format("%.*s=%s", (int)(space - line), line, before && before > space ? before : space + 1);
    fact[strcspn(fact, "\n")] = 0;
    for (char *c = fact; *c; c++) {
        size_t drawn = strspn(c, "0123456789abcdef"); /* an id */
        if (drawn >= 16)
            memmove(c, c + drawn, strlen(c + drawn) + 1);
        *c = *c == ' ' ? '_' : *c;
    }
    return fact;
}

static void read_calls(calls *out, const char *path)
{
    char line[8192];
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    for (out->count = 0; fgets(line, sizeof line, f);) {
        assert_true(out->count < MOST_CALLS);
        out->text[out->count++] = fact_of(line);
    }
    fclose(f);
    unlink(path);
    cover_take(out->takes, (const char *const *)out->text, out->count, CHECKED);
}

static void free_calls(calls *c)
{
    for (int i = 0; i < c->count; i++)
        free(c->text[i]);
}

/* Words for env: on files whose path holds `path`, `what` happens `times` times after `skip` calls that look. */
static char *faults(const char *top, const char *path, const char *what, int times, int skip)
{
    AUTO_FREE char *spy = launch_beside("io_faults.so");
    return must_format("env LD_PRELOAD=%s PHALANX_NODE=f%d PHALANX_IO_HASTE=1 PHALANX_IO_SAID=%s/said "
                       "PHALANX_IO_FAULTS='%s* %s %d look %d'",
                       spy, (int)getpid(), top, path, what, times, skip);
}

static bool has_happened(const char *top)
{
    AUTO_FREE char *said = workfolder_path(top, "said");
    return unlink(said) == 0;
}

/* ---- a server's journal ---- */

enum { MERGES = 2 };
#define SEQUENCE "outer.every=5 outer.staleness=2"
#define JOURNAL  "unread-server/journal"

/* A start of the server on what the killed one has left; the journal is as it was. Its words, or NULL if it came to
 * serve. */
static char *serve(const char *top, const char *environment)
{
    char *words = NULL;
    shell(must_format("rm -rf %s/unread-server && cp -r %s/kept %s/unread-server", top, top, top));
    launch *server = servers_start(top, "unread", 1, environment, SEQUENCE);
    bool served = launch_expect(server, "holds the model", SECONDS);
    if (!served) {
        launch_result r = launch_finish(server);
        assert_int_not_equal(r.status, 0);
        words = must_strdup(r.err);
        launch_free(&r);
    }
    shell(must_format("diff -r %s/" JOURNAL " %s/kept/journal", top, top));
    if (served) /* it leaves its place in etcd at once */
        servers_stop(top, "unread", server);
    return words;
}

/* A server that was killed after it had told islands that so many changes are taken. */
static void leave_merges(const char *top)
{
    launch *server = servers_start_and_wait(top, "unread", 1, "", SEQUENCE);
    servers_fake *f = servers_open_fake(top, "unread", 0, "keys");
    for (int64_t i = 0; i < MERGES; i++)
        assert_int_equal(servers_push(f, 50 + i, i, 1, SECONDS), ROSTER_TAKEN);
    servers_kill(top, "unread", 1, server);
    servers_close_fake(f);
    shell(must_format("cp -r %s/unread-server %s/kept", top, top));
}

static void no_read_error_deletes_a_merge(void **state)
{
    static calls all;
    const char *top = *state;
    AUTO_FREE char *said = workfolder_path(top, "said");
    int served = 0, refused = 0;
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    leave_merges(top);
    AUTO_FREE char *note = faults(top, JOURNAL, "NOTE", -1, 0);
    assert_null(serve(top, note));
    read_calls(&all, said);
    for (int i = 0; i < all.count; i++)
        for (int always = 0; always < 2 && all.takes[i]; always++) {
            char *environment = faults(top, JOURNAL, "EIO", always ? -1 : 1, i), *words = serve(top, environment);
            assert_true(has_happened(top));
            if (words && (!always || !strstr(words, "Input/output error")))
                fail_msg("call %d, %s, %s: %s", i, all.text[i], always ? "for good" : "once", words);
            served += !words;
            refused += words != NULL;
            free(words);
            free(environment);
        }
    printf("%d calls look at the journal: %d starts with a failed one served, %d were refused, no entry is gone\n",
           all.count, served, refused);
    assert_true(all.count > MERGES * 4);
    shell(must_format("rm -rf %s/unread-server && cp -r %s/kept %s/unread-server", top, top, top));
    launch *server = servers_start(top, "unread", 1, "", SEQUENCE);
    assert_true(launch_expect(server, "merges 1 to 2 are made again", SECONDS));
    servers_stop(top, "unread", server);
    assert_int_equal(servers_summary(top, "unread", "merge"), MERGES);
    free_calls(&all);
}

/* ---- training ---- */

enum { STEPS = 20, IN_MEMORY = 16, ON_DISK = 12 };
#define KEYS "checkpoint.every=6 checkpoint.memory_every=4 checkpoint.asynchronous=false run.tensorboard=true"

static int write_config(void **state)
{
    if (workfolder_setup(state))
        return -1;
    runs_write_small(*state, 9000, STEPS, "micro_batch: 2, global_batch: 4",
                     "optimizer: {lr: 3e-3, schedule: constant}\ncheckpoint: {keep: 0}\n");
    return 0;
}

/* One start of the run; `before`: words for env. */
static launch_result train(const char *top, const char *before)
{
    AUTO_FREE char *program = launch_beside("../phalanx");
    launch_result r = launch_run(120, "exec %s PHALANX_NODE=f%d %s train %s/run.yaml run.folder=%s/run " KEYS,
                                 *before ? before : "env", (int)getpid(), program, top, top);
    return r;
}

/* The run as one has left it that was killed when it wrote the metrics of step 18: checkpoints of steps 6 and 12, and
 * step 16 in memory. */
static void leave_run(const char *top)
{
    AUTO_FREE char *spy = launch_beside("io_faults.so");
    AUTO_FREE char *before = must_format("env LD_PRELOAD=%s PHALANX_IO_FAULTS='/metrics.jsonl KILL 1 write 17'", spy);
    launch_result r = train(top, before);
    assert_int_equal(r.status, 128 + SIGKILL);
    launch_free(&r);
    shell(must_format("mkdir %s/memory && cp -a /dev/shm/phalanx-*.f%d %s/memory/ && cp -a %s/run %s/kept", top,
                      (int)getpid(), top, top, top));
}

static void restore_run(const char *top)
{
    shell(must_format("rm -rf %s/run /dev/shm/phalanx-*.f%d && cp -a %s/kept %s/run && cp -a %s/memory/. /dev/shm/",
                      top, (int)getpid(), top, top, top));
}

/* The checkpoints that the run had are there and whole; the metrics up to the last of them; and the copies of step 16
 * are in memory still, or on the disk. */
static void nothing_is_lost(const char *top, const char *call)
{
    AUTO_FREE char *run = workfolder_path(top, "run"),
                   *later = must_format("%s/checkpoints/step-%08d/manifest.json", run, IN_MEMORY);
    shell(
        must_format("for s in 6 12; do d=$(printf step-%%08d $s); diff -r %s/checkpoints/$d %s/kept/checkpoints/$d || "
                    "exit 1; done",
                    run, top));
    shell(must_format(
        "head -n %d %s/kept/metrics.jsonl | cmp - %s/metrics.jsonl -n $(head -n %d %s/kept/metrics.jsonl | wc -c)",
        ON_DISK, top, run, ON_DISK, top));
    if (access(later, F_OK) != 0)
        shell(must_format("diff -r %s/memory/phalanx-*/.tmp-step-%08d /dev/shm/phalanx-*.f%d/.tmp-step-%08d", top,
                          IN_MEMORY, (int)getpid(), IN_MEMORY));
    (void)call;
}

/* What a start with a failed call has come to. */
static void try_call(int done[2], const char *top, const char *whole, const calls *all, int i, bool always)
{
    char *before = faults(top, "phalanx-", "EIO", always ? -1 : 1, i), *run = workfolder_path(top, "run");
    restore_run(top);
    launch_result r = train(top, before);
    (void)has_happened(top);
    if (r.status != 0 && !strstr(r.err, "Input/output error"))
        fail_msg("call %d, %s, %s: status %d: %s%s", i, all->text[i], always ? "for good" : "once", r.status, r.out,
                 r.err);
    if (r.status != 0 && !always)
        printf("refused for one failed call: %s: %s", all->text[i], r.err);
    if (r.status != 0)
        nothing_is_lost(top, all->text[i]);
    done[r.status != 0]++;
    if (r.status != 0) {
        launch_free(&r);
        r = train(top, "");
    }
    char *difference = r.status == 0 ? supervised_difference(run, whole) : must_strdup(r.err);
    if (difference)
        fail_msg("call %d, %s, %s: %s", i, all->text[i], always ? "for good" : "once", difference);
    launch_free(&r);
    free(run);
    free(before);
}

static void no_read_error_loses_a_run(void **state)
{
    static calls all;
    const char *top = *state;
    AUTO_FREE char *said = workfolder_path(top, "said"), *whole = workfolder_path(top, "whole");
    int done[2] = {0}, tried = 0;
    free(runs_train_well(120, 1, "%s/run.yaml run.folder=%s checkpoint.every=6", top, whole));
    leave_run(top);
    restore_run(top);
    AUTO_FREE char *note = faults(top, "phalanx-", "NOTE", -1, 0);
    launch_result r = train(top, note);
    if (r.status != 0 || !strstr(r.out, "the copies of step 16"))
        fail_msg("status %d: %s%s", r.status, r.out, r.err);
    launch_free(&r);
    read_calls(&all, said);
    for (int i = 0; i < all.count; i++) {
        if (!all.takes[i])
            continue;
        tried++;
        try_call(done, top, whole, &all, i, false);
        if (cover_has_rest() || tried % 8 == 0)
            try_call(done, top, whole, &all, i, true);
    }
    printf("%d calls look at files of the run; %d starts with a failed one went on, %d were refused; nothing is lost\n",
           all.count, done[0], done[1]);
    assert_true(all.count > 100);
    shell(must_format("rm -rf /dev/shm/phalanx-*.f%d", (int)getpid()));
    free_calls(&all);
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    const struct CMUnitTest runs[] = {cmocka_unit_test(no_read_error_loses_a_run)};
    const struct CMUnitTest servers[] = {cmocka_unit_test(no_read_error_deletes_a_merge)};
    int failed = cmocka_run_group_tests(runs, write_config, workfolder_teardown);
    return failed + cmocka_run_group_tests(servers, island_jobs_prepare, island_jobs_finish);
}
