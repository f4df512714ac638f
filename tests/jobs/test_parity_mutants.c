/* That the parity test can fail: the engine broken on purpose, in every way that tests/jobs/mutants.c lists, and in
 * those that tests/jobs/spoiled.c generates from programs. And parity over a hundred steps. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compile/compile.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/cover.h"
#include "tests/jobs/layouts.h"
#include "tests/jobs/mutants.h"
#include "tests/jobs/parity.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/spoiled.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

static char *mutant_folder(const char *top, int index)
{
    return must_format("%s/mutant-%d", top, index);
}

static int train_ones(void **state)
{
    return parity_setup(state, false);
}

/* Has the run in `folder` ended for an incident with these words? */
static bool says(const char *folder, const char *words)
{
    AUTO_FREE char *path = must_format("%s/incidents.jsonl", folder);
    json_t *incident = words ? runs_last_line(path) : NULL;
    const char *said = json_string_value(json_object_get(incident, "words"));
    bool has = said && strstr(said, words);
    json_decref(incident);
    return has;
}

TEST(every_mutant_is_noticed)
{
    if (!cover_has_check())
        return;
    const char *top = *state;
    FILE *list = parity_open_list(top, "mutants");
    for (int i = 0; i < mutants_count(); i++) {
        AUTO_FREE char *word = must_format("@%s ", mutants_at(i)->name);
        assert_int_equal(layouts_ranks(&mutants_at(i)->layout), 4);
        parity_put_line(list, top, word, &mutants_at(i)->layout, mutant_folder(top, i));
    }
    fclose(list);
    parity_play(top, "rank_mutants", 4, "mutants", mutants_count());
    int missed = 0;
    for (int i = 0; i < mutants_count(); i++) {
        const mutants_row *m = mutants_at(i);
        AUTO_FREE char *folder = mutant_folder(top, i), *one = parity_model_folder(top, m->layout.model);
        parity_outcome o = parity_compare(folder, one);
        runs_metrics done = runs_read_metrics(folder);
        printf("mutant %-26s gradient %.3g loss %.1e norm %.1e\n", m->name, o.gradient, o.loss, o.norm);
        /* Noticed by figures, not by failing to run, unless the engine itself says so; and the unchanged one passes. */
        assert_int_equal(done.count, m->refused ? 0 : LAYOUTS_STEPS);
        assert_int_equal(says(folder, m->refused), m->refused != NULL);
        missed += o.good != !strcmp(m->name, "none");
    }
    assert_int_equal(missed, 0);
}

/* ---- generated --------------------------------------------------------------------------------------------------- */

#define SLOTS   "parallel.expert_dispatch=slots parallel.expert="
#define EACH    "parallel.zero_gather=micro_batch parallel.zero_reduce=micro_batch"
#define DIVIDED "parallel.vocabulary=stages"

static const layouts_row spoilt[] = {
    /* clang-format off */
    {"gpt2",      2, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, "", 0},
    {"gpt2",      2, 1, 1, 2, 2, 0,           0, 3, EACH, 0},
    {"llama",     4, 1, 1, 1, 2, 0,           0, 1, "", 0},
    {"mistral",   1, 2, 1, 2, 2, 0,           0, 1, "", 0},
    {"documents", 2, 2, 1, 1, 2, 0,           0, 1, "parallel.context_balance=documents", 0},
    {"mixtral",   1, 1, 1, 4, 1, 0,           0, 0, "parallel.expert=2", 0},
    {"mixtral",   2, 1, 1, 2, 2, 0,           0, 1, SLOTS "2", 0},
    {"batch",     2, 2, 1, 1, 2, 0,           0, 1, "parallel.expert=2", 0},
    {"mtp",       2, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, DIVIDED, 0},
    {"latent",    2, 2, 1, 1, 2, 0,           0, 1, "parallel.context_gather=latent", 0},
    {"olmo2",     2, 1, 1, 2, 2, 0,           0, 2, "parallel.zero_reduce=micro_batch", 0},
    {"gpt-oss",   2, 2, 1, 1, 2, 0,           0, 1, "", 0},
    {"dropout",   2, 1, 1, 2, 2, 0,           0, 1, "", 0},
    /* clang-format on */
};
enum { SPOILT = sizeof spoilt / sizeof *spoilt, SPOILT_MOST = 160 };
/* Relative, L2: weights and the mean of gradients after the steps; the norm of step 1 and that of its dump. */
static const double WEIGHTS = 5e-5, STATES = 1e-4, DUMPED = 1e-7;

/* Lists what can be wrong in every rank's program of a layout. */
static void list_layout(spoiled_rows *rows, int layout)
{
    enum { WORDS = 32 };
    config c;
    AUTO_FREE char *yaml = layouts_yaml(layouts_model_of(spoilt[layout].model), "data"),
                   *keys = layouts_overrides(&spoilt[layout]);
    char *word[WORDS], *rest = keys;
    int words = 0;
    while (words < WORDS && (word[words] = strtok_r(rest, " ", &rest)))
        words++;
    assert_int_equal(config_parse(&c, "layout", yaml, strlen(yaml), words, word), STATUS_OK);
    for (int rank = 0; rank < 4; rank++) {
        RELEASED_BY(compile_free) compiled made = {0};
        compile_options o;
        grid g;
        assert_int_equal(config_make_grid(&g, &c, 4, rank), STATUS_OK);
        assert_int_equal(compile_options_from(&o, &c, &g, &cpu_backend, 1), STATUS_OK);
        assert_int_equal(compile(&made, &o), STATUS_OK);
        spoiled_list(rows, &made, layout);
    }
    config_free(&c);
}

static const char *const gates_of_runs[] = {"an end of the run",
                                            "gradients",
                                            "loss",
                                            "norm",
                                            "norm of the dumped gradients",
                                            "weights",
                                            "optimizer's state",
                                            "no figure: below fp32's resolution of the norm"};
enum { GATES = sizeof gates_of_runs / sizeof *gates_of_runs - 1, SAME_FIGURES = GATES, NO_GATE, OUTCOMES };

/* The norm of step 1, which is of the same gradients, is the sound run's, but for rounding to fp32. */
static bool has_norm_of(const runs_metrics *done, const char *unspoilt)
{
    const runs_metrics right = runs_read_metrics(unspoilt);
    return right.count > 0 && fabs(done->step[0].norm - right.step[0].norm) <= DUMPED * right.step[0].norm;
}

/* The first gate that notices a run: figures of steps and of files, then what the last step leaves. SAME_FIGURES: a
 * mistake in the norm that does not change it, where a weight's share is below fp32's resolution. */
static int gate_of(const char *folder, const char *one, const char *unspoilt, bool of_norm)
{
    char name[160];
    AUTO_FREE char *dumped = must_format("%s/gradients", folder);
    const runs_metrics done = runs_read_metrics(folder);
    if (done.count != LAYOUTS_STEPS)
        return 0;
    const parity_outcome o = parity_compare(folder, one);
    const double norm = runs_compare_gradients(dumped, dumped).norm;
    const bool noticed[GATES] = {false,
                                 o.gradient > 1,
                                 o.loss > PARITY_LOSS,
                                 !o.good,
                                 fabs(done.step[0].norm - norm) > DUMPED * norm,
                                 runs_weights_error(name, sizeof name, folder, one) > WEIGHTS,
                                 runs_section_error(name, sizeof name, folder, one, "moment1") > STATES};
    int gate = 0;
    while (gate < GATES && !noticed[gate])
        gate++;
    return gate < GATES ? gate : of_norm && has_norm_of(&done, unspoilt) ? SAME_FIGURES : NO_GATE;
}

/* Faults that were published, and the mutant that is each of them. */
static const struct {
    const char *number, *fault, *point;
} published[] = {
    {"Megatron-LM #5916", "not-in-norm", "update/experts/gate_up/norm/sum_squares"},
    {"Megatron-LM #673", "scaled", "update/loss/reduce/all_reduce"},
    {"Megatron-LM #7165", "averaged", "update/experts/down/reduce_gradient/all_reduce"},
    {"PyTorch #160285", "scaled", "update/experts/down/reduce_gradient/all_reduce"},
    {"KellerJordan/Muon #65", "not-updated", "update/attention/q_norm/update/adamw"},
};
enum { PUBLISHED = sizeof published / sizeof *published };

/* The published fault that a row is, or -1. */
static int number_of(const spoiled_row *row)
{
    for (int i = 0; i < PUBLISHED; i++)
        if (!strcmp(published[i].fault, row->fault) && !strcmp(published[i].point, row->point))
            return i;
    return -1;
}

/* A line for each kind of mistake, in the order of their first rows. gates[i]: of row i, -1: not in this ring. */
static void print_kinds(const spoiled_rows *rows, const int *gates)
{
    printf("proof:\nproof: | mistake in the program | mutants | noticed by |\nproof: | --- | --- | --- |\n");
    for (int i = 0; i < rows->count; i++) {
        int of[OUTCOMES] = {0}, all = 0, first = 0;
        while (strcmp(rows->row[first].kind, rows->row[i].kind) != 0)
            first++;
        for (int k = i; first == i && k < rows->count; k++)
            if (gates[k] >= 0 && !strcmp(rows->row[k].kind, rows->row[i].kind)) {
                of[gates[k]]++;
                all++;
            }
        if (all == 0)
            continue;
        printf("proof: | %s | %d |", rows->row[i].kind, all);
        for (int gate = 0; gate < NO_GATE; gate++)
            if (of[gate])
                printf(" %d %s", of[gate], gates_of_runs[gate]);
        printf(" |\n");
    }
}

TEST(every_generated_mutant_is_noticed)
{
    const char *top = *state;
    spoiled_rows rows = {0};
    for (int i = 0; i < SPOILT; i++)
        list_layout(&rows, i);
    AUTO_FREE const char **facts = must_calloc((unsigned long)rows.count, sizeof *facts);
    AUTO_FREE int *gates = must_calloc((unsigned long)rows.count, sizeof *gates);
    AUTO_FREE bool *takes = must_calloc((unsigned long)rows.count, sizeof *takes);
    AUTO_FREE bool *some = must_calloc((unsigned long)rows.count, sizeof *some);
    for (int i = 0; i < rows.count; i++)
        facts[i] = rows.row[i].facts;
    cover_choose(some, facts, rows.count, rows.count / SPOILT_MOST + 1);
    cover_take(takes, facts, rows.count, 24);
    FILE *list = parity_open_list(top, "spoilt");
    int count = 0, missed = 0, numbers = 0;
    for (int i = 0; i < SPOILT; i++)
        parity_put_line(list, top, "@none ", &spoilt[i], must_format("%s/sound-%d", top, i));
    for (int i = 0; i < rows.count; i++) {
        AUTO_FREE char *word = must_format("@%s:%s ", rows.row[i].fault, rows.row[i].point);
        const bool known = number_of(&rows.row[i]) >= 0;
        numbers += known;
        takes[i] = known || (takes[i] && some[i]);
        count += takes[i];
        if (takes[i])
            parity_put_line(list, top, word, &spoilt[rows.row[i].layout], must_format("%s/spoilt-%d", top, i));
    }
    fclose(list);
    parity_play(top, "rank_mutants", 4, "spoilt", SPOILT + count);
    for (int i = 0; i < SPOILT; i++) {
        AUTO_FREE char *folder = must_format("%s/sound-%d", top, i), *one = parity_model_folder(top, spoilt[i].model);
        int gate = gate_of(folder, one, folder, false);
        if (gate < GATES)
            fail_msg("%s is noticed without a fault: %s", spoilt[i].model, gates_of_runs[gate]);
    }
    for (int i = 0; i < rows.count; i++) {
        AUTO_FREE char *folder = must_format("%s/spoilt-%d", top, i),
                       *one = parity_model_folder(top, spoilt[rows.row[i].layout].model);
        AUTO_FREE char *unspoilt = must_format("%s/sound-%d", top, rows.row[i].layout);
        const bool of_norm = strstr(rows.row[i].fault, "-in-norm") != NULL;
        gates[i] = takes[i] ? gate_of(folder, one, unspoilt, of_norm) : -1;
        if (!takes[i])
            continue;
        missed += gates[i] == NO_GATE;
        AUTO_FREE char *title = layouts_title(&spoilt[rows.row[i].layout]);
        printf("%s: %s at %s (%s): %s\n", rows.row[i].kind, rows.row[i].fault, rows.row[i].point, title,
               gates[i] < NO_GATE ? gates_of_runs[gates[i]] : "SURVIVES");
    }
    print_kinds(&rows, gates);
    for (int i = 0; i < rows.count; i++)
        if (number_of(&rows.row[i]) >= 0 && gates[i] < GATES)
            printf("proof: | %s: %s at %s | 1 | %s |\n", published[number_of(&rows.row[i])].number, rows.row[i].fault,
                   rows.row[i].point, gates_of_runs[gates[i]]);
    printf("%d of %d generated mutants, %d survive\n", count, rows.count, missed);
    free(rows.row);
    assert_int_equal(numbers, PUBLISHED);
    assert_int_equal(missed, 0);
}

/* The demo's shape: four ranks against one, over a hundred steps of real training. */
TEST(a_hundred_steps_on_four_ranks_reach_the_loss_of_one)
{
    if (!cover_has_check())
        return;
    const char *top = *state;
    AUTO_FREE char *format = must_format(
        "%s/llama.yaml train.steps=100 optimizer.lr=2e-3 optimizer.schedule=cosine optimizer.warmup=10 ", top);
    AUTO_FREE char *one = must_format("%s run.folder=%s/long-one", format, top);
    AUTO_FREE char *four = must_format("%s run.folder=%s/long-four parallel.tensor=2 parallel.pipeline=2", format, top);
    launch_result a = runs_train(120, 1, one), b = runs_train(300, 4, four);
    assert_int_equal(a.status, 0);
    assert_int_equal(b.status, 0);
    char *folders[] = {must_format("%s/long-one", top), must_format("%s/long-four", top)};
    runs_metrics x = runs_read_metrics(folders[0]), y = runs_read_metrics(folders[1]);
    printf("100 steps, tensor 2 x pipeline 2: loss %.4f -> %.4f, largest difference %.1e (%.1f s and %.1f s)\n",
           x.step[0].loss, x.step[99].loss, runs_loss_error(&y, &x), a.seconds, b.seconds);
    assert_int_equal(x.count, 100);
    assert_true(x.step[99].loss < 0.8 * x.step[0].loss); /* it learns */
    assert_true(runs_loss_error(&y, &x) <= PARITY_LOSS);
    free(folders[0]);
    free(folders[1]);
    launch_free(&a);
    launch_free(&b);
}

TEST_MAIN(train_ones, workfolder_teardown)
