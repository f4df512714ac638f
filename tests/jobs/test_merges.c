/* Every way of merging against its formula in float64 (merge_formulas.py, NumPy), fed with what the islands themselves
 * wrote: five outer steps of three islands, one on one rank, one tensor-parallel, one a pipeline with ZeRO. They are
 * build/tests/recorded/phalanx (merges_dump.c). The islands' learning rate is so high that weights change by about
 * their own size: a reference is fp32, and rounding it must be small beside 1e-6 of the change. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/island_jobs.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/skip.h"
#include "tests/test.h"

enum { STEPS = 5, ISLANDS = 3 };

/* PYTHON, else what is called so, else the system's, whose NumPy the tests' packages bring. NULL: none has NumPy. */
static const char *find_python(void)
{
    const char *const names[] = {getenv("PYTHON"), "python3", "/usr/bin/python3"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!names[i])
            continue;
        launch_result r = launch_run(60, "%s -c 'import numpy' 2>/dev/null", names[i]);
        bool found = r.status == 0;
        launch_free(&r);
        if (found)
            return names[i];
    }
    return NULL;
}

/* What the script says of top/RUN-merges; `well`: whether it has nothing to complain of. */
static launch_result ask(const char *top, const char *run, const char *words)
{
    return launch_run(300, "%s tests/jobs/merge_formulas.py %s/%s-merges %s", find_python(), top, run, words);
}

/* The formula holds; and with one word changed (`wrong`, which comes last and counts) it does not. */
static void check(const char *top, const char *run, const char *words, const char *wrong, int merges)
{
    AUTO_FREE char *more = must_format("%s %s", words, wrong);
    launch_result right = ask(top, run, words), other = ask(top, run, more);
    printf("%-10s %s", run, right.out);
    if (right.status != 0 || atoi(right.out) < merges)
        fail_msg("%s: %s%s", run, right.out, right.err);
    assert_int_equal(other.status, 1);
    if (!strstr(other.out, "error"))
        fail_msg("%s with %s: %s%s", run, wrong, other.out, other.err);
    launch_free(&right);
    launch_free(&other);
}

/* A model whose routers have a bias that counts move. */
#define BIASED                                                                                                         \
    " model.architecture=mixtral model.kv_heads=2 model.ffn_size=24 model.experts=4 model.experts_per_token=2 "        \
    "model.expert_ffn_size=24 model.router_bias_rate=0.05"
#define COMMON "optimizer.lr=0.5 optimizer.warmup=0"
#define THREE  "outer.slots=3 outer.min_islands=3"

static void start_three(launch *all[ISLANDS], const char *top, const char *run, const char *words)
{
    static const int ranks[ISLANDS] = {2, 4, 1};
    static const char *const layouts[ISLANDS] = {
        "parallel.tensor=2", "parallel.pipeline=2 parallel.data=2 parallel.zero=1", "train.global_batch=6"};
    island_jobs_record(top, run);
    for (int i = 0; i < ISLANDS; i++)
        all[i] = island_jobs_start(top, run, i, ranks[i], "%s " COMMON " %s", layouts[i], words);
}

static void end_three(launch *all[ISLANDS])
{
    for (int i = 0; i < ISLANDS; i++)
        free(island_jobs_end(all[i]));
}

TEST(merges_of_all_islands_are_their_formulas)
{
    static const struct {
        const char *run, *words, *wrong;
        int merges;
    } ways[] = {
        {"average", "outer.optimizer=average outer.lr=1", "outer.lr=0.99", STEPS},
        {"diloco", "outer.optimizer=nesterov outer.lr=0.7 outer.momentum=0.9", "outer.momentum=0.89", STEPS},
        {"biased", "outer.optimizer=nesterov outer.lr=0.7 outer.momentum=0.9" BIASED, "outer.bias=stepped", STEPS},
        {"streaming",
         "outer.every=6 outer.fragments=2 outer.delay=2 outer.mix=0.5 outer.momentum=0.8 "
         "outer.weights=equal",
         "outer.mix=0.49", 2 * STEPS},
        {"bf16", "outer.compress=bf16", "outer.compress=none", STEPS},
        {"int8", "outer.compress=int8", "outer.momentum=0.89", STEPS},
        {"int4", "outer.compress=int4 outer.error_decay=0.9", "outer.error_decay=0.91", STEPS},
        {"topk", "outer.compress=topk outer.density=0.05 outer.optimizer=average outer.lr=1", "outer.density=0.06",
         STEPS},
        {"dct", "outer.compress=dct outer.density=0.1 outer.optimizer=average outer.lr=1", "outer.lr=0.99", STEPS},
        {"clipped", "outer.clip=100", "outer.clip=101", STEPS},
        {"bounded", "outer.robust=clip outer.compress=int8", "outer.robust=none", STEPS},
    };
    if (!island_jobs_etcd || !find_python())
        skip_because(island_jobs_etcd ? "no python3 with NumPy: apt-get install python3-numpy" : SKIP_NO_ETCD);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        launch *all[ISLANDS];
        char *words = must_format(THREE " train.steps=%d %s",
                                  strstr(ways[i].words, "every=6") ? 6 * STEPS + 3 : 2 * STEPS, ways[i].words);
        start_three(all, *state, ways[i].run, words);
        end_three(all);
        check(*state, ways[i].run, ways[i].words, ways[i].wrong, ways[i].merges);
        free(words);
    }
}

/* An island's summary counts the fourth's changes that merges have left out; its incidents name it. */
static void check_left_out(const char *top, const char *run)
{
    AUTO_FREE char *folder = island_jobs_folder(top, run, 0);
    json_t *summary = runs_read_summary(folder), *islands = json_object_get(summary, "islands");
    launch_result incidents = launch_run(ISLAND_JOBS_LIMIT, "cat %s/incidents.jsonl", folder);
    const char *out = strstr(incidents.out, " left out the change of island ");
    assert_true(json_integer_value(json_object_get(islands, "left_out")) > 0);
    assert_true(out && strstr(out, " (slot 3): its median cosine with the other changes is "));
    launch_free(&incidents);
    json_decref(summary);
}

/* outer.robust by coordinate, of four islands, of which one may be hostile; at last the fourth learns nothing, and
 * its changes are left out. */
TEST(robust_merges_are_their_formulas)
{
    static const struct {
        const char *run, *words, *wrong, *fourth;
    } ways[] = {
        {"median", "outer.robust=median outer.compress=bf16", "outer.robust=none", NULL},
        {"trimmed", "outer.robust=trimmed", "outer.robust=none", NULL},
        {"strangers", "outer.robust=trimmed", "outer.agreement=0", "optimizer.lr=0"},
    };
    if (!island_jobs_etcd || !find_python())
        skip_because(island_jobs_etcd ? "no python3 with NumPy: apt-get install python3-numpy" : SKIP_NO_ETCD);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        launch *all[ISLANDS], *fourth;
        AUTO_FREE char *four =
            must_format("outer.slots=4 outer.min_islands=4 train.steps=%d %s", 2 * STEPS, ways[i].words);
        start_three(all, *state, ways[i].run, four);
        fourth = island_jobs_start(*state, ways[i].run, 3, 1, "%s %s", ways[i].fourth ? ways[i].fourth : COMMON, four);
        if (ways[i].fourth)
            assert_true(launch_expect(all[0], " left out the change of island ", ISLAND_JOBS_LIMIT));
        end_three(all);
        free(island_jobs_end(fourth));
        check(*state, ways[i].run, ways[i].words, ways[i].wrong, STEPS);
        if (ways[i].fourth)
            check_left_out(*state, ways[i].run);
    }
}

/* Four islands, so that there are pairs; the last exchange is the mean of all. */
TEST(gossip_is_its_formula)
{
    static const char *const words = "outer.topology=gossip outer.lr=0.7 outer.momentum=0.5 outer.mix=0.25" BIASED;
    launch *all[ISLANDS], *fourth;
    if (!island_jobs_etcd || !find_python())
        skip_because(island_jobs_etcd ? "no python3 with NumPy: apt-get install python3-numpy" : SKIP_NO_ETCD);
    AUTO_FREE char *four = must_format("%s train.steps=%d outer.slots=4 outer.min_islands=4", words, 2 * STEPS);
    start_three(all, *state, "gossip", four);
    fourth = island_jobs_start(*state, "gossip", 3, 1, COMMON " %s", four);
    end_three(all);
    free(island_jobs_end(fourth));
    check(*state, "gossip", words, "outer.momentum=0.49", STEPS);
}

/* Changes one by one, of which some are based on a model that others have moved since. */
TEST(a_server_is_its_formula)
{
    static const char *const words =
        "outer.topology=server outer.lr=0.35 outer.momentum=0.5 outer.compress=int8" BIASED;
    launch *all[ISLANDS];
    const char *top = *state;
    if (!island_jobs_etcd || !find_python())
        skip_because(island_jobs_etcd ? "no python3 with NumPy: apt-get install python3-numpy" : SKIP_NO_ETCD);
    AUTO_FREE char *keys = must_format(THREE " %s outer.staleness=100 outer.delay=1 train.steps=%d", words, 2 * STEPS),
                   *program = launch_beside("recorded/phalanx"), *folder = must_format("%s/server-job", top);
    island_jobs_record(top, "server");
    launch *server = launch_start(ISLAND_JOBS_LIMIT, "exec %s server %s/run.yaml run.folder=%s outer.run=server %s",
                                  program, top, folder, keys);
    assert_true(launch_expect(server, "holds the model", ISLAND_JOBS_LIMIT));
    start_three(all, top, "server", keys);
    end_three(all);
    kill(runs_process(folder, 0), SIGTERM);
    free(island_jobs_end(server));
    check(top, "server", words, "outer.weights=equal", ISLANDS * STEPS - 2);
}

TEST_MAIN(island_jobs_prepare, island_jobs_finish)
