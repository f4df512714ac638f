/* That the parity test can fail: the engine broken on purpose, in every way that tests/jobs/mutants.c lists. And parity
 * over a hundred steps. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/layouts.h"
#include "tests/jobs/mutants.h"
#include "tests/jobs/parity.h"
#include "tests/jobs/runs.h"
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

/* The demo's shape: four ranks against one, over a hundred steps of real training. */
TEST(a_hundred_steps_on_four_ranks_reach_the_loss_of_one)
{
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
