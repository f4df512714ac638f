/* optimizer.state and optimizer.master in bf16: what is rounded stochastically is rounded alike in every layout, bit
 * for bit in promise 2's classes, and goes from layout to layout through checkpoints unchanged. */
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
#include "tests/jobs/update_layouts.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

enum { STEPS = 10 };

/* Decays: gradients are clipped to nothing, so that an update is weight decay alone, the same in every layout. */
static const struct {
    const char *model, *name, *keys;
    bool decays;
} RUNS[] = {
    {"gpt2", "adamw", "lr: 4e-3", false},
    {"llama", "adamw", "lr: 4e-3", false},
    {"gpt2", "muon", "lr: 4e-3, muon_lr: 0.02", false},
    {"llama", "muon", "lr: 4e-3, muon_lr: 0.02", false},
    {"gpt2", "adamw", "lr: 1e-2, weight_decay: 0.1, clip: 1e-30", true},
    {"llama", "lion", "lr: 4e-3", false},
    {"gpt2", "muon", "lr: 1e-2, weight_decay: 0.1, clip: 1e-30", true},
    {"llama", "muon", "lr: 1e-2, weight_decay: 0.1, clip: 1e-30", true},
};

enum { NRUNS = sizeof RUNS / sizeof *RUNS, OTHER_SEED = 4 /* the run that is trained with another seed, too */ };

static bool taken[NLAYOUTS * NRUNS]; /* in this ring */

static void take_ring(void)
{
    char *facts[NRUNS];
    for (int i = 0; i < NRUNS; i++)
        facts[i] = must_format("%s %s decays=%d", RUNS[i].model, RUNS[i].name, RUNS[i].decays);
    update_layouts_take(taken, (const char *const *)facts, NRUNS);
    for (int i = 0; i < NRUNS; i++)
        free(facts[i]);
    for (int i = 0; i < NLAYOUTS && cover_has_check(); i++)
        taken[i * NRUNS + OTHER_SEED] = true; /* one that decays, in every layout */
    taken[OTHER_SEED] = true;
    for (int i = 0; i < NLAYOUTS * NRUNS; i++)
        if (RUNS[i % NRUNS].decays) /* all layouts of these runs are compared with the first */
            taken[i % NRUNS] |= taken[i];
}

static char *run_folder(const char *top, int run, int layout)
{
    return must_format("%s/run-%d-%d", top, run, layout);
}

static char *yaml_of(const char *top, int run)
{
    return must_format("%s/run-%d.yaml", top, run);
}

static void write_yaml(const char *top, int run)
{
    AUTO_FREE char *path = yaml_of(top, run);
    AUTO_FREE char *text = must_format(
        "model: {from: %s/%s}\n"
        "data: {train: %s, shuffle: false}\n"
        "train: {steps: %d, sequence: 32, micro_batch: 2, global_batch: 8, precision: bf16, device: cpu, threads: 1}\n"
        "optimizer: {name: %s, schedule: constant, state: bf16, master: bf16, %s}\n"
        "checkpoint: {every: 0, keep: 0, resume: never}\n"
        "evaluate: {every: 0}\n"
        "run: {tensorboard: false}\n",
        GOLDEN_MODELS, RUNS[run].model, GOLDEN_DATA, STEPS, RUNS[run].name, RUNS[run].keys);
    runs_write_text(path, text);
}

static int train_all(void **state)
{
    if (workfolder_setup(state))
        return -1;
    const char *top = *state;
    take_ring();
    for (int run = 0; run < NRUNS; run++)
        write_yaml(top, run);
    for (int ranks = 1; ranks <= MOST_RANKS; ranks++) {
        FILE *list = parity_open_list(top, "playlist");
        int count = 0;
        for (int i = 0; i < NLAYOUTS * NRUNS; i++) {
            AUTO_FREE char *yaml = yaml_of(top, i % NRUNS), *folder = run_folder(top, i % NRUNS, i / NRUNS);
            if (taken[i] && LAYOUTS[i / NRUNS].ranks == ranks && ++count)
                fprintf(list, "%s run.folder=%s %s\n", yaml, folder, LAYOUTS[i / NRUNS].keys);
        }
        fclose(list);
        if (count > 0)
            parity_play(top, "rank_playlist", ranks, "playlist", count);
    }
    return 0;
}

/* Prints what is not as it should be; 1 then, else 0. */
static int differs(const char *top, int run, int layout, int from, const char *section)
{
    char *folder = run_folder(top, run, layout), *other = run_folder(top, run, from), difference[256];
    int equal = runs_compare_section(difference, sizeof difference, folder, other, section);
    bool same = equal > 0 && !*difference;
    if (!same)
        printf("%s %s, %s: differs from %s in %s\n", RUNS[run].model, RUNS[run].name, LAYOUTS[layout].keys,
               LAYOUTS[from].keys, difference);
    free(folder);
    free(other);
    return !same;
}

TEST(no_bit_depends_on_recompute_schedule_or_sharding)
{
    int wrong = 0, compared = 0;
    for (int i = 0; i < NLAYOUTS * NRUNS; i++) {
        int layout = i / NRUNS, first = update_layouts_first(layout);
        if (!taken[i] || first == layout || !taken[first * NRUNS + i % NRUNS])
            continue;
        wrong += differs(*state, i % NRUNS, layout, first, NULL);
        compared++;
    }
    assert_true(4 * compared >= 7 * NRUNS);
    assert_int_equal(wrong, 0);
}

/* Ten roundings of every weight, with random numbers that only its name and place in it say. */
TEST(every_layout_rounds_a_weight_alike)
{
    int wrong = 0, compared = 0;
    for (int i = 0; i < NLAYOUTS * NRUNS; i++)
        if (taken[i] && RUNS[i % NRUNS].decays && i / NRUNS > 0 && ++compared)
            wrong += differs(*state, i % NRUNS, i / NRUNS, 0, "model");
    assert_true(compared >= NLAYOUTS - 1);
    assert_int_equal(wrong, 0);
    /* other random numbers round otherwise */
    char *yaml = yaml_of(*state, OTHER_SEED), *folder = run_folder(*state, OTHER_SEED, 0), difference[256];
    AUTO_FREE char *other = must_format("%s/other-seed", (const char *)*state);
    free(runs_train_well(60, 1, "%s run.folder=%s train.seed=2", yaml, other));
    runs_compare_section(difference, sizeof difference, folder, other, "model");
    assert_string_not_equal(difference, "");
    free(folder);
    free(yaml);
}

/* A step that is skipped, then saved: all states and weights are what the other layout wrote. */
TEST(checkpoints_pass_through_another_layout_unchanged)
{
    static const int moves[][2] = {{0, 2}, {2, 8}, {8, 11}, {11, 3}, {3, 0}}; /* rows of LAYOUTS */
    const char *top = *state;
    int wrong = 0;
    for (size_t k = 0; k < sizeof moves / sizeof *moves; k++) {
        int from = moves[k][0], to = moves[k][1], count = 0;
        FILE *list = parity_open_list(top, "moved");
        for (int run = 0; run < NRUNS; run++) {
            if (!taken[from * NRUNS + run])
                continue;
            count++;
            AUTO_FREE char *yaml = yaml_of(top, run), *folder = run_folder(top, run, from);
            fprintf(list, "@skipped %s run.folder=%s-to-%d checkpoint.resume=%s train.steps=%d %s\n", yaml, folder, to,
                    folder, STEPS + 1, LAYOUTS[to].keys);
        }
        fclose(list);
        assert_true(count > 0);
        parity_play(top, "rank_mutants", LAYOUTS[to].ranks, "moved", count);
        for (int run = 0; run < NRUNS; run++) {
            if (!taken[from * NRUNS + run])
                continue;
            char *folder = run_folder(top, run, from), *moved = must_format("%s-to-%d", folder, to), difference[256];
            runs_metrics m = runs_read_metrics(moved);
            assert_int_equal(m.count, 1);
            assert_true(m.step[0].skipped && m.step[0].step == STEPS + 1);
            int equal = runs_compare_checkpoints(difference, sizeof difference, moved, folder);
            if (*difference || equal == 0)
                printf("%s %s: %s\n", RUNS[run].model, RUNS[run].name, difference);
            wrong += *difference || equal == 0;
            free(moved);
            free(folder);
        }
    }
    assert_int_equal(wrong, 0);
}

TEST(runs_use_and_send_what_their_plans_say)
{
    for (int i = 0; i < NLAYOUTS * NRUNS; i++) {
        if (!taken[i])
            continue;
        AUTO_FREE char *folder = run_folder(*state, i % NRUNS, i / NRUNS);
        plans_verdict v = plans_compare(folder, LAYOUTS[i / NRUNS].ranks, STEPS);
        if (v.wrong)
            fail_msg("%s, %s: %s", folder, LAYOUTS[i / NRUNS].keys, v.what);
    }
}

TEST_MAIN(train_all, workfolder_teardown)
