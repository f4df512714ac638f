/* The scripts and programs of tests/cuda/gpu, which are for a machine with a GPU, on the stand-ins: that they ask what
 * they are to ask, keep what they measure, and say what they could not show. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "tests/cover.h"
#include "tests/cuda/cuda_runs.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

static char *folder;

/* A kit of links: the stand-ins' programs under the names that they have there. */
static int set_up(void **state)
{
    assert_int_equal(cuda_runs_setup(state), 0);
    folder = *state;
    AUTO_FREE char *beside = launch_beside("phalanx_standin");
    *strrchr(beside, '/') = 0;
    launch_result r =
        launch_run(20,
                   "mkdir %s/kit %s/kit/bin && cd %s/kit/bin && for p in phalanx device_ops probes; do ln -s "
                   "%s/${p}_standin $p; done && ln -s %s/standin/* . && : >standins && cp "
                   "\"$OLDPWD\"/tests/cuda/standin/ncu \"$OLDPWD\"/tests/cuda/standin/nvidia-smi .",
                   folder, folder, folder, beside, beside);
    assert_int_equal(r.status, 0);
    launch_free(&r);
    return 0;
}

static int tear_down(void **state)
{
    return cuda_runs_teardown(state);
}

/* A script of the kit; its logs are in the folder OUT of the work folder. */
static launch_result kit(double seconds, const char *environment, const char *words)
{
    launch_result r = launch_run(seconds,
                                 "exec env PATH=%s/kit/bin:$PATH LD_LIBRARY_PATH=%s/kit/bin PEERS=no OUT=%s/out "
                                 "ORDER_STATE=%s/state OMP_NUM_THREADS=1 %s tests/cuda/gpu/%s",
                                 folder, folder, folder, folder, environment, words);
    if (r.status)
        fprintf(stderr, "%s %s: status %d\n%s%s", environment, words, r.status, r.out, r.err);
    assert_false(r.timed_out);
    return r;
}

static launch_result kit_bench(const char *environment, const char *parts)
{
    AUTO_FREE char *words = must_format("bench.sh %s/kit/bin --only '%s'", folder, parts);
    launch_result r = kit(300, environment, words);
    return r;
}

/* The first number behind `words` in the text. */
static double number_after(const char *text, const char *words)
{
    const char *at = strstr(text, words);
    if (!at)
        fail_msg("no '%s' in\n%s", words, text);
    return atof(at + strlen(words));
}

/* ---- what bench measures ----------------------------------------------------------------------------------------- */

static launch_result bench(const char *keys)
{
    AUTO_FREE char *program = launch_beside("phalanx_standin");
    launch_result r = launch_run(60, "cd %s && STANDIN_REPORT=1 exec %s bench --steps 1 gpt2.yaml train.device=cuda %s",
                                 folder, program, keys);
    if (r.status)
        fprintf(stderr, "%s: status %d\n%s%s", keys, r.status, r.out, r.err);
    assert_int_equal(r.status, 0);
    return r;
}

/* Calls of an op in a step, and milliseconds; fails where the table has no such row. */
static double milliseconds_of(int *calls, const char *table, const char *row)
{
    double ms = -1;
    const char *at = strstr(table, row);
    if (!at || sscanf(at + strlen(row), " %d %lf", calls, &ms) != 2)
        fail_msg("no row '%s' in\n%s", row, table);
    return ms;
}

/* A launch takes a millisecond of a stand-in's time. The times of ops are together the step's; updates share the time
 * of one launch among them, and the products behind Muon's have none of it. */
TEST(times_of_ops_add_up_to_the_step)
{
    static const struct {
        const char *keys, *row;
        double launches; /* that the row's calls take; 0: one a call */
    } cases[] = {{"", "  update: adamw ", 1}, {"optimizer.name=muon", "  update: linear ", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        launch_result r = bench(cases[i].keys);
        int calls, all;
        double step = number_after(r.out, "with an event between ops "),
               ms = milliseconds_of(&calls, r.out, cases[i].row);
        assert_true(step >= 20 && fabs(milliseconds_of(&all, r.out, "  all ") - step) < 0.011);
        assert_true(calls > 10 && fabs(ms - (cases[i].launches > 0 ? cases[i].launches : calls)) < 0.011);
        launch_free(&r);
    }
}

TEST(a_step_is_measured_as_a_graph)
{
    launch_result r = bench("train.cuda_graph=true --warmup 2");
    int nodes = 0, launched = 0;
    const char *graph = strstr(r.err, "standin: a graph: ");
    assert_non_null(graph);
    assert_int_equal(sscanf(graph, "standin: a graph: %d nodes, launched %d times", &nodes, &launched), 2);
    assert_true(nodes > 20 && launched == 2);
    launch_free(&r);
}

TEST(a_profilers_range_is_one_step)
{
    launch_result plain = bench("--range"), more = bench("--range --warmup 4");
    double launches = number_after(plain.err, "standin: profiled: ");
    assert_true(launches > 20);
    assert_true(launches - number_after(more.err, "standin: profiled: ") == 0);
    launch_free(&plain);
    launch_free(&more);
}

TEST(counters_that_are_forbidden_are_said_to_be)
{
    launch_result r = kit_bench("STANDIN_NCU=forbidden", "^ncu$");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "[ SKIP ] the slowest kernels: this machine forbids performance counters"));
    launch_free(&r);
}

TEST(clocks_and_choices_are_kept)
{
    static const char *const kept[] = {"gpt2-124m-16.tuning.json", "gpt2-124m-16.plan.json", "gpt2-124m-16.yaml",
                                       "gpt2-124m-16.clocks.csv"};
    launch_result r = kit_bench("STANDIN_SMI=old", "^machine$|^gpt2-124m$");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "PyTorch: asked for by PEERS=no"));
    /* the table of speeds, from the same line */
    assert_true(number_after(r.out, "\ngpt2-124m at 16      1 layers, ") > 0);
    assert_true(number_after(r.out, "% MFU, a step ") > 0);
    assert_non_null(strstr(r.out, " GiB (stand-ins: times are made up)\n"));
    assert_non_null(strstr(r.out, "nothing of a GPU was shown"));
    launch_free(&r);
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        r = launch_run(5, "test -s %s/out/%s", folder, kept[i]);
        if (r.status)
            fail_msg("%s is not kept", kept[i]);
        launch_free(&r);
    }
    r = launch_run(5, "cat %s/out/gpt2-124m_gpt2-124m_at_16.log", folder);
    assert_non_null(strstr(r.out, "held down by (bits of nvidia-smi) 0x0000000000000004"));
    assert_true(number_after(r.out, "planned ") > 0);
    launch_free(&r);
}

/* ---- probes, faults, order --------------------------------------------------------------------------------------- */

typedef struct call {
    const char *within, *words, *says[2];
    int status;
    const char *build; /* NULL: the kit's */
} call;

static void order(const call *calls, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char *words = calls[i].build ? must_format("order.sh %s %s", calls[i].build, calls[i].words)
                                     : must_format("order.sh %s/kit/bin %s", folder, calls[i].words);
        launch_result r = kit(200, calls[i].within, words);
        for (int k = 0; k < 2; k++)
            if (r.status != calls[i].status || (calls[i].says[k] && !strstr(r.out, calls[i].says[k])))
                fail_msg("%s: status %d, no '%s' in\n%s", words, r.status, calls[i].says[k], r.out);
        launch_free(&r);
        free(words);
    }
}

/* A call without time, one that is ended in the middle, one that plays a step, one that goes on, and one that has
 * nothing left but the table. */
TEST(the_order_goes_on_where_it_was_cut)
{
    static const call calls[] = {
        {"", "--again --seconds 19 --only '^ncu$|^probes$'", {"order: 0 of 2 steps played"}, 0, NULL},
        {"timeout 2", "--only '^variants$'", {" [ CUT  ] variants by a signal", "order: 0 of 1 steps"}, 124, NULL},
        {"", "--only '^ncu$'", {"order: 1 of 1 steps played"}, 0, NULL},
        {"", "--only '^ncu$|^probes$'", {"order: 2 of 2 steps played"}, 0, NULL},
        {"",
         "--only '^ncu$|^probes$'",
         {"check.sh probes                      4 passed   0 failed   0 skip"},
         0,
         NULL}};
    order(calls, sizeof calls / sizeof *calls);
}

/* Steps that run out of their seconds, and one whose script dies: the next one is played, the table says so, and where
 * all is packed. */
TEST(the_order_says_what_was_cut_or_has_died)
{
    static const call calls[] = {
        {"",
         "--again --times 0.02 --only '^variants$|^probes$'",
         {" [ CUT  ] variants after 1 s, in: ", "order: 2 of 2 steps played"},
         0,
         NULL},
        {"",
         "--again --only '^gpt2$|^probes$'",
         {" [FAILED] check.sh has died, status 2, in: before a case", "order: 2 of 2 steps played"},
         1,
         "no/such/build"}};
    launch_result r;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        order(&calls[i], 1);
        r = launch_run(10,
                       "cd %s/out && ls lines logs.tar.gz table && tar tzf logs.tar.gz | grep played && tail -1 table",
                       folder);
        if (r.status || !strstr(r.out, "order: 2 of 2"))
            fail_msg("status %d:\n%s%s", r.status, r.out, r.err);
        launch_free(&r);
    }
}

/* A case that runs out of time says how long it had; and a program says each line as it comes, so that one that is
 * ended has said what it saw: a first read takes few lines, not a buffer of them. */
TEST(a_case_that_runs_out_of_time_says_so)
{
    AUTO_FREE char *words = must_format("check.sh %s/kit/bin --only '^ops$'", folder),
                   *program = launch_beside("device_ops_standin");
    launch_result r = kit(60, "PART_SECONDS=2 OPS_SHARES=1", words);
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.out, "[FAILED] ops of the table against float64: not done in 2 s; status 124; "));
    launch_free(&r);
    r = launch_run(200, "DEVICE_OPS_SHARE=0/64 %s | dd bs=65536 count=1 2>&-", program);
    assert_non_null(strstr(r.out, "of the tolerance\n"));
    assert_true(strlen(r.out) < 2000);
    launch_free(&r);
}

/* Parts of each script, the first of each in every ring. */
TEST(parts_say_what_they_show)
{
    static const struct {
        const char *script, *part, *says[3];
    } parts[] = {
        {"bench",
         "ncu",
         {"[  OK  ] the slowest kernels: forward 2.0 us, set_word 1.0 us\n", "[  OK  ] ncu: set_word",
          "ncu              4 passed   0 failed   0 skipped"}},
        {"check",
         "probes",
         {"fp8, a scale a row and a column: the library refuses it here", "offset halves of rank 1 of 2 by cuDNN",
          "probes           4 passed   0 failed   0 skipped"}},
        {"bench", "variants", {"[  OK  ] attention by cuDNN", "variants         7 passed   0 failed   0 skipped"}},
        {"check", "ops", {"cases (1 of 64 shares), 0 failed", "ops              1 passed   0 failed   0 skipped"}},
        {"check", "cudnn", {"its gradient by cuDNN", "cudnn            2 passed   0 failed   0 skipped"}},
        {"check",
         "gpt2",
         {"its loss is the CPU's: cuda ", "bytes of 3 prompts are equal", "gpt2            24 passed   0 failed"}},
        {"check", "memory", {"[  OK  ] memory beside the arena is constant", "memory           1 passed   0 failed"}},
        {"check", "killed", {"with a CUDA graph: rank 0 ended after", "killed           2 passed   0 failed"}},
        {"check", "two-hosts", {"[  OK  ] two hosts equal one rank", "two-hosts        3 passed   0 failed"}}};
    enum { PARTS = sizeof parts / sizeof *parts };
    const char *facts[PARTS];
    bool takes[PARTS];
    for (int i = 0; i < PARTS; i++)
        facts[i] = parts[i].script;
    cover_take(takes, facts, PARTS, 3);
    for (int i = 0; i < PARTS; i++) {
        if (!takes[i])
            continue;
        AUTO_FREE char *words = must_format("%s.sh %s/kit/bin --only '^%s$'", parts[i].script, folder, parts[i].part);
        launch_result r = kit(300, "CASE_SECONDS=250", words); /* on a busy machine */
        assert_int_equal(r.status, 0);
        for (int k = 0; k < 3 && parts[i].says[k]; k++)
            if (!strstr(r.out, parts[i].says[k]))
                fail_msg("%s: no '%s' in\n%s", parts[i].part, parts[i].says[k], r.out);
        launch_free(&r);
    }
}

/* libphalanx_cuda.so takes what it needs of the product from the program that loads it: each of the kit's has all of
 * it, although the product's archive gives a program only what that calls itself. */
TEST(the_kits_programs_hold_what_the_device_needs)
{
    static const char *const programs[] = {"phalanx", "device_ops", "probes"};
    AUTO_FREE char *beside = launch_beside("phalanx_standin");
    *strrchr(beside, '/') = 0;
    launch_result r = launch_run(120,
                                 "cd %s/.. && nm -u cuda/kernels/cuda/*.o cuda/parallel/comm/nccl/*.o | sed -n "
                                 "'s/^ *U //p' | sort -u >%s/asked && nm --defined-only libphalanx.a | awk "
                                 "'NF == 3 { print $3 }' | sort -u | comm -12 - %s/asked >%s/needs && wc -l <%s/needs",
                                 beside, folder, folder, folder, folder);
    if (atoi(r.out) < 20)
        fail_msg("the device asks for %s symbols of the product %s", r.out, r.err);
    launch_free(&r);
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        r = launch_run(60, "cd %s/.. && nm -D --defined-only %s | awk '{ print $3 }' | sort -u | comm -13 - %s/needs",
                       beside, programs[i], folder);
        if (r.status || *r.out)
            fail_msg("%s has not\n%s%s", programs[i], r.out, r.err);
        launch_free(&r);
    }
}

int main(void)
{
    if (!cover_has_check())
        test_keep(1);
    return cuda_runs_group(set_up, tear_down);
}
