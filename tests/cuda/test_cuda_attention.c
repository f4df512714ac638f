/* Attention by cuDNN without a GPU: the real library plans and compiles our graphs for an H100; a stand-in that
 * executes graphs by the definitions of their operations gives them their meaning, and trains. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/run/choices.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/cuda/cuda_runs.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/skip.h"
#include "tests/test.h"

/* Engines of the stand-in: the first two are the fastest and must not be taken; the last keeps an order in the backward
 * pass of compute capability 10.x. */
enum { UNREPEATABLE, GREEDY, GOOD, SLOWER, ORDERED, ENGINES, NONE = 77, OLD = 91100 };

static char *folder, *standin, *driver;

static void write_config(const char *name, const char *model)
{
    AUTO_FREE char *path = workfolder_path(folder, name);
    AUTO_FREE char *text =
        must_format("model: {%s, layers: 2, hidden_size: 32, heads: 4, ffn_size: 64, vocab_size: 64, "
                    "max_sequence: 12}\n"
                    "data: {train: data}\n"
                    "train: {steps: 4, sequence: 12, micro_batch: 2, global_batch: 4, precision: bf16, "
                    "threads: 1}\n"
                    "optimizer: {lr: 1e-2, warmup: 1, schedule: constant}\n"
                    "evaluate: {every: 0}\n"
                    "run: {tensorboard: false}\n",
                    model);
    runs_write_text(path, text);
}

static int set_up(void **state)
{
    assert_int_equal(workfolder_setup(state), 0);
    folder = *state;
    standin = launch_beside("standin");
    driver = launch_beside("driver");
    AUTO_FREE char *data = workfolder_path(folder, "data");
    runs_write_data(data, 64, 2000, 1);
    write_config("gpt2.yaml", "architecture: gpt2");
    write_config("llama.yaml", "architecture: llama, kv_heads: 2");
    write_config("mistral.yaml", "architecture: mistral, kv_heads: 2, sliding_window: 5");
    return 0;
}

static int tear_down(void **state)
{
    free(standin);
    free(driver);
    return workfolder_teardown(state);
}

/* ---- the real library ------------------------------------------------------------------------------------------- */

static int count_of(const char *text, const char *words)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, words)); at++)
        count++;
    return count;
}

/* What the library says of our graphs for the GPU; skips where there is none. The text is the caller's. */
static char *plans_for(const char *gpu)
{
    char *program = launch_beside("cudnn_plans");
    launch_result r = launch_run(300, "LD_LIBRARY_PATH=%s exec %s %s", driver, program, gpu);
    free(program);
    if (r.status == NONE) {
        launch_free(&r);
        skip_because("no cuDNN, or one too old");
    }
    char *out = must_strdup(r.out);
    if (r.status > 1 || r.timed_out)
        fprintf(stderr, "%s%s", r.out, r.err);
    assert_true(r.status <= 1 && !r.timed_out); /* 1: a graph has no candidate */
    launch_free(&r);
    return out;
}

TEST(our_graphs_are_planned_and_compiled_for_an_h100)
{
    AUTO_FREE char *out = plans_for("");
    assert_non_null(strstr(out, " 0 graphs without a candidate"));
    assert_int_equal(count_of(out, "compiled"), 24); /* twelve shapes, both directions */
    assert_int_equal(count_of(out, "refused"), 0);
}

/* Backward by the engine that keeps an order, which takes neither documents nor heads of 256. */
TEST(those_that_a_b200_takes_in_order_are_compiled)
{
    unsigned long version = 0;
    AUTO_FREE char *out = plans_for("b200");
    const char *last = strstr(out, "cuDNN 9");
    assert_non_null(last);
    assert_int_equal(sscanf(last, "cuDNN %lu", &version), 1);
    bool known = version >= 91801;
    assert_int_equal(count_of(out, "compiled"), known ? 18 : 12); /* forward, all shapes */
    assert_int_equal(count_of(out, "backward: engine 5, "), known ? 6 : 0);
}

/* ---- the graphs' meaning ----------------------------------------------------------------------------------------- */

/* device_ops on cases that go by cuDNN: how many, how many wrong, and how many graphs were executed. */
static void compare(int *cases, int *failed, int *executed, const char *program_name, const char *name,
                    const char *environment)
{
    AUTO_FREE char *program = launch_beside(program_name);
    launch_result r =
        launch_run(120, "LD_LIBRARY_PATH=%s STANDIN_REPORT=1 %s exec %s %s cuDNN", standin, environment, program, name);
    const char *line = strstr(r.out, "device_ops: "), *report = strstr(r.err, "cuDNN ");
    int used[ENGINES] = {0};
    if (!line || !report)
        fprintf(stderr, "%s%s", r.out, r.err);
    assert_non_null(line);
    assert_non_null(report);
    assert_int_equal(sscanf(line, "device_ops: 1 ops, %d cases, %d failed", cases, failed), 2);
    assert_int_equal(sscanf(report, "cuDNN %d %d %d %d", &used[0], &used[1], &used[2], &used[3]), 4);
    assert_true(used[UNREPEATABLE] == 0 && used[GREEDY] == 0);
    *executed = used[GOOD];
    launch_free(&r);
}

TEST(the_graphs_are_attention_and_its_gradient)
{
    int cases, failed, executed;
    const char *ops[] = {"attention", "attention_grad"};
    for (int i = 0; i < 2; i++) {
        compare(&cases, &failed, &executed, "device_ops_standin", ops[i], "");
        assert_true(cases >= 52 && failed == 0); /* of them some with documents, and some with two graphs */
        assert_true(executed > cases);
        compare(&cases, &failed, &executed, "device_ops_standin", ops[i],
                "STANDIN_MUTANT='cuDNN sees other documents'");
        assert_true(failed > 0 && failed <= 28);
        compare(&cases, &failed, &executed, "device_ops_standin", ops[i],
                "STANDIN_MUTANT='cuDNN forgets where a run begins'");
        assert_true(failed > 0 && failed <= 12);
    }
    /* mutants of the graphs' meaning */
    compare(&cases, &failed, &executed, "device_ops_standin", "attention", "STANDIN_MUTANT='cuDNN sees the future'");
    assert_true(failed > 0);
    compare(&cases, &failed, &executed, "device_ops_standin", "attention", "STANDIN_MUTANT='cuDNN counts in twos'");
    assert_true(failed > 0);
    compare(&cases, &failed, &executed, "device_ops_standin", "attention_grad",
            "STANDIN_MUTANT='cuDNN sees the future'");
    assert_true(failed > 0);
}

/* By samples, and within a sample by heads. */
TEST(a_large_workspace_is_divided_into_parts)
{
    int cases, failed, executed;
    compare(&cases, &failed, &executed, "device_ops_narrow", "attention_grad", "");
    assert_true(cases >= 18 && failed == 0);
    assert_true(executed >= 3 * cases); /* on average: the smallest fit as they are */
}

/* Llama 8B's layers on two tensor ranks: four query heads over 8,192 tokens want 512 MiB, all sixteen 2 GiB. */
TEST(a_plan_leaves_the_library_what_it_can_spare)
{
    static const struct {
        const char *budget;
        long long least, most; /* MiB */
    } cases[] = {{"70GiB", 2048, 2560}, {"11GiB", 512, 1024}};
    AUTO_FREE char *program = launch_beside("phalanx_standin");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        launch_result r = launch_run(120,
                                     "exec %s plan --json --ranks 64 models/configs/llama-8b-64gpu.yaml "
                                     "parallel.tensor=2 parallel.data=32 parallel.pipeline=1 parallel.virtual_stages=1 "
                                     "parallel.schedule=1f1b model.layers=8 memory.budget=%s",
                                     program, cases[i].budget);
        if (r.status)
            fprintf(stderr, "%s: status %d\n%s", cases[i].budget, r.status, r.err);
        assert_int_equal(r.status, 0);
        const char *at = strstr(r.out, "\"attention_working_bytes\": ");
        assert_non_null(at);
        long long bytes = atoll(strchr(at, ':') + 1);
        assert_in_range(bytes, cases[i].least << 20, cases[i].most << 20);
        launch_free(&r);
    }
}

/* dS of 8B's four heads that share keys is 8 GiB at 32,768 tokens: no budget leaves that. */
TEST(a_plan_says_who_computes_attention)
{
    static const struct {
        const char *keys, *words, *absent;
    } cases[] = {
        {"train.sequence=8192", "for its backward pass, cuDNN's or our own, whichever is timed as the faster",
         "context  "},
        {"train.sequence=32768 model.max_sequence=32768 train.global_batch=128",
         "our own backward pass in 4.00 MiB of working memory: cuDNN's, if it takes it, wants 8.00 GiB or more",
         "context  "},
        {"train.sequence=32768 model.max_sequence=32768 train.global_batch=128 parallel.context=4 parallel.data=8",
         "for its backward pass, cuDNN's or our own, whichever is timed as the faster\ncontext           128 MiB of "
         "gathered keys and values in a layer, of each micro-batch",
         "our own backward pass"},
        {"train.sequence=32768 model.max_sequence=32768 train.global_batch=128 parallel.context=4 parallel.data=8 "
         "data.document_mask=true parallel.context_balance=documents",
         "our own kernels, 1.00 MiB of working memory for the backward pass: cuDNN is left out where documents are "
         "dealt\ncontext           128 MiB",
         "if it takes it"},
        {"train.sequence=8192 model.preset=gpt-oss-20b parallel.expert=8",
         "our own forward pass: cuDNN is left out where heads have sinks\nattention  ", "if it takes it"},
        {"train.sequence=8192 model.attention_cap=50",
         "of working memory for the backward pass: cuDNN is left out where scores are capped", "if it takes it"},
    };
    AUTO_FREE char *program = launch_beside("phalanx_standin");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        launch_result r = launch_run(120,
                                     "exec %s plan models/configs/llama-8b-64gpu.yaml parallel.virtual_stages=1 "
                                     "parallel.schedule=1f1b %s",
                                     program, cases[i].keys);
        if (r.status || !strstr(r.out, cases[i].words))
            fprintf(stderr, "%s: status %d\n%s%s", cases[i].keys, r.status, r.out, r.err);
        assert_int_equal(r.status, 0);
        assert_non_null(strstr(r.out, cases[i].words));
        assert_null(strstr(r.out, cases[i].absent));
        launch_free(&r);
    }
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

typedef struct outcome {
    runs_metrics metrics;
    int used[ENGINES];                 /* -1: no report, hence no cuDNN */
    int ours, theirs;                  /* choices of attention */
    char ordered[DEVICE_CHOICE_VALUE]; /* the choice of the engine that keeps an order, or "" */
    bool reused;
} outcome;

static void run(outcome *out, const char *model, const char *where, const char *environment, const char *keys)
{
    AUTO_FREE char *program = launch_beside("phalanx_standin");
    launch_result r = launch_run(
        120,
        "cd %s && exec env STANDIN_REPORT=1 LD_LIBRARY_PATH=%s %s %s train %s.yaml train.device=cuda run.folder=%s %s",
        folder, standin, environment, program, model, where, keys);
    if (r.status)
        fprintf(stderr, "%s, %s: status %d\n%s%s", environment, keys, r.status, r.out, r.err);
    assert_false(r.timed_out);
    assert_int_equal(r.status, 0);
    *out = (outcome){.used = {-1, -1, -1, -1, -1}, .reused = strstr(r.out, " from tuning.json") != NULL};
    const char *report = strstr(r.err, "cuDNN ");
    if (report)
        assert_int_equal(sscanf(report, "cuDNN %d %d %d %d %d", &out->used[0], &out->used[1], &out->used[2],
                                &out->used[3], &out->used[4]),
                         ENGINES);
    launch_free(&r);
    AUTO_FREE char *there = workfolder_path(folder, where), *path = workfolder_path(there, CHOICES_FILE);
    choices table = {0};
    assert_int_equal(choices_read(&table, path), STATUS_OK);
    for (int i = 0; i < table.count; i++)
        if (strstr(table.item[i].key, "attention")) {
            out->ours += !strcmp(table.item[i].value, "own");
            out->theirs += !strncmp(table.item[i].value, "cuDNN engine 2", 14);
            if (!strncmp(table.item[i].value, "cuDNN engine 5", 14) ||
                !strncmp(table.item[i].value, "cuDNN engine 17", 15))
                snprintf(out->ordered, sizeof out->ordered, "%s", table.item[i].value);
        }
    choices_free(&table);
    out->metrics = runs_read_metrics(there);
}

TEST(training_by_cudnn_follows_our_kernels)
{
    static const struct {
        const char *model, *keys;
    } runs[] = {{"gpt2", ""},
                {"llama", ""},
                {"mistral", ""},
                {"llama", "data.document_mask=true"},
                {"mistral", "data.document_mask=true train.cuda_graph=true"}};
    for (int i = 0; i < 5; i++) {
        outcome ours, theirs;
        AUTO_FREE char *a = must_format("%d-ours", i), *b = must_format("%d-cudnn", i);
        run(&ours, runs[i].model, a, "STANDIN_CUDNN_SLOW=1", runs[i].keys);
        run(&theirs, runs[i].model, b, "", runs[i].keys);
        assert_true(ours.ours == 2 && ours.theirs == 0 && theirs.theirs == 2 && theirs.ours == 0);
        /* 4 steps of 2 micro-batches of 2 layers, once forward and once backward, and what timing took */
        assert_true(theirs.used[GOOD] >= 32);
        assert_true(theirs.used[UNREPEATABLE] == 0 && theirs.used[GREEDY] == 0);
        double error = runs_loss_error(&theirs.metrics, &ours.metrics);
        if (getenv("SHOW"))
            fprintf(stderr, "%s %s: %g\n", runs[i].model, runs[i].keys, error);
        assert_true(error > 0 && error < 1e-3);
        assert_true(runs_norm_error(&theirs.metrics, &ours.metrics) < 2e-2);
    }
}

TEST(cudnn_in_a_graph_changes_nothing)
{
    outcome by_op, graph;
    run(&by_op, "llama", "by-op", "", "");
    run(&graph, "llama", "graph", "", "train.cuda_graph=true");
    assert_true(graph.theirs == 2 && graph.used[GOOD] >= 32);
    assert_true(runs_same_metrics(&graph.metrics, &by_op.metrics));
}

TEST(the_choice_is_kept_with_the_run)
{
    outcome whole, half, rest;
    run(&whole, "gpt2", "whole", "", "");
    run(&half, "gpt2", "parts", "", "train.steps=2");
    run(&rest, "gpt2", "parts", "STANDIN_CUDNN_SLOW=1", "");
    assert_true(rest.reused && rest.theirs == 2 && rest.used[GOOD] > 0 && rest.used[SLOWER] == 0);
    assert_true(runs_same_metrics(&rest.metrics, &whole.metrics));
}

TEST(without_cudnn_our_kernels_compute)
{
    outcome ours, old, guessed;
    AUTO_FREE char *too_old = must_format("STANDIN_CUDNN=%d", OLD);
    run(&ours, "llama", "ours", "STANDIN_CUDNN_SLOW=1", "");
    run(&old, "llama", "old", too_old, "");
    assert_true(old.used[GOOD] == -1 && old.ours + old.theirs == 0);
    assert_true(runs_same_metrics(&old.metrics, &ours.metrics));
    run(&guessed, "llama", "untimed", "", "train.tune=false");
    assert_true(guessed.ours == 2 && guessed.used[GOOD] == 0);
    assert_true(runs_same_metrics(&guessed.metrics, &ours.metrics));
}

/* Engines that are not repeatable are the fastest of the stand-in's. */
TEST(what_varies_is_taken_where_it_may)
{
    outcome r;
    run(&r, "llama", "varies", "", "train.deterministic=false");
    assert_true(r.used[UNREPEATABLE] >= 8);
    run(&r, "llama", "varies", "", "train.deterministic=true train.steps=5"); /* the table's choice is not taken over */
    assert_true(r.used[UNREPEATABLE] == 0 && r.used[GOOD] > 0);
    run(&r, "llama", "blackwell", "STANDIN_MAJOR=10", "train.deterministic=false");
    assert_true(r.used[UNREPEATABLE] >= 8);
}

/* On compute capability 10.x the backward pass is asked for by engine and knobs, where those that keep an order are
 * known; elsewhere our own kernels compute it. */
TEST(an_engine_that_keeps_an_order_is_asked_for_by_name)
{
    static const struct {
        const char *environment, *ordered;
    } cases[] = {
        {"STANDIN_MAJOR=10", "cuDNN engine 5, 24 = 31, 14 = 2"},
        {"STANDIN_MAJOR=10 STANDIN_MINOR=3", "cuDNN engine 5, 24 = 31, 14 = 2"},
        {"STANDIN_MAJOR=10 STANDIN_CUDNN=91801", "cuDNN engine 5, 24 = 31, 14 = 2"},
        {"STANDIN_MAJOR=10 STANDIN_CUDNN=92300", "cuDNN engine 5, 40 = 3, 41 = 2, 24 = 2, 38 = 0, 27 = 0, 14 = 2"},
        {"STANDIN_MAJOR=10 STANDIN_MINOR=7 STANDIN_CUDNN=92300",
         "cuDNN engine 17, 40 = 3, 41 = 2, 24 = 2, 38 = 0, 27 = 0, 14 = 2"},
        {"STANDIN_MAJOR=10 STANDIN_CUDNN=91800", ""},
        {"STANDIN_MAJOR=10 STANDIN_MINOR=7", ""},
        {"STANDIN_MAJOR=12", ""},
        {"STANDIN_MAJOR=8", ""},
    };
    outcome ours, theirs;
    run(&ours, "llama", "in-order-ours", "STANDIN_CUDNN_SLOW=1", "");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        AUTO_FREE char *where = must_format("in-order-%zu", i);
        run(&theirs, "llama", where, cases[i].environment, "");
        assert_string_equal(theirs.ordered, cases[i].ordered);
        /* 4 steps of 2 micro-batches of 2 layers; the forward pass is the heuristics' choice */
        assert_true(theirs.theirs == 1 && theirs.used[GOOD] >= 16);
        assert_true(cases[i].ordered[0] ? theirs.used[ORDERED] >= 16 : theirs.used[ORDERED] == 0);
        assert_true(theirs.used[UNREPEATABLE] == 0 && theirs.used[GREEDY] == 0);
        assert_true(runs_loss_error(&theirs.metrics, &ours.metrics) < 1e-3);
        assert_true(runs_norm_error(&theirs.metrics, &ours.metrics) < 2e-2);
    }
}

/* A backward pass over sequences that do not fill tiles of 128 keys is wrong before 9.16. */
TEST(an_old_library_is_not_asked_for_what_it_does_wrong)
{
    outcome r;
    run(&r, "llama", "tiles-old", "STANDIN_CUDNN=91500", "");
    assert_true(r.theirs == 1 && r.ours == 0); /* forward only */
    run(&r, "llama", "tiles-new", "STANDIN_CUDNN=91600", "");
    assert_true(r.theirs == 2);
}

/* cuDNN has no attention in fp32, and its own ends with no cap of scores. */
TEST(what_it_does_not_take_stays_ours)
{
    outcome r;
    run(&r, "gpt2", "fp32", "", "train.precision=fp32");
    assert_true(r.ours + r.theirs == 0 && r.used[GOOD] == 0);
    run(&r, "llama", "capped", "", "model.attention_cap=2");
    assert_true(r.ours + r.theirs == 0 && r.used[GOOD] == 0);
    run(&r, "gpt2", "ampere", "STANDIN_MAJOR=8", "");
    assert_true(r.theirs == 1 && r.ours == 0); /* forward only */
}

/* bench --self-check names what is wrong, and fails. */
TEST(a_self_check_tells_right_from_wrong)
{
    AUTO_FREE char *program = launch_beside("phalanx_standin");
    launch_result r =
        launch_run(300, "LD_LIBRARY_PATH=%s exec %s bench --self-check train.device=cuda", standin, program);
    if (r.status)
        fprintf(stderr, "%s%s", r.out, r.err);
    assert_int_equal(r.status, 0);
    assert_true(count_of(r.out, "right ") > 500 && count_of(r.out, "WRONG") == 0);
    assert_true(count_of(r.out, "attention_grad bf16") > 9 && count_of(r.out, "cuDNN engine 2") > 30);
    assert_true(count_of(r.out, "linear_wide bf16") >= 7 && count_of(r.out, "linear_wide fp16") >= 7);
    assert_true(count_of(r.out, "mma m16n8k16") == 2 && count_of(r.out, "pinned host memory") == 1);
    launch_free(&r);
    r = launch_run(300,
                   "LD_LIBRARY_PATH=%s STANDIN_MUTANT='cuDNN sees other documents' exec %s bench --self-check "
                   "train.device=cuda",
                   standin, program);
    assert_int_equal(r.status, 1);
    assert_true(count_of(r.out, "WRONG") > 0 && count_of(r.out, "documents: own: error") > 0);
    launch_free(&r);
    /* of each type, and by more than its tolerance */
    r = launch_run(
        300, "LD_LIBRARY_PATH=%s STANDIN_MUTANT='a product is larger' exec %s bench --self-check train.device=cuda",
        standin, program);
    assert_int_equal(r.status, 1);
    assert_true(count_of(r.out, "WRONG      linear fp32") > 7 && count_of(r.out, "WRONG      linear bf16") > 7);
    assert_true(count_of(r.out, "WRONG      linear fp16") > 7 && count_of(r.out, "WRONG      linear_wide bf16") > 6);
    launch_free(&r);
}

int main(void)
{
    return cuda_runs_group(set_up, tear_down);
}
