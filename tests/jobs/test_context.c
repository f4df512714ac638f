/* A sample's tokens divided over context ranks, with everything else that a run does: each case is the same run on one
 * rank and on ranks of which two or three divide the tokens, and what is seen of it is the same but for rounding. The
 * layouts themselves are in the parity matrix (layouts.c). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/parity.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

enum { STEPS = 6 };

static const struct {
    const char *name;
    const char *both;    /* keys of the run on one rank, too */
    const char *divided; /* and beside them, without the context: two ranks have two, four another axis of two */
    int ranks, context;
    double allowed; /* of losses and norms, relative to one rank's; more where gradients are sent in few bits */
} cases[] = {
    {"evaluation", "evaluate.every=2 evaluate.batches=25", "", 2, 2, 1e-5},
    {"evaluation of documents", "evaluate.every=2 data.document_mask=true", "", 3, 3, 1e-5},
    {"balanced documents", "evaluate.every=2 data.document_mask=true train.dropout=0.1",
     "parallel.context_balance=documents parallel.data=2", 4, 2, 1e-5},
    {"verification", "", "run.verify_every=2", 2, 2, 1e-5},
    {"verification of replicas", "", "run.verify_every=2 parallel.data=2", 4, 2, 1e-5},
    {"a batch that grows", "train.batch_ramp=[[0,4],[3,8]] train.global_batch=8 data.document_mask=true",
     "parallel.context_balance=documents", 2, 2, 1e-5},
    {"compressed gradients", "", "parallel.compress=bf16 parallel.zero=1", 2, 2, 2e-3},
    {"a budget", "", "memory.budget=950KiB", 2, 2, 1e-5},
    {"traced steps", "", "run.trace=[2,3]", 2, 2, 1e-5},
    {"copies in memory", "", "checkpoint.memory_every=2 parallel.zero=1", 2, 2, 1e-5},
    {"Muon", "optimizer.name=muon", "parallel.tensor=2", 4, 2, 1e-5},
    {"dropout and stages", "train.dropout=0.2", "parallel.pipeline=2 parallel.schedule=zb-h1", 4, 2, 1e-5},
    {"ranks that are slow", "", "run.slow_ratio=5", 2, 2, 1e-5},
    {"vocabulary over stages", "evaluate.every=3 data.document_mask=true",
     "parallel.pipeline=2 parallel.vocabulary=stages parallel.context_balance=documents", 4, 2, 1e-5},
};

enum { CASES = sizeof cases / sizeof *cases };

static char *folder_of(const char *top, size_t i, bool divided)
{
    return must_format("%s/%s-%zu", top, divided ? "divided" : "one", i);
}

static void put(FILE *list, const char *top, size_t i, bool divided)
{
    AUTO_FREE char *folder = folder_of(top, i, divided);
    fprintf(list, "%s/run.yaml run.folder=%s %s", top, folder, cases[i].both);
    if (divided)
        fprintf(list, " parallel.context=%d %s", cases[i].context, cases[i].divided);
    fputc('\n', list);
}

/* Of `ranks` ranks; 1: all cases on one rank. */
static void play(const char *top, int ranks)
{
    FILE *list = parity_open_list(top, "playlist");
    int count = 0;
    for (size_t i = 0; i < CASES; i++)
        if (ranks == 1 || cases[i].ranks == ranks) {
            put(list, top, i, ranks > 1);
            count++;
        }
    fclose(list);
    parity_play(top, "rank_playlist", ranks, "playlist", count);
}

static int train_all(void **state)
{
    if (workfolder_setup(state))
        return -1;
    const char *top = *state;
    AUTO_FREE char *data = workfolder_path(top, "data"), *path = workfolder_path(top, "run.yaml");
    char *text =
        must_format("model: {architecture: llama, layers: 2, hidden_size: 32, heads: 4, kv_heads: 2, ffn_size: "
                    "64, vocab_size: 131, max_sequence: 48}\n"
                    "data: {train: %s, validation: %s}\n"
                    "train: {steps: %d, sequence: 48, micro_batch: 2, global_batch: 4, precision: fp32, device: "
                    "cpu, threads: 1}\n"
                    "optimizer: {lr: 3e-3, schedule: constant}\n"
                    "evaluate: {every: 0}\n"
                    "checkpoint: {every: 3}\n"
                    "run: {tensorboard: false, hang_seconds: 120}\n",
                    data, data, STEPS);
    runs_write_data(data, 131, 30000, 1);
    runs_write_text(path, text);
    for (int ranks = 1; ranks <= 4; ranks++)
        play(top, ranks);
    free(text);
    return 0;
}

static double evaluation_error(const runs_metrics *a, const runs_metrics *b)
{
    double worst = a->evaluations == b->evaluations ? 0 : INFINITY;
    for (int i = 0; i < a->evaluations && worst < INFINITY; i++)
        worst = fmax(worst, fabs(a->evaluation[i].loss - b->evaluation[i].loss) / b->evaluation[i].loss);
    return worst;
}

TEST(every_case_is_the_run_of_one_rank)
{
    const char *top = *state;
    int wrong = 0;
    for (size_t i = 0; i < CASES; i++) {
        AUTO_FREE char *one = folder_of(top, i, false), *divided = folder_of(top, i, true);
        runs_metrics a = runs_read_metrics(divided), b = runs_read_metrics(one);
        double loss = runs_loss_error(&a, &b), norm = runs_norm_error(&a, &b), eval = evaluation_error(&a, &b);
        bool good =
            b.count == STEPS && loss <= cases[i].allowed && norm <= cases[i].allowed && eval <= cases[i].allowed;
        printf("%-26s loss %.1e norm %.1e evaluation %.1e%s\n", cases[i].name, loss, norm, eval, good ? "" : " WRONG");
        wrong += !good;
    }
    assert_int_equal(wrong, 0);
}

/* To the digits of a line of metrics.jsonl. */
static bool same_digits(const json_t *a, const json_t *b)
{
    char x[32], y[32];
    snprintf(x, sizeof x, "%.9g", json_number_value(a));
    snprintf(y, sizeof y, "%.9g", json_number_value(b));
    return json_is_number(a) && json_is_number(b) && !strcmp(x, y);
}

static json_t *plan_of_case(const char *top, size_t i)
{
    AUTO_FREE char *phalanx = launch_beside("../phalanx");
    launch_result r = launch_run(60,
                                 "%s plan %s/run.yaml %s %s parallel.context=%d --ranks %d --data %s/data --batches "
                                 "99 --json --device cpu",
                                 phalanx, top, cases[i].both, cases[i].divided, cases[i].context, cases[i].ranks, top);
    if (r.status)
        fail_msg("plan of %s: %s", cases[i].name, r.err);
    json_t *root = json_loads(r.out, 0, NULL);
    assert_non_null(root);
    launch_free(&r);
    return root;
}

/* Returns the steps in which plan and run differ; adds to *unequal those that halves would divide unequally. */
static int compare_imbalance(int *unequal, const char *top, size_t i)
{
    char *folder = folder_of(top, i, true), *path = must_format("%s/metrics.jsonl", folder), text[8192];
    json_t *root = plan_of_case(top, i), *planned = json_object_get(root, "context_imbalance");
    const char *balance = json_string_value(json_object_get(planned, "balance"));
    size_t step = 0;
    int wrong = 0;
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(text, sizeof text, f)) {
        json_t *line = json_loads(text, 0, NULL), *measured = json_object_get(line, "context_imbalance");
        json_t *mine = json_array_get(json_object_get(planned, "steps"), step);
        step += measured != NULL;
        if (measured) {
            json_t *halves = json_object_get(mine, "halves");
            wrong += !same_digits(measured, json_object_get(mine, balance)) ||
                     !same_digits(json_object_get(line, "context_imbalance_of_halves"), halves);
            *unequal += json_number_value(halves) > 1.02;
        }
        json_decref(line);
    }
    fclose(f);
    assert_int_equal(step, STEPS); /* the run has no more, and --batches asked for more */
    assert_int_equal(json_integer_value(json_object_get(planned, "batches")), STEPS);
    json_decref(root);
    free(path);
    free(folder);
    return wrong;
}

TEST(plan_predicts_the_imbalance_of_the_run)
{
    int compared = 0, unequal = 0;
    for (size_t i = 0; i < CASES; i++)
        if (strstr(cases[i].both, "document_mask")) {
            assert_int_equal(compare_imbalance(&unequal, *state, i), 0);
            compared++;
        }
    assert_true(compared >= 3 && unequal >= STEPS);
}

TEST(plan_says_why_it_predicts_nothing)
{
    static const char *const refused[][2] = {
        {"--data DATA", "parallel.context is 1"},
        {"parallel.context=2 --batches 3", "--batches is an option of --data"},
        {"parallel.context=2 --data DATA --search --ranks 2", "--data is of one layout"},
        {"parallel.context=2 --data nowhere/at/all", "nowhere/at/all"},
    };
    AUTO_FREE char *phalanx = launch_beside("../phalanx");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        launch_result r = launch_run(60, "%s plan %s/run.yaml $(echo '%s' | sed 's:DATA:%s/data:')", phalanx,
                                     (char *)*state, refused[i][0], (char *)*state);
        assert_int_not_equal(r.status, 0);
        if (!strstr(r.err, refused[i][1]))
            fail_msg("%s: %s", refused[i][0], r.err);
        launch_free(&r);
    }
}

/* One rank reads what two that divided samples have saved: the loss of 25 batches of 4 samples is that of their own
 * last evaluation. */
TEST(a_checkpoint_is_evaluated_by_one_rank)
{
    const char *top = *state;
    AUTO_FREE char *folder = folder_of(top, 0, true), *phalanx = launch_beside("../phalanx");
    runs_metrics m = runs_read_metrics(folder);
    launch_result r =
        launch_run(60, "%s eval --checkpoint %s --data %s/data --limit 4800 --json", phalanx, folder, top);
    if (r.status)
        fail_msg("%s", r.err);
    json_t *said = json_loads(r.out, 0, NULL);
    double loss = json_number_value(json_object_get(said, "loss")), own = m.evaluation[m.evaluations - 1].loss;
    assert_int_equal(m.evaluation[m.evaluations - 1].step, STEPS);
    if (!(fabs(loss / own - 1) < 1e-6))
        fail_msg("%.9g, in training %.9g", loss, own);
    json_decref(said);
    launch_free(&r);
}

/* A checkpoint says nothing of context: another number of ranks goes on from it. */
TEST(a_run_goes_on_in_another_context)
{
    const char *top = *state;
    static const int contexts[] = {1, 3, 2};
    AUTO_FREE char *whole = workfolder_path(top, "whole"), *run = workfolder_path(top, "moves");
    free(runs_train_well(200, 1, "%s/run.yaml run.folder=%s train.steps=9", top, whole));
    for (int i = 0; i < 3; i++)
        free(runs_train_well(200, contexts[i], "%s/run.yaml run.folder=%s train.steps=%d parallel.context=%d", top, run,
                             3 * (i + 1), contexts[i]));
    runs_metrics a = runs_read_metrics(run), b = runs_read_metrics(whole);
    assert_int_equal(a.count, 9);
    assert_true(runs_loss_error(&a, &b) <= 1e-5 && runs_norm_error(&a, &b) <= 1e-4);
}

/* The stage with long samples: weights, moments and the count of updates of one rank's short ones, twice the sequence,
 * documents dealt to two ranks; as one rank would do that stage. */
TEST(a_stage_goes_on_with_longer_samples)
{
    static const char *const ways[] = {"", "parallel.context=2 parallel.context_balance=documents"};
    const char *top = *state;
    runs_metrics m[2];
    free(runs_train_well(60, 1, "%s/run.yaml run.folder=%s/short data.document_mask=true", top, top));
    for (int i = 0; i < 2; i++) {
        AUTO_FREE char *folder = must_format("%s/long-%d", top, i);
        free(runs_train_well(60, 1 + i,
                             "%s/run.yaml run.folder=%s checkpoint.resume=%s/short data.document_mask=true "
                             "model.max_sequence=192 train.sequence=192 train.global_batch=2 train.steps=%d %s",
                             top, folder, top, 2 * STEPS, ways[i]));
        m[i] = runs_read_metrics(folder);
    }
    assert_int_equal(m[1].count, STEPS);
    assert_int_equal(m[1].step[0].step, STEPS + 1);
    assert_true(runs_loss_error(&m[1], &m[0]) <= 1e-5 && runs_norm_error(&m[1], &m[0]) <= 1e-4);
}

static void says(const char *top, const char *arguments, const char *const words[3])
{
    AUTO_FREE char *phalanx = launch_beside("../phalanx");
    launch_result r = launch_run(60, "cd %s && %s %s", top, phalanx, arguments);
    if (r.status)
        fail_msg("%s: %s", arguments, r.err);
    for (int i = 0; i < 3 && words[i]; i++)
        if (!strstr(r.out, words[i]))
            fail_msg("%s: no \"%s\" in %s", arguments, words[i], r.out);
    launch_free(&r);
}

/* Of a run that divides samples, and of the steps of it that were traced: coordinates, bytes and waiting along the
 * axis. */
TEST(what_describes_a_run_knows_the_axis)
{
    const char *top = *state;
    size_t traced = 0;
    while (strcmp(cases[traced].name, "traced steps") != 0)
        traced++;
    char *folder = folder_of(top, traced, true), *keys[3];
    keys[0] = must_format("inspect %s", folder);
    keys[1] = must_format("timeline %s --output step.html && cat step.html", folder);
    keys[2] = must_format("report %s --output page.html && cat page.html", folder);
    json_t *summary = runs_read_summary(folder), *rank = json_array_get(json_object_get(summary, "ranks"), 1);
    json_int_t sent = json_integer_value(json_object_get(json_object_get(rank, "bytes_sent"), "context"));
    assert_int_equal(json_integer_value(json_object_get(rank, "context")), 1);
    assert_true(sent > 0);
    AUTO_FREE char *bytes = must_format("\"bytes_sent\":{\"tensor\":0,\"context\":%lld,", (long long)sent);
    says(top, keys[0], (const char *const[]){"the most work of a context rank 1 x the mean", NULL, NULL});
    says(top, keys[1], (const char *const[]){"waiting context", "context 2, pipeline 1", "\"exposed\":{\"context\":"});
    says(top, keys[2], (const char *const[]){bytes, "\"context_imbalance\":[1.0", "\"tensor\":0,\"context\":1,"});
    json_decref(summary);
    for (int i = 0; i < 3; i++)
        free(keys[i]);
    free(folder);
}

TEST(a_sample_that_cannot_be_divided_is_refused)
{
    const char *top = *state;
    AUTO_FREE char *line =
        must_format("%s/run.yaml run.folder=%s/refused train.sequence=46 parallel.context=2", top, top);
    launch_result r = runs_train(60, 2, line);
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, "train.sequence 46 is not a multiple of 2 x parallel.context 2"));
    launch_free(&r);
}

TEST_MAIN(train_all, workfolder_teardown)
