/* QK-clip trains as its reference does (tests/golden/models/qk_clip.py: PyTorch's Muon and the paper's algorithm, in
 * float64), in every layout and for each way in which heads share keys; what attention has seen is the metric; skipped
 * steps scale nothing; and mistakes are noticed.
 *
 * One job plays all runs of one number of ranks (tests/jobs/playlist.h). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "tests/cover.h"
#include "tests/jobs/golden.h"
#include "tests/jobs/parity.h"
#include "tests/jobs/plans.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

enum { STEPS = 20, MOST_RANKS = 4 };
static const double LIMIT = 1e-5; /* of losses and largest scores, relative */

/* Heads that share keys, that have keys of their own, and latents, without and with a latent of queries; and with a
 * block behind the last layer. */
static const struct {
    const char *name;
    double threshold;
} MODELS[] = {{"llama", 1}, {"llama-tied", 1}, {"deepseek-v2", 1.2}, {"deepseek-v3", 0.8}, {"deepseek-v3-mtp", 0.8}};

enum { LLAMA, TIED, V2, V3, MTP };

/* Rows of one letter must leave the same bits. */
static const struct {
    int model, ranks;
    const char *keys;
    char group;
} RUNS[] = {
    {LLAMA, 1, "", 'a'},
    {LLAMA, 1, "memory.recompute=full", 'a'},
    {LLAMA, 2, "parallel.tensor=2", 0},
    {LLAMA, 2, "parallel.context=2", 0},
    {LLAMA, 2, "parallel.zero=0", 'b'},
    {LLAMA, 2, "parallel.zero=3", 'b'},
    {LLAMA, 4, "parallel.tensor=4", 0}, /* key heads are held twice */
    {LLAMA, 4, "parallel.pipeline=2 parallel.context=2", 0},
    {TIED, 1, "", 0},
    {TIED, 2, "parallel.tensor=2", 0},
    {TIED, 2, "parallel.zero=2 parallel.zero_reduce=micro_batch", 0},
    {TIED, 2, "parallel.pipeline=2 parallel.vocabulary=stages", 0},
    {TIED, 4, "parallel.tensor=2 parallel.context=2", 0},
    {V2, 1, "", 0},
    {V2, 2, "parallel.context=2 parallel.context_gather=latent", 0},
    {V2, 2, "parallel.context=2 parallel.context_gather=keys", 0},
    {V2, 2, "parallel.pipeline=2 parallel.schedule=gpipe", 0},
    {V3, 1, "", 0},
    {V3, 2, "parallel.tensor=2", 0},
    {V3, 2, "parallel.zero=3 parallel.zero_reduce=micro_batch parallel.zero_gather=micro_batch", 0},
    {V3, 2, "parallel.expert=2", 0},
    {V3, 2, "parallel.pipeline=2 parallel.schedule=zb-h1 memory.recompute=full", 'c'},
    {V3, 2, "parallel.pipeline=2 parallel.schedule=1f1b", 'c'},
    {V3, 4, "parallel.tensor=2 parallel.expert=2", 0},
    {MTP, 1, "", 0},
    {MTP, 2, "parallel.tensor=2", 0},
    {MTP, 2, "parallel.pipeline=2", 0},
    {MTP, 2, "parallel.pipeline=2 parallel.vocabulary=stages", 0},
    {MTP, 2, "parallel.zero=3", 0},
};

enum { NRUNS = sizeof RUNS / sizeof *RUNS };

static bool taken[NRUNS]; /* in this ring */

static char *run_folder(const char *top, int run)
{
    return must_format("%s/run-%d", top, run);
}

static char *yaml_of(const char *top, int model)
{
    return must_format("%s/%s.yaml", top, MODELS[model].name);
}

static void write_yaml(const char *top, int model)
{
    AUTO_FREE char *path = yaml_of(top, model);
    char *text = must_format(
        "model: {from: %s/%s}\n"
        "data: {train: %s, shuffle: false}\n"
        "train: {steps: %d, sequence: 32, micro_batch: 2, global_batch: 8, precision: fp32, device: cpu, threads: 1}\n"
        "optimizer: {name: muon, lr: 4e-3, min_lr: 4e-4, muon_lr: 0.02, warmup: 3, weight_decay: 0.1, clip: 1, "
        "qk_clip: %g}\n"
        "checkpoint: {every: %d, keep: 0, resume: never}\n"
        "evaluate: {every: 0}\n"
        "run: {tensorboard: false}\n",
        GOLDEN_MODELS, MODELS[model].name, GOLDEN_DATA, STEPS, MODELS[model].threshold, STEPS);
    runs_write_text(path, text);
    free(text);
}

/* The rows of a letter go together, to be compared. */
static void take_ring(void)
{
    char *facts[NRUNS];
    for (int i = 0; i < NRUNS; i++)
        facts[i] = must_format("%s ranks=%d %s", MODELS[RUNS[i].model].name, RUNS[i].ranks, RUNS[i].keys);
    cover_take(taken, (const char *const *)facts, NRUNS, 3);
    for (int i = 0; i < NRUNS; i++) {
        for (int k = 0; k < i && RUNS[i].group; k++)
            taken[i] = RUNS[k].group == RUNS[i].group ? taken[k] : taken[i];
        free(facts[i]);
    }
}

static int train_all(void **state)
{
    if (workfolder_setup(state))
        return -1;
    const char *top = *state;
    take_ring();
    for (int model = LLAMA; model <= MTP; model++)
        write_yaml(top, model);
    for (int ranks = 1; ranks <= MOST_RANKS; ranks++) {
        FILE *list = parity_open_list(top, "playlist");
        int count = 0;
        for (int i = 0; i < NRUNS; i++) {
            AUTO_FREE char *yaml = yaml_of(top, RUNS[i].model), *folder = run_folder(top, i);
            if (taken[i] && RUNS[i].ranks == ranks && ++count)
                fprintf(list, "%s run.folder=%s %s\n", yaml, folder, RUNS[i].keys);
        }
        fclose(list);
        if (count > 0)
            parity_play(top, "rank_playlist", ranks, "playlist", count);
    }
    return 0;
}

/* The largest relative error of `number` of each step in the lines of a run; infinite unless all are there. */
static double error_of(const char *folder, int model, const char *number, const char *expected)
{
    char *path = must_format("%s/%s/qk_clip.json", GOLDEN_MODELS, MODELS[model].name), line[4096];
    AUTO_FREE char *metrics = must_format("%s/metrics.jsonl", folder);
    json_t *root = json_load_file(path, 0, NULL), *all = json_object_get(root, expected);
    FILE *in = fopen(metrics, "r");
    assert_int_equal(json_array_size(all), STEPS);
    double worst = 0;
    size_t steps = 0;
    while (in && fgets(line, sizeof line, in)) {
        json_t *entry = json_loads(line, 0, NULL), *value = json_object_get(entry, number);
        if (json_object_get(entry, "loss")) {
            const double want = json_number_value(json_array_get(all, steps++));
            const double error = json_is_number(value) ? fabs(json_number_value(value) - want) / want : INFINITY;
            worst = error <= worst ? worst : error;
        }
        json_decref(entry);
    }
    if (in)
        fclose(in);
    json_decref(root);
    free(path);
    return steps == STEPS ? worst : INFINITY;
}

TEST(heads_are_scaled_as_the_paper_says_in_every_layout)
{
    int wrong = 0;
    for (int i = 0; i < NRUNS; i++) {
        if (!taken[i])
            continue;
        AUTO_FREE char *folder = run_folder(*state, i);
        const double loss = error_of(folder, RUNS[i].model, "loss", "losses");
        const double peak = error_of(folder, RUNS[i].model, "attention_logit_max", "peaks");
        printf("%-12s %d ranks %-85s loss off by %.1e, largest score by %.1e\n", MODELS[RUNS[i].model].name,
               RUNS[i].ranks, RUNS[i].keys, loss, peak);
        wrong += !(loss <= LIMIT && peak <= LIMIT);
    }
    assert_int_equal(wrong, 0);
}

TEST(plans_say_what_clipped_runs_use_and_send)
{
    int wrong = 0;
    for (int i = 0; i < NRUNS; i++) {
        if (!taken[i])
            continue;
        AUTO_FREE char *folder = run_folder(*state, i);
        const plans_verdict v = plans_compare(folder, RUNS[i].ranks, STEPS);
        if (v.wrong)
            printf("%s, %s: %s\n", MODELS[RUNS[i].model].name, RUNS[i].keys, v.what);
        wrong += v.wrong;
    }
    assert_int_equal(wrong, 0);
}

TEST(no_bit_of_a_clipped_run_depends_on_recompute_schedule_or_sharding)
{
    int wrong = 0;
    for (int i = 0; i < NRUNS; i++) {
        int first = 0;
        while (first < i && (!RUNS[i].group || RUNS[first].group != RUNS[i].group))
            first++;
        if (!taken[i] || first == i)
            continue;
        char difference[256], *folder = run_folder(*state, i), *other = run_folder(*state, first);
        const int equal = runs_compare_checkpoints(difference, sizeof difference, folder, other);
        if (equal <= 0 || *difference)
            printf("%s: differs from %s in %s\n", RUNS[i].keys, RUNS[first].keys, difference);
        wrong += equal <= 0 || *difference;
        free(other);
        free(folder);
    }
    assert_int_equal(wrong, 0);
}

/* In fp16 a scale of 2^32 makes gradients infinite: the step changes nothing, with every head above the threshold. */
TEST(a_skipped_step_scales_nothing)
{
    static const char *const keys[] = {"optimizer.qk_clip=0", "optimizer.qk_clip=1e-3"};
    static const char *const scales[] = {"4294967296", "1"};
    const char *top = *state;
    for (int skips = 1; skips >= 0; skips--) {
        char *folder[2], difference[256], *yaml = yaml_of(top, V3);
        for (int i = 0; i < 2; i++) {
            folder[i] = must_format("%s/%s-%d", top, skips ? "skipped" : "updated", i);
            free(runs_train_well(60, 1,
                                 "%s run.folder=%s train.steps=1 train.precision=fp16 train.loss_scale=%s "
                                 "checkpoint.every=1 %s",
                                 yaml, folder[i], scales[!skips], keys[i]));
        }
        const int equal = runs_compare_checkpoints(difference, sizeof difference, folder[0], folder[1]);
        printf("%s: %d tensors alike, %s\n", skips ? "skipped" : "updated", equal, *difference ? difference : "all");
        assert_int_equal(*difference == 0, skips);
        free(folder[0]);
        free(folder[1]);
        free(yaml);
    }
}

/* Each is one small mistake. Words are faults of tests/jobs/rank_mutants.c, on two ranks that divide samples. */
TEST(a_slightly_different_clip_is_caught)
{
    static const struct {
        const char *word, *keys;
    } mutants[] = {
        {"@none", ""},
        {"@peaks-of-one-rank", ""},
        {"@peaks-of-one-micro-batch", ""},
        {"@rotating-rows-by-the-root", ""},
        {"@peaks-of-another-layer", ""},
        {"@none", "optimizer.qk_clip=0.801"},
        {"@none", "optimizer.qk_clip=0"},
    };
    enum { COUNT = sizeof mutants / sizeof *mutants };
    const char *top = *state;
    FILE *list = parity_open_list(top, "mutants");
    AUTO_FREE char *yaml = yaml_of(top, V3);
    for (int i = 0; i < COUNT; i++)
        fprintf(list, "%s %s run.folder=%s/mutant-%d %s\n", mutants[i].word, yaml, top, i, mutants[i].keys);
    fclose(list);
    parity_play(top, "rank_mutants", 2, "mutants", COUNT);
    int missed = 0;
    for (int i = 0; i < COUNT; i++) {
        AUTO_FREE char *folder = must_format("%s/mutant-%d", top, i);
        const double error = error_of(folder, V3, "loss", "losses");
        printf("%-28s %-26s loss off by %.1e\n", mutants[i].word, mutants[i].keys, error);
        assert_true(isfinite(error)); /* noticed by figures, not by failing to run */
        missed += (error <= LIMIT) != (i == 0);
    }
    assert_int_equal(missed, 0);
}

TEST_MAIN(train_all, workfolder_teardown)
