/* Every optimizer trains as its reference does (tests/golden/models/optimizers.py: PyTorch's Muon and SGD, Lion by its
 * paper's algorithm, all in float64), in every layout; what one layout saved another continues; and promise 2's bits.
 *
 * One job plays all runs of one number of ranks (tests/jobs/playlist.h). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/golden.h"
#include "tests/jobs/parity.h"
#include "tests/jobs/plans.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/update_layouts.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

enum { STEPS = 20, HALF = 10 };
static const double LIMIT = 1e-5; /* of a loss, relative */

static const char *const MODELS[] = {"gpt2", "llama"};

static const struct {
    const char *name, *keys;
} VARIANTS[] = {
    {"lion", "name: lion, lr: 1e-3, min_lr: 1e-4, beta2: 0.99"},
    {"sgd", "name: sgd, lr: 0.1, min_lr: 0.01, momentum: 0.9"},
    {"sgd-plain", "name: sgd, lr: 0.1, min_lr: 0.01, momentum: 0.9, nesterov: false"},
    {"muon", "name: muon, lr: 4e-3, min_lr: 4e-4, muon_lr: 0.02"},
    {"muon-plain", "name: muon, lr: 4e-3, min_lr: 4e-4, muon_lr: 0.02, nesterov: false, muon_adjust: match_rms_adamw"},
};

enum {
    NMODELS = sizeof MODELS / sizeof *MODELS,
    NVARIANTS = sizeof VARIANTS / sizeof *VARIANTS,
    NRUNS = NMODELS * NVARIANTS
};

static bool taken[NLAYOUTS * NRUNS]; /* in this ring */

static void take_ring(void)
{
    char *facts[NRUNS];
    for (int i = 0; i < NRUNS; i++)
        facts[i] = must_format("%s %s", MODELS[i / NVARIANTS], VARIANTS[i % NVARIANTS].name);
    update_layouts_take(taken, (const char *const *)facts, NRUNS);
    for (int i = 0; i < NRUNS; i++)
        free(facts[i]);
}

static char *run_folder(const char *top, int model, int variant, int layout)
{
    return must_format("%s/%s-%s-%d", top, MODELS[model], VARIANTS[variant].name, layout);
}

static void write_yaml(const char *path, int model, int variant)
{
    AUTO_FREE char *text = must_format(
        "model: {from: %s/%s}\n"
        "data: {train: %s, shuffle: false}\n"
        "train: {steps: %d, sequence: 32, micro_batch: 2, global_batch: 8, precision: fp32, device: cpu, threads: 1}\n"
        "optimizer: {warmup: 3, weight_decay: 0.1, clip: 1, %s}\n"
        "checkpoint: {every: %d, keep: 0, resume: never}\n"
        "evaluate: {every: 0}\n"
        "run: {tensorboard: false}\n",
        GOLDEN_MODELS, MODELS[model], GOLDEN_DATA, STEPS, VARIANTS[variant].keys, HALF);
    runs_write_text(path, text);
}

static char *yaml_of(const char *top, int model, int variant)
{
    return must_format("%s/%s-%s.yaml", top, MODELS[model], VARIANTS[variant].name);
}

static int train_all(void **state)
{
    if (workfolder_setup(state))
        return -1;
    const char *top = *state;
    take_ring();
    for (int ranks = 1; ranks <= MOST_RANKS; ranks++) {
        FILE *list = parity_open_list(top, "playlist");
        int count = 0;
        for (int i = 0; i < NLAYOUTS * NRUNS; i++) {
            int layout = i / NRUNS, model = i / NVARIANTS % NMODELS, variant = i % NVARIANTS;
            AUTO_FREE char *yaml = yaml_of(top, model, variant), *folder = run_folder(top, model, variant, layout);
            write_yaml(yaml, model, variant);
            if (taken[i] && LAYOUTS[layout].ranks == ranks && ++count)
                fprintf(list, "%s run.folder=%s %s\n", yaml, folder, LAYOUTS[layout].keys);
        }
        fclose(list);
        if (count > 0)
            parity_play(top, "rank_playlist", ranks, "playlist", count);
    }
    return 0;
}

/* The largest relative error of the losses of steps first .. STEPS (first from 1); infinite unless all are there. */
static double loss_error(const char *folder, int model, int variant, int first)
{
    AUTO_FREE char *path = must_format("%s/%s/optimizers.json", GOLDEN_MODELS, MODELS[model]);
    json_t *root = json_load_file(path, 0, NULL), *losses = json_object_get(root, VARIANTS[variant].name);
    runs_metrics m = runs_read_metrics(folder);
    assert_int_equal(json_array_size(losses), STEPS);
    double worst = m.count == STEPS + 1 - first ? 0 : INFINITY;
    for (int i = 0; i < m.count; i++) {
        double want = json_number_value(json_array_get(losses, (size_t)(m.step[i].step - 1)));
        double error = fabs(m.step[i].loss - want) / want;
        worst = error <= worst ? worst : error;
        if (m.step[i].step != first + i || isnan(error))
            worst = INFINITY;
    }
    json_decref(root);
    return worst;
}

TEST(every_optimizer_trains_as_its_reference_in_every_layout)
{
    int wrong = 0, tried = 0;
    for (int layout = 0; layout < NLAYOUTS; layout++) {
        double worst = 0;
        for (int i = 0; i < NRUNS; i++) {
            if (!taken[layout * NRUNS + i])
                continue;
            tried++;
            int model = i / NVARIANTS, variant = i % NVARIANTS;
            AUTO_FREE char *folder = run_folder(*state, model, variant, layout);
            double error = loss_error(folder, model, variant, 1);
            if (!(error <= LIMIT))
                printf("%s %s, %d ranks %s: loss off by %.1e\n", MODELS[model], VARIANTS[variant].name,
                       LAYOUTS[layout].ranks, LAYOUTS[layout].keys, error);
            wrong += !(error <= LIMIT);
            worst = fmax(worst, error);
        }
        printf("%d ranks %-85s worst loss %.1e\n", LAYOUTS[layout].ranks, LAYOUTS[layout].keys, worst);
    }
    printf("%d of %d\n", tried, NLAYOUTS * NRUNS);
    assert_true(4 * tried >= NLAYOUTS * NRUNS);
    assert_int_equal(wrong, 0);
}

TEST(no_bit_depends_on_recompute_schedule_or_sharding)
{
    int wrong = 0, compared = 0;
    for (int i = 0; i < NLAYOUTS * NRUNS; i++) {
        int layout = i / NRUNS, model = i / NVARIANTS % NMODELS, variant = i % NVARIANTS;
        int first = update_layouts_first(layout);
        if (!taken[i] || first == layout)
            continue;
        AUTO_FREE char *folder = run_folder(*state, model, variant, layout),
                       *other = run_folder(*state, model, variant, first);
        char difference[256];
        runs_metrics a = runs_read_metrics(folder), b = runs_read_metrics(other);
        int equal = runs_compare_checkpoints(difference, sizeof difference, folder, other);
        bool same = runs_same_metrics(&a, &b) && a.count == STEPS && equal > 0 && !*difference;
        if (!same)
            printf("%s %s, %s: differs from %s in %s\n", MODELS[model], VARIANTS[variant].name, LAYOUTS[layout].keys,
                   LAYOUTS[first].keys, *difference ? difference : "metrics");
        wrong += !same;
        compared++;
    }
    assert_true(4 * compared >= 7 * NRUNS);
    assert_int_equal(wrong, 0);
}

/* Promise 1 and the traffic, with the states and the sums of every optimizer. */
TEST(runs_use_and_send_what_their_plans_say)
{
    int wrong = 0;
    for (int i = 0; i < NLAYOUTS * NRUNS; i++) {
        int layout = i / NRUNS, model = i / NVARIANTS % NMODELS, variant = i % NVARIANTS;
        if (!taken[i])
            continue;
        AUTO_FREE char *folder = run_folder(*state, model, variant, layout);
        plans_verdict v = plans_compare(folder, LAYOUTS[layout].ranks, STEPS);
        if (v.wrong)
            printf("%s %s, %s: %s\n", MODELS[model], VARIANTS[variant].name, LAYOUTS[layout].keys, v.what);
        wrong += v.wrong;
    }
    assert_int_equal(wrong, 0);
}

/* From step 10 of a run on, in other layouts. */
TEST(what_one_layout_saved_another_continues)
{
    static const struct {
        int from, to;
    } moves[] = {{2, 7}, {7, 2}, {11, 0}, {3, 11}}; /* rows of LAYOUTS */
    const char *top = *state;
    for (size_t k = 0; k < sizeof moves / sizeof *moves; k++) {
        int to = moves[k].to, count = 0;
        const bool *saved = &taken[moves[k].from * NRUNS];
        FILE *list = parity_open_list(top, "continued");
        for (int i = 0; i < NRUNS; i++) {
            if (!saved[i])
                continue;
            count++;
            AUTO_FREE char *yaml = yaml_of(top, i / NVARIANTS, i % NVARIANTS);
            AUTO_FREE char *from = run_folder(top, i / NVARIANTS, i % NVARIANTS, moves[k].from);
            fprintf(list, "%s run.folder=%s-to-%d checkpoint.resume=%s/checkpoints/step-%08d %s\n", yaml, from, to,
                    from, HALF, LAYOUTS[to].keys);
        }
        fclose(list);
        assert_true(count > 0);
        parity_play(top, "rank_playlist", LAYOUTS[to].ranks, "continued", count);
        for (int i = 0; i < NRUNS; i++) {
            if (!saved[i])
                continue;
            AUTO_FREE char *from = run_folder(top, i / NVARIANTS, i % NVARIANTS, moves[k].from);
            AUTO_FREE char *folder = must_format("%s-to-%d", from, to);
            assert_true(loss_error(folder, i / NVARIANTS, i % NVARIANTS, HALF + 1) <= LIMIT);
        }
    }
}

/* Each is one small mistake. Words are faults of tests/jobs/rank_mutants.c, on two ranks that divide tensors. */
TEST(a_slightly_different_optimizer_is_caught)
{
    static const struct {
        int variant;
        const char *word, *keys;
    } mutants[] = {
        {3, "@none", ""},
        {3, "@dropped-gram-reduce", ""},
        {3, "@wrong-coefficient", ""},
        {3, "@shape-ignored", ""},
        {3, "@matrices-joined", ""},
        {3, "@none", "optimizer.momentum=0"},
        {3, "@none", "optimizer.nesterov=false"},
        {3, "@none", "optimizer.muon_adjust=match_rms_adamw"},
        {4, "@none", "optimizer.muon_lr=0.0201"},
        {0, "@none", "optimizer.beta1=0.91"},
        {0, "@none", "optimizer.weight_decay=0.2"},
        {1, "@none", "optimizer.momentum=0.89"},
        {1, "@none", "optimizer.nesterov=false"},
    };
    enum { COUNT = sizeof mutants / sizeof *mutants, LLAMA = 1 };
    const char *top = *state;
    FILE *list = parity_open_list(top, "mutants");
    for (int i = 0; i < COUNT; i++) {
        AUTO_FREE char *yaml = yaml_of(top, LLAMA, mutants[i].variant);
        fprintf(list, "%s %s run.folder=%s/mutant-%d parallel.tensor=2 %s\n", mutants[i].word, yaml, top, i,
                mutants[i].keys);
    }
    fclose(list);
    parity_play(top, "rank_mutants", 2, "mutants", COUNT);
    int missed = 0;
    for (int i = 0; i < COUNT; i++) {
        AUTO_FREE char *folder = must_format("%s/mutant-%d", top, i);
        double error = loss_error(folder, LLAMA, mutants[i].variant, 1);
        printf("%-10s %-26s%-34s loss off by %.1e\n", VARIANTS[mutants[i].variant].name, mutants[i].word,
               mutants[i].keys, error);
        assert_true(isfinite(error)); /* noticed by figures, not by failing to run */
        missed += (error <= LIMIT) != (i == 0);
    }
    assert_int_equal(missed, 0);
}

/* tests/golden/checkpoint was written after step 4 by the version that knew one optimizer (5925154, in bf16); these are
 * that version's losses when it went on in fp32. */
TEST(an_older_versions_checkpoint_resumes)
{
    static const double losses[] = {4.30155897, 4.21345329, 4.1352644, 4.17027855};
    for (int ranks = 1; ranks <= 2; ranks++) {
        AUTO_FREE char *folder = must_format("%s/older-%d", (const char *)*state, ranks);
        free(runs_train_well(60, ranks,
                             "tests/golden/checkpoint/run.yaml train.precision=fp32 checkpoint.every=0 "
                             "checkpoint.resume=tests/golden/checkpoint run.folder=%s parallel.tensor=%d",
                             folder, ranks));
        runs_metrics m = runs_read_metrics(folder);
        assert_int_equal(m.count, 4);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(m.step[i].step, 5 + i);
            assert_true(fabs(m.step[i].loss - losses[i]) <= 1e-6 * losses[i]);
        }
    }
}

TEST_MAIN(train_all, workfolder_teardown)
