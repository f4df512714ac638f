/* Which gradients are reduced together changes no bit of a run, and what is sent is what the plan says. */
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/layouts.h"
#include "tests/jobs/parity.h"
#include "tests/jobs/plans.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

typedef struct layout {
    const char *model;
    int ranks;
    const char *keys;
} layout;

static const layout layouts[] = {
    {"tied", 4, "parallel.pipeline=2 parallel.zero=0"},
    {"llama", 8, "parallel.tensor=4 parallel.zero=1"},
    {"qwen3", 4, "parallel.tensor=2 parallel.zero=3"},
    {"llama-bf16", 4, "parallel.tensor=2 parallel.zero=2 parallel.zero_reduce=micro_batch"},
};

static const char *const sizes[] = {"1", "20KiB", "1GiB"};

enum { LAYOUTS = sizeof layouts / sizeof *layouts, SIZES = sizeof sizes / sizeof *sizes, STEPS = 4, MOST_RANKS = 8 };

static char *run_folder(const char *top, int index, int size)
{
    return must_format("%s/%s-%s", top, layouts[index].model, sizes[size]);
}

static void put_runs(FILE *list, const char *top, int index)
{
    const layouts_model *m = layouts_model_of(layouts[index].model);
    AUTO_FREE char *data = workfolder_path(top, "data"), *yaml = layouts_yaml(m, data),
                   *file = must_format("%s/%s.yaml", top, m->name);
    runs_write_text(file, yaml);
    for (int k = 0; k < SIZES; k++) {
        AUTO_FREE char *folder = run_folder(top, index, k);
        fprintf(list, "%s %s %s train.steps=%d checkpoint.every=%d parallel.bucket=%s run.folder=%s\n", file,
                layouts[index].keys, m->extra, STEPS, STEPS, sizes[k], folder);
    }
}

/* One job for all runs on one number of ranks. */
static int train_all(void **state)
{
    if (workfolder_setup(state))
        return -1;
    char *data = workfolder_path(*state, "data");
    runs_write_data(data, LAYOUTS_VOCABULARY, 20000, 1);
    free(data);
    for (int ranks = 2; ranks <= MOST_RANKS; ranks++) {
        FILE *list = parity_open_list(*state, "playlist");
        int count = 0;
        for (int i = 0; i < LAYOUTS; i++)
            if (layouts[i].ranks == ranks && ++count)
                put_runs(list, *state, i);
        fclose(list);
        if (count > 0)
            parity_play(*state, "rank_playlist", ranks, "playlist", count * SIZES);
    }
    return 0;
}

static int64_t messages(const char *folder)
{
    json_t *summary = runs_read_summary(folder), *rank = json_array_get(json_object_get(summary, "ranks"), 0);
    int64_t n = json_integer_value(json_object_get(json_object_get(rank, "messages_sent"), "data"));
    json_decref(summary);
    return n;
}

TEST(no_bit_depends_on_the_buckets)
{
    for (int i = 0; i < LAYOUTS; i++) {
        const layout *l = &layouts[i];
        int64_t sent[3];
        char *folders[3], difference[512];
        for (int k = 0; k < 3; k++) {
            folders[k] = run_folder(*state, i, k);
            sent[k] = messages(folders[k]);
            plans_verdict v = plans_compare(folders[k], l->ranks, STEPS);
            if (v.wrong)
                fail_msg("%s in buckets of %s: %s", l->model, sizes[k], v.what);
        }
        runs_metrics first = runs_read_metrics(folders[0]);
        assert_int_equal(first.count, STEPS);
        for (int k = 1; k < 3; k++) {
            runs_metrics other = runs_read_metrics(folders[k]);
            if (!runs_same_metrics(&first, &other))
                fail_msg("%s: losses or norms differ between buckets of %s and %s", l->model, sizes[0], sizes[k]);
            assert_true(runs_compare_checkpoints(difference, sizeof difference, folders[0], folders[k]) > 10);
            assert_string_equal(difference, "");
        }
        bool each = strstr(l->keys, "micro_batch") != NULL; /* then a gradient goes as soon as it is there */
        assert_true(each ? sent[0] == sent[2] : sent[0] > sent[1] && sent[1] > sent[2]);
        for (int k = 0; k < 3; k++)
            free(folders[k]);
    }
}

TEST_MAIN(train_all, workfolder_teardown)
