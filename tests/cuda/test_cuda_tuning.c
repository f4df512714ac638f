/* Choices made by timing are a part of the run: the device's, on the stand-ins of tests/cuda/standin, whose algorithms
 * leave different bits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/run/choices.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/cuda/cuda_runs.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

enum { ALGORITHMS = 4, GUESS = 0 };

static char *folder;

static int set_up(void **state)
{
    assert_int_equal(workfolder_setup(state), 0);
    folder = *state;
    AUTO_FREE char *data = workfolder_path(folder, "data");
    AUTO_FREE char *config = workfolder_path(folder, "gpt2.yaml");
    runs_write_data(data, 64, 2000, 1);
    runs_write_text(config,
                    "model: {architecture: gpt2, layers: 2, hidden_size: 32, heads: 4, ffn_size: 64, vocab_size: 64, "
                    "max_sequence: 12}\n"
                    "data: {train: data}\n"
                    "train: {steps: 4, sequence: 12, micro_batch: 1, global_batch: 4, precision: fp32, threads: 1}\n"
                    "optimizer: {lr: 1e-2, warmup: 1}\n"
                    "evaluate: {every: 0}\n"
                    "run: {tensorboard: false}\n");
    return 0;
}

static int tear_down(void **state)
{
    return workfolder_teardown(state);
}

/* ---- runs ------------------------------------------------------------------------------------------------------- */

/* phalanx on the stand-ins, into the folder `where`; the result is the caller's. */
static launch_result try_run(const char *where, int ranks, const char *environment, const char *keys)
{
    char *program = launch_beside("phalanx_standin"), *mpirun = ranks > 1 ? launch_mpirun(ranks) : must_strdup("");
    launch_result r = launch_run(
        120, "cd %s && exec env STANDIN_REPORT=1 %s %s %s train gpt2.yaml train.device=cuda run.folder=%s %s", folder,
        environment, mpirun, program, where, keys);
    free(program);
    free(mpirun);
    assert_false(r.timed_out);
    return r;
}

typedef struct outcome {
    runs_metrics metrics;
    choices table;
    long long used[2][ALGORITHMS]; /* launches of each algorithm by each rank */
    bool timed, reused, guessed;   /* as the header says */
    double tuning_seconds;
} outcome;

/* The caller's to choices_free(&out->table). */
static void run(outcome *out, const char *where, int ranks, const char *environment, const char *keys)
{
    launch_result r = try_run(where, ranks, environment, keys);
    if (r.status)
        fprintf(stderr, "%s, %s: status %d\n%s%s", environment, keys, r.status, r.out, r.err);
    assert_int_equal(r.status, 0);
    *out = (outcome){.timed = strstr(r.out, " timed in ") && strstr(r.out, "kept in tuning.json"),
                     .reused = strstr(r.out, " from tuning.json") != NULL,
                     .guessed = strstr(r.out, "as the library guesses") != NULL};
    for (int rank = 0; rank < ranks; rank++) {
        AUTO_FREE char *words = must_format("standin: rank %d: algorithms", rank);
        const char *line = strstr(r.err, words);
        long long *used = out->used[rank];
        assert_non_null(line);
        assert_int_equal(sscanf(line + strlen(words), "%lld %lld %lld %lld", &used[0], &used[1], &used[2], &used[3]),
                         4);
    }
    launch_free(&r);
    AUTO_FREE char *there = workfolder_path(folder, where), *path = workfolder_path(there, CHOICES_FILE);
    out->metrics = runs_read_metrics(there);
    assert_int_equal(choices_read(&out->table, path), STATUS_OK);
    json_t *summary = runs_read_summary(there);
    out->tuning_seconds = json_number_value(json_object_get(summary, "tuning_seconds"));
    assert_true(json_number_value(json_object_get(summary, "start_to_first_step_seconds")) > 0);
    json_decref(summary);
}

/* The number of the stand-in's algorithm that a choice names: the seventh of eight words. */
static int algorithm_of(const device_choice *c)
{
    unsigned number;
    assert_int_equal(strlen(c->value), 128);
    assert_int_equal(sscanf(c->value + 96, "%2x", &number), 1);
    return (int)number;
}

/* Do two runs leave the same weights and moments, to the last bit? */
static bool same_state(const char *one, const char *other)
{
    char difference[256], *a = workfolder_path(folder, one), *b = workfolder_path(folder, other);
    int equal = runs_compare_checkpoints(difference, sizeof difference, a, b);
    free(a);
    free(b);
    return equal > 0 && !*difference;
}

static int choices_of(const choices *table, int algorithm)
{
    int count = 0;
    for (int i = 0; i < table->count; i++)
        count += algorithm_of(&table->item[i]) == algorithm;
    return count;
}

static bool only(const long long used[ALGORITHMS], int algorithm)
{
    for (int i = 0; i < ALGORITHMS; i++)
        if ((used[i] > 0) != (i == algorithm))
            return false;
    return true;
}

/* ---- what it shows ----------------------------------------------------------------------------------------------- */

TEST(the_fastest_is_chosen_and_another_run_times_nothing)
{
    outcome first, again, anew;
    run(&first, "kept", 1, "STANDIN_FASTEST=2", "");
    assert_true(first.timed && !first.reused && first.tuning_seconds > 0);
    assert_true(first.table.count > 4);
    assert_int_equal(choices_of(&first.table, 2), first.table.count);
    for (int i = 0; i < first.table.count; i++)
        assert_true(first.table.item[i].microseconds == 1000);
    for (int i = 0; i < ALGORITHMS; i++)
        assert_true(first.used[0][i] > 0 && (i == 2 || first.used[0][i] < first.used[0][2]));

    /* now another would be the fastest */
    launch_result copied = launch_run(10, "cp -r %s/kept %s/first", folder, folder);
    assert_int_equal(copied.status, 0);
    launch_free(&copied);
    run(&again, "kept", 1, "STANDIN_FASTEST=3", "checkpoint.resume=never");
    assert_true(again.reused && !again.timed);
    assert_true(only(again.used[0], 2));
    assert_int_equal(again.table.count, first.table.count);
    assert_memory_equal(again.table.item, first.table.item, (size_t)first.table.count * sizeof *first.table.item);
    assert_true(runs_same_metrics(&again.metrics, &first.metrics) && same_state("kept", "first"));

    /* the mutant: a table that is lost is noticed in the bits */
    run(&anew, "lost", 1, "STANDIN_FASTEST=3", "");
    assert_int_equal(choices_of(&anew.table, 3), anew.table.count);
    assert_false(same_state("lost", "first"));
    choices_free(&first.table);
    choices_free(&again.table);
    choices_free(&anew.table);
}

TEST(resume_goes_on_with_the_same_algorithms)
{
    outcome whole, half, rest, elsewhere;
    AUTO_FREE char *from = must_format("optimizer.schedule=constant checkpoint.resume=%s/parts/checkpoints", folder);
    run(&whole, "whole", 1, "STANDIN_FASTEST=1", "optimizer.schedule=constant");
    run(&half, "parts", 1, "STANDIN_FASTEST=1", "optimizer.schedule=constant train.steps=2");
    run(&elsewhere, "elsewhere", 1, "STANDIN_FASTEST=2", from);
    run(&rest, "parts", 1, "STANDIN_FASTEST=3", "optimizer.schedule=constant");
    assert_true(rest.reused && elsewhere.reused);
    assert_true(only(rest.used[0], 1) && only(elsewhere.used[0], 1));
    assert_true(runs_same_metrics(&rest.metrics, &whole.metrics));
    assert_true(same_state("parts", "whole") && same_state("elsewhere", "whole"));
    choices_free(&whole.table);
    choices_free(&half.table);
    choices_free(&rest.table);
    choices_free(&elsewhere.table);
}

/* Rank 1's fastest algorithm is another than rank 0's. */
TEST(one_rank_times_for_all_that_want_the_same)
{
    outcome replicas, stages;
    run(&replicas, "replicas", 2, "STANDIN_FASTEST=1", "parallel.zero=1");
    assert_int_equal(choices_of(&replicas.table, 1), replicas.table.count);
    assert_true(replicas.used[0][0] > 0 && only(replicas.used[1], 1));
    choices_free(&replicas.table);

    /* what only the last stage wants (the logits), the last stage times */
    run(&stages, "stages", 2, "STANDIN_FASTEST=1", "parallel.pipeline=2");
    int of_first = choices_of(&stages.table, 1), of_last = choices_of(&stages.table, 2);
    assert_true(of_first > 0 && of_last > 0);
    assert_int_equal(of_first + of_last, stages.table.count);
    choices_free(&stages.table);
}

TEST(the_choices_of_another_gpu_or_library_are_not_used)
{
    outcome first, gpu, library, back;
    run(&first, "machines", 1, "STANDIN_FASTEST=1", "");
    run(&gpu, "machines", 1, "STANDIN_FASTEST=2 STANDIN_GPU='another GPU'", "checkpoint.resume=never");
    assert_true(gpu.timed);
    assert_int_equal(gpu.table.count, 2 * first.table.count);
    assert_int_equal(choices_of(&gpu.table, 2), first.table.count);
    run(&library, "machines", 1, "STANDIN_FASTEST=3 STANDIN_CUBLASLT=990000", "checkpoint.resume=never");
    assert_true(library.timed);
    assert_int_equal(library.table.count, 3 * first.table.count);
    run(&back, "machines", 1, "STANDIN_FASTEST=2", "checkpoint.resume=never");
    assert_true(back.reused && only(back.used[0], 1));
    assert_true(runs_same_metrics(&back.metrics, &first.metrics));
    choices_free(&first.table);
    choices_free(&gpu.table);
    choices_free(&library.table);
    choices_free(&back.table);
}

TEST(without_timing_the_library_guesses_and_that_is_kept)
{
    outcome guessed, later;
    run(&guessed, "guessed", 1, "STANDIN_FASTEST=2", "train.tune=false");
    assert_true(guessed.guessed && only(guessed.used[0], GUESS));
    assert_int_equal(choices_of(&guessed.table, GUESS), guessed.table.count);
    run(&later, "guessed", 1, "STANDIN_FASTEST=2", "checkpoint.resume=never");
    assert_true(later.reused && only(later.used[0], GUESS));
    choices_free(&guessed.table);
    choices_free(&later.table);
}

/* Where timing chooses what is guessed, everything is as if nothing had been timed. */
TEST(timing_leaves_no_trace)
{
    outcome guessed, timed;
    run(&guessed, "guess", 1, "", "train.tune=false");
    run(&timed, "timed", 1, "STANDIN_FASTEST=0", "");
    assert_true(timed.timed && !only(timed.used[0], GUESS));
    assert_true(runs_same_metrics(&timed.metrics, &guessed.metrics) && same_state("timed", "guess"));
    choices_free(&guessed.table);
    choices_free(&timed.table);
}

static char *entry(const char *key, const char *value)
{
    return must_format("{\"key\": \"%s\", \"value\": \"%s\", \"microseconds\": 1}", key, value);
}

TEST(a_spoilt_table_is_refused_in_one_line)
{
    outcome good;
    run(&good, "spoilt", 1, "", "");
    AUTO_FREE char *there = workfolder_path(folder, "spoilt"), *path = workfolder_path(there, CHOICES_FILE);
    int64_t bytes;
    AUTO_FREE char *text = (char *)workfolder_read(path, &bytes);
    AUTO_FREE char *one = entry(good.table.item[0].key, "5a5a"), *two = entry("k", good.table.item[0].value);
    struct {
        char *text;
        const char *says;
    } cases[] = {
        {must_strdup(""), "tuning.json, line "},
        {must_format("%.*s", (int)bytes / 2, text), "tuning.json, line "},
        {must_strdup("[1, 2]"), "holds no list of choices"},
        {must_format("{\"choices\": [%s, 7]}", two), "entry 2 of 2"},
        {must_format("{\"choices\": [%s, %s]}", two, two), "entry 2 of 2"},
        {must_strdup("{\"choices\": [{\"key\": \"k\", \"microseconds\": 1}]}"), "entry 1 of 1"},
        {must_format("{\"choices\": [%s]}", one), "this is no algorithm that cuBLASLt can use"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        runs_write_text(path, cases[i].text);
        launch_result r = try_run("spoilt", i % 2 ? 2 : 1, "", "checkpoint.resume=never");
        if (r.status != 1 || runs_error_lines(r.err) != 1 || !strstr(r.err, cases[i].says))
            fprintf(stderr, "case %zu: status %d\n%s%s", i, r.status, r.out, r.err);
        assert_int_equal(r.status, 1);
        assert_int_equal(runs_error_lines(r.err), 1);
        assert_non_null(strstr(r.err, cases[i].says));
        assert_non_null(strstr(r.err, "delete it"));
        launch_free(&r);
        free(cases[i].text);
    }
    choices_free(&good.table);
}

int main(void)
{
    return cuda_runs_group(set_up, tear_down);
}
