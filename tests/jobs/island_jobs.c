#include "tests/jobs/island_jobs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/islands/meet/etcd.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"

rendezvous *island_jobs_etcd;
const char *island_jobs_program = "../phalanx";

int island_jobs_prepare(void **state)
{
    if (workfolder_setup(state))
        return -1;
    const char *top = *state;
    if (rendezvous_is_there())
        island_jobs_etcd = rendezvous_open(top);
    char *more = must_format("optimizer: {lr: 1e-2, warmup: 2, schedule: constant}\n"
                             "checkpoint: {every: 0, keep: 0}\n"
                             "outer: {rendezvous: [%s], keys: %s/keys, every: 2, timeout: 120, min_islands: 2, "
                             "address: 127.0.0.1}\n",
                             island_jobs_etcd ? rendezvous_address(island_jobs_etcd) : "http://127.0.0.1:1", top);
    runs_write_small(top, 40000, 8, "micro_batch: 2, global_batch: 4", more);
    free(more);
    return 0;
}

int island_jobs_finish(void **state)
{
    if (island_jobs_etcd)
        rendezvous_close(island_jobs_etcd);
    return workfolder_teardown(state);
}

/* An island of a run, in the folder top/RUN-SLOT; `words`: keys of its own. */
launch *island_jobs_start(const char *top, const char *run, int slot, int ranks, const char *format, ...)
{
    char words[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    AUTO_FREE char *mpirun = ranks > 1 ? launch_mpirun(ranks) : must_strdup(""),
                   *program = launch_beside(island_jobs_program);
    launch *l = launch_start(ISLAND_JOBS_LIMIT,
                             "exec %s %s train %s/run.yaml run.folder=%s/%s-%d outer.run=%s outer.slot=%d %s", mpirun,
                             program, top, top, run, slot, run, slot, words);
    return l;
}

void island_jobs_record(const char *top, const char *run)
{
    AUTO_FREE char *folder = must_format("%s/%s-merges", top, run);
    island_jobs_program = "recorded/phalanx";
    setenv("PHALANX_MERGES", folder, 1);
}

char *island_jobs_folder(const char *top, const char *run, int slot)
{
    return must_format("%s/%s-%d", top, run, slot);
}

/* Ends well, or stopped by a signal; what it said, the caller's. */
char *island_jobs_end(launch *l)
{
    enum { STOPPED = 75 };
    launch_result r = launch_finish(l);
    bool well = r.status == 0 || r.status == STOPPED;
    if (!well)
        fprintf(stderr, "status %d:\n%s\n%s\n", r.status, r.out, r.err);
    assert_true(well);
    char *out = must_strdup(r.out);
    launch_free(&r);
    return out;
}

/* How many tensors of the section are the same in the latest checkpoints. */
int island_jobs_same(const char *top, const char *run, int slot, const char *other_run, int other, const char *section)
{
    char *a = island_jobs_folder(top, run, slot), *b = island_jobs_folder(top, other_run, other), difference[256];
    int count = runs_compare_section(difference, sizeof difference, a, b, section);
    if (*difference)
        printf("%s-%d and %s-%d: %s\n", run, slot, other_run, other, difference);
    free(a);
    free(b);
    return *difference ? 0 : count;
}

bool island_jobs_same_losses(const char *top, const char *run, const char *other, int slot, int other_slot)
{
    AUTO_FREE char *a = island_jobs_folder(top, run, slot), *b = island_jobs_folder(top, other, other_slot);
    runs_metrics x = runs_read_metrics(a), y = runs_read_metrics(b);
    return runs_same_metrics(&x, &y);
}

/* What the run's islands are configured for, as etcd holds it. */
uint64_t island_jobs_fingerprint(const char *run)
{
    etcd *e = NULL;
    json_t *pairs = NULL;
    AUTO_FREE char *key = must_format("phalanx/%s/live/fingerprint", run);
    assert_int_equal(etcd_open(&e, rendezvous_address(island_jobs_etcd)), STATUS_OK);
    assert_int_equal(etcd_read(&pairs, e, key), STATUS_OK);
    const char *text = json_string_value(json_object_get(json_array_get(pairs, 0), "value"));
    assert_non_null(text);
    uint64_t hash = strtoull(text + 1, NULL, 16);
    json_decref(pairs);
    etcd_close(e);
    return hash;
}
