/* The CUDA device's queue without a GPU, on the stand-ins: what the host does while the device plays, how a hang is
 * seen, a step as one graph, small updates in one launch. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "tests/cuda/cuda_runs.h"
#include "tests/jobs/runs.h"
#include "tests/test.h"

enum { STEPS = CUDA_RUNS_STEPS };

static const char *folder;

static int set_up(void **state)
{
    int failed = cuda_runs_setup(state);
    folder = cuda_runs_folder();
    return failed;
}

/* The host has long enqueued everything when a kernel of rank 1 does not end, and rank 0 stops behind it: the stretch
 * of ops is named in which the device of rank 1 is, and not the end of the program. */
TEST(a_device_that_hangs_is_named_with_the_ops_it_stands_in)
{
    launch_result r = cuda_runs_train("phalanx_standin", 2,
                                      "STANDIN_ENDLESS_1='layer 1/mlp/down/dw' STANDIN_ENDLESS_0='embed/dtable'",
                                      "llama", "hangs", "train.device=cuda run.hang_seconds=5");
    const char *line = strstr(r.err, "watchdog: rank 1 on "), *end = line ? strchr(line, '\n') : NULL;
    if (!end)
        fprintf(stderr, "status %d\n%s%s", r.status, r.out, r.err);
    assert_false(r.timed_out);
    assert_int_not_equal(r.status, 0);
    assert_non_null(end);
    char text[512];
    snprintf(text, sizeof text, "%.*s", (int)(end - line), line);
    if (!strstr(text, " is stuck: it makes no progress") ||
        !strstr(text, "last in step 1, micro-batch 0, forward, op norm .. layer 1/attention/out/dw"))
        fail_msg("%s", text);
    launch_free(&r);
}

/* The third step's graph does not end, and its marks are those of this launch, not of the one before. */
TEST(a_graph_that_hangs_is_named_with_the_ops_it_stands_in)
{
    const char *endless = "STANDIN_ENDLESS_1='layer 1/mlp/down/dw' STANDIN_ENDLESS_AFTER=4";
    launch_result r = cuda_runs_train("phalanx_standin", 2, endless, "llama", "graph-hangs",
                                      "train.device=cuda train.cuda_graph=true train.steps=5 run.hang_seconds=5");
    const char *line = strstr(r.err, "watchdog: rank 1 on ");
    assert_false(r.timed_out);
    assert_int_not_equal(r.status, 0);
    if (!line || !strstr(line, "last in step 3, micro-batch 0, forward, op norm .. layer 1/attention/out/dw"))
        fail_msg("status %d\n%s%s", r.status, r.out, r.err);
    launch_free(&r);
}

/* A step that takes longer than run.hang_seconds, on a device that moves. */
TEST(a_slow_device_is_no_hang)
{
    cuda_run slow;
    launch_result r = cuda_runs_train("phalanx_standin", 2, "STANDIN_KERNEL_SECONDS=0.035", "llama", "slow",
                                      "train.device=cuda train.steps=1 train.tune=false run.hang_seconds=2");
    if (r.status)
        fprintf(stderr, "%s%s", r.out, r.err);
    assert_int_equal(r.status, 0);
    launch_free(&r);
    cuda_runs_read(&slow, "slow");
    assert_int_equal(slow.steps, 1);
    if (slow.seconds[0] < 4)
        fail_msg("the step took %.1f s only", slow.seconds[0]);
}

/* By events around some of its ops, which a graph records anew at each launch. */
TEST(a_slow_device_is_named)
{
    static const struct {
        const char *environment, *graph;
        bool named;
    } cases[] = {{"STANDIN_SLOW_1=1.3", "false", true}, {"STANDIN_SLOW_1=1.3", "true", true}, {"", "true", false}};
    /* products by the way that is the fastest on neither rank take equally long on both */
    static const char both[] = "STANDIN_FASTEST=2";
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char keys[256], where[32], environment[64];
        snprintf(where, sizeof where, "paced-%zu", i);
        snprintf(keys, sizeof keys,
                 "train.device=cuda train.steps=26 train.tune=false run.slow_ratio=1.2 train.cuda_graph=%s",
                 cases[i].graph);
        snprintf(environment, sizeof environment, "%s %s", both, cases[i].environment);
        launch_result r = cuda_runs_train("phalanx_standin", 2, environment, "llama", where, keys);
        const char *line = strstr(r.err, " is slow: ");
        if (r.status || !line != !cases[i].named)
            fail_msg("%s, graph %s: status %d\n%s%s", cases[i].environment, cases[i].graph, r.status, r.out, r.err);
        if (line && (!strstr(r.err, "rank 1 on ") || !strstr(line, "it has computed 1.30 x as long")))
            fail_msg("%s", r.err);
        launch_free(&r);
    }
}

/* run.verify_every: a weight that changes before the second forward pass of step 4, and what the second play of an op
 * of the repeated micro-batch changes (two launches each: 8 in step 1, 4 before it in step 2). The run goes back and
 * ends as without. */
TEST(silent_corruption_on_the_device_is_found)
{
    static const char keys[] = "train.device=cuda run.verify_every=2 checkpoint.every=2 train.steps=6";
    static const struct {
        const char *environment, *more, *words; /* NULL: nothing is found */
    } cases[] = {
        {"", "train.cuda_graph=false", NULL},
        {"", "train.cuda_graph=true", NULL},
        {"STANDIN_FLIP_0='norm: in 14'", "train.cuda_graph=false",
         "step 4: weight of final norm has changed while nothing wrote it"},
        {"STANDIN_FLIP_0='norm: in 14'", "train.cuda_graph=true",
         "step 4: weight of final norm has changed while nothing wrote it"},
        {"STANDIN_FLIP_0='norm/dx: acc 13'", "train.cuda_graph=true",
         "step 2: the result of norm/dx was another one when it was computed again"},
    };
    runs_metrics good;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char all[256], where[32];
        snprintf(all, sizeof all, "%s %s", keys, cases[i].more);
        snprintf(where, sizeof where, "verified-%zu", i);
        launch_result r = cuda_runs_train("phalanx_standin", 1, cases[i].environment, "llama", where, all);
        bool found = strstr(r.err, "has changed while") || strstr(r.err, "computed again");
        if (r.status || found != (cases[i].words != NULL) || (found && !strstr(r.err, cases[i].words)))
            fail_msg("%s, %s: status %d\n%s%s", cases[i].environment, cases[i].more, r.status, r.out, r.err);
        AUTO_FREE char *run = must_format("%s/%s", folder, where);
        runs_metrics m = runs_read_metrics(run);
        if (i == 0)
            good = m;
        assert_true(runs_same_metrics(&m, &good));
        launch_free(&r);
    }
    launch_result r = cuda_runs_train("phalanx_standin", 1, "", "llama", "varies",
                                      "train.device=cuda run.verify_every=2 train.deterministic=false");
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, "it needs train.deterministic=true"));
    launch_free(&r);
}

/* What rank 0 has sent, as the summary says it. */
static void read_sent(char *out, int bytes, const char *where)
{
    char path[512], text[8192] = {0};
    snprintf(path, sizeof path, "%s/%s/summary.json", folder, where);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_true(fread(text, 1, sizeof text - 1, f) > 0);
    fclose(f);
    const char *at = strstr(text, "\"bytes_sent\":");
    assert_non_null(at);
    snprintf(out, (size_t)bytes, "%.*s", (int)strcspn(at, "}"), at);
}

/* Of the last step and of the last evaluation. */
static void read_last(char *out, int bytes, const char *where)
{
    char path[512], line[1024], loss[64] = "", evaluated[64] = "";
    snprintf(path, sizeof path, "%s/%s/metrics.jsonl", folder, where);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        const char *a = strstr(line, "\"loss\":"), *b = strstr(line, "\"eval_loss\":");
        if (a)
            snprintf(loss, sizeof loss, "%.*s", (int)strcspn(a, ","), a);
        if (b)
            snprintf(evaluated, sizeof evaluated, "%.*s", (int)strcspn(b, ",}"), b);
    }
    fclose(f);
    assert_true(*loss && *evaluated);
    snprintf(out, (size_t)bytes, "%s %s", loss, evaluated);
}

static int times(const char *text, const char *what)
{
    int count = 0;
    for (; (text = strstr(text, what)); text++)
        count++;
    return count;
}

/* Each program's first time op by op, its second captured and launched, the third launched again: as without, to the
 * last bit, what was sent included. Evaluation and the steps of a smaller batch have graphs of their own; an evaluation
 * has three batches, so that its graph, too, is launched again. */
TEST(a_graph_of_the_step_changes_nothing)
{
    static const struct {
        int ranks;
        const char *model, *keys;
        int graphs; /* a rank */
    } cases[] = {
        {1, "gpt2", "data.document_mask=true train.dropout=0.1", 2},
        {2, "gpt2", "parallel.tensor=2 train.precision=bf16", 2},
        {2, "llama", "parallel.zero=1", 3}, /* weights are gathered before evaluation */
        {2, "llama", "parallel.zero=1 train.steps=8 train.global_batch=8 train.batch_ramp=[[0,4],[5,8]]", 4},
        {2, "llama", "parallel.zero=3 parallel.zero_gather=micro_batch parallel.zero_reduce=micro_batch", 2},
        {2, "llama", "parallel.pipeline=2 parallel.schedule=zb-h1", 2},
        {2, "gpt2", "parallel.pipeline=2 parallel.vocabulary=stages", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cuda_run without, with;
        char keys[512], sent[2][256];
        snprintf(
            keys, sizeof keys,
            "train.device=cuda checkpoint.resume=never data.validation=%s/data evaluate.every=1 evaluate.batches=3 "
            "%s train.cuda_graph=false",
            folder, cases[i].keys);
        cuda_runs_train_well(&without, "phalanx_standin", cases[i].ranks, cases[i].model, "by-op", keys);
        strcpy(strrchr(keys, '=') + 1, "true");
        launch_result r = cuda_runs_train("phalanx_standin", cases[i].ranks, "", cases[i].model, "graph", keys);
        if (r.status || !strstr(r.err, "nodes, launched 2 times") ||
            times(r.err, "standin: a graph: ") != cases[i].ranks * cases[i].graphs)
            fail_msg("%s: status %d, %d graphs\n%s%s", keys, r.status, times(r.err, "standin: a graph: "), r.err,
                     r.out);
        launch_free(&r);
        cuda_runs_read(&with, "graph");
        assert_int_equal(with.steps, STEPS);
        cuda_runs_same(&with, &without, 0, keys);
        read_sent(sent[0], sizeof sent[0], "by-op");
        read_sent(sent[1], sizeof sent[1], "graph");
        assert_string_equal(sent[1], sent[0]);
        read_last(sent[0], sizeof sent[0], "by-op");
        read_last(sent[1], sizeof sent[1], "graph");
        assert_string_equal(sent[1], sent[0]);
    }
}

/* A number that the stand-ins say of the profiled steps: the one before `what`. */
static int profiled(const launch_result *r, const char *what)
{
    const char *line = strstr(r->err, "standin: profiled: "), *at = line ? strstr(line, what) : NULL;
    if (!at)
        fprintf(stderr, "status %d, no \"%s\"\n%s%s", r->status, what, r->out, r->err);
    assert_int_equal(r->status, 0);
    assert_non_null(at);
    while (at > line && at[-1] != ',' && at[-1] != ':')
        at--;
    return atoi(at);
}

/* Microseconds of a step in the stand-ins' time. The first stage has three of six layers: the others' receives wait. */
static int step_time(const char *mutant)
{
    char environment[64];
    snprintf(environment, sizeof environment, "STANDIN_MUTANT='%s'", mutant);
    launch_result r = cuda_runs_train("phalanx_standin", 4, environment, "llama", "edges",
                                      "train.device=cuda train.tune=false train.global_batch=8 train.steps=1 "
                                      "parallel.pipeline=4 model.layers=6 parallel.layers_per_stage=[3,1,1,1] "
                                      "checkpoint.resume=never profile.start=1 profile.stop=1");
    int time = profiled(&r, " microseconds");
    launch_free(&r);
    return time;
}

/* NCCL runs one kernel of a communicator at a time: a receive posted early would hold the next send in its
 * direction. */
TEST(a_receive_that_waits_holds_no_send)
{
    int apart = step_time(""), together = step_time("a communicator a direction");
    if (together < apart + 20000)
        fail_msg("%d and %d microseconds", apart, together);
}

/* NCCL waits in the closing of a communicator until no graph refers to it: the graph goes first. */
TEST(the_graph_is_gone_before_its_communicators_close)
{
    static const char *const mutants[] = {"", "a graph is never gone"};
    for (int i = 0; i < 2; i++) {
        char environment[64];
        snprintf(environment, sizeof environment, "STANDIN_MUTANT='%s'", mutants[i]);
        launch_result r = cuda_runs_train("phalanx_standin", 2, environment, "llama", "closes",
                                          "train.device=cuda train.cuda_graph=true parallel.tensor=2 "
                                          "checkpoint.resume=never");
        if (r.status != (i ? CUDA_RUNS_CAUGHT : 0) || !strstr(r.err, "ncclCommDestroy never returns") != !i)
            fail_msg("%s: status %d\n%s%s", mutants[i], r.status, r.out, r.err);
        launch_free(&r);
    }
}

TEST(the_profiler_runs_for_the_steps_asked_for)
{
    launch_result r = cuda_runs_train("phalanx_standin", 1, "", "gpt2", "profiled",
                                      "train.device=cuda profile.start=2 profile.stop=2");
    assert_true(profiled(&r, " launches") > 100);
    launch_free(&r);
}

/* Of the batches of three steps, the first is read at once and each other one while the step before it is played; host
 * memory is what the plan says. */
TEST(the_next_batch_is_read_while_the_device_plays)
{
    launch_result r = cuda_runs_train("phalanx_standin", 1, "", "gpt2", "ahead",
                                      "train.device=cuda profile.start=1 profile.stop=3 data.document_mask=true");
    assert_int_equal(profiled(&r, " read ahead"), 2 * 4);
    assert_int_equal(profiled(&r, " read idle"), 0);
    char *path = launch_beside("../phalanx");
    launch_result plan = launch_run(60, "cd %s && exec %s plan --json gpt2.yaml data.document_mask=true", folder, path);
    const char *planned = strstr(plan.out, "\"pinned_bytes\": ");
    assert_non_null(planned);
    assert_int_equal(profiled(&r, " bytes pinned"), atoi(planned + strlen("\"pinned_bytes\": ")));
    launch_free(&plan);
    launch_free(&r);
    free(path);
    cuda_run without, with;
    char keys[600];
    snprintf(keys, sizeof keys, "train.device=cuda data.validation=%s/data evaluate.every=1 evaluate.batches=2",
             folder);
    cuda_runs_train_well(&without, "phalanx_standin", 2, "gpt2", "straight", "train.device=cuda");
    cuda_runs_train_well(&with, "phalanx_standin", 2, "gpt2", "evaluated", keys);
    cuda_runs_same(&with, &without, 0, "with evaluation in between");
}

/* 6 layers of GPT-2 are 76 tensors, and a launch takes 32 of them; with ZeRO 1, a rank of two has rows of the 26
 * matrices and half of the 50 vectors. */
TEST(small_tensors_are_updated_together)
{
    launch_result r = cuda_runs_train("phalanx_standin", 1, "", "gpt2", "together",
                                      "train.device=cuda train.steps=1 model.layers=6 profile.start=1 profile.stop=1");
    assert_int_equal(profiled(&r, " of updates"), 3);
    launch_free(&r);
    r = cuda_runs_train(
        "phalanx_standin", 2, "", "gpt2", "together-2",
        "train.device=cuda train.steps=1 model.layers=6 profile.start=1 profile.stop=1 parallel.zero=1");
    assert_int_equal(profiled(&r, " of updates"), 2);
    launch_free(&r);
}

/* NCCL's reduce-scatter divides evenly. What it cannot divide becomes a reduction to each rank in turn: the
 * vocabulary's rows, by far the largest such tensor, are padded instead, so that 12,224 of them, which 3 does not
 * divide, need no more of those than 12,288. */
TEST(the_vocabulary_is_reduced_in_one_call)
{
    int reduced[2];
    for (int i = 0; i < 2; i++) {
        char keys[200];
        snprintf(
            keys, sizeof keys,
            "train.device=cuda train.steps=1 parallel.zero=1 checkpoint.resume=never profile.start=1 profile.stop=1 "
            "train.global_batch=3 model.vocab_size=%d",
            i ? 12288 : 12224);
        launch_result r = cuda_runs_train("phalanx_standin", 3, "", "llama", "vocabulary", keys);
        reduced[i] = profiled(&r, " reduced to one");
        launch_free(&r);
    }
    assert_true(reduced[1] > 0); /* norms belong to one rank each */
    assert_int_equal(reduced[0], reduced[1]);
}

int main(void)
{
    return cuda_runs_group(set_up, cuda_runs_teardown);
}
