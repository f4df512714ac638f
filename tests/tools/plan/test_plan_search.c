/* `phalanx plan --search` as a user meets it: a table, JSON, a configuration that plans as promised, and by how much
 * nothing fits. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "memory/scope.h"
#include "tests/jobs/launch.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

static const char *const text =
    "model: {architecture: llama, layers: 4, hidden_size: 1024, heads: 2, kv_heads: 2, "
    "ffn_size: 4096, vocab_size: 8192, max_sequence: 1024}\n"
    "data: {train: none}\n"
    "train: {steps: 10, sequence: 1024, micro_batch: 1, global_batch: 4, precision: bf16}\n";

static launch_result search(const char *folder, const char *options)
{
    AUTO_FREE char *path = workfolder_path(folder, "searched.yaml"), *phalanx = launch_beside("../phalanx");
    runs_write_text(path, text);
    launch_result r = launch_run(120, "OMP_NUM_THREADS=1 %s plan %s --search --ranks 2 %s", phalanx, path, options);
    return r;
}

static json_t *json_of(launch_result *r)
{
    if (r->status)
        fail_msg("status %d: %s", r->status, r->err);
    json_t *root = json_loads(r->out, 0, NULL);
    assert_non_null(root);
    launch_free(r);
    return root;
}

TEST_WITH(what_is_written_takes_the_time_that_was_promised, workfolder_setup, workfolder_teardown)
{
    AUTO_FREE char *best = workfolder_path(*state, "best.yaml"), *phalanx = launch_beside("../phalanx");
    char options[4096];
    snprintf(options, sizeof options, "--device h200 --json --write %s", best);
    launch_result r = search(*state, options);
    json_t *found = json_of(&r), *first = json_array_get(json_object_get(found, "results"), 0);
    r = launch_run(60, "%s plan %s --device h200 --json", phalanx, best);
    json_t *planned = json_of(&r), *layout = json_object_get(planned, "layout");
    double promised = json_number_value(json_object_get(first, "step_seconds"));
    assert_true(promised > 0);
    assert_true(fabs(json_number_value(json_object_get(planned, "step_seconds")) - promised) <= 1e-9 * promised);
    static const char *const same[] = {"tensor", "pipeline", "data", "zero"};
    for (unsigned i = 0; i < sizeof same / sizeof *same; i++)
        assert_int_equal(json_integer_value(json_object_get(first, same[i])),
                         json_integer_value(json_object_get(layout, same[i])));
    json_decref(found);
    json_decref(planned);
}

/* What the codes mean stands above the table; without a file to write the end says how to go on. */
TEST_WITH(the_table_is_ranked_and_explained, workfolder_setup, workfolder_teardown)
{
    launch_result r = search(*state, "");
    assert_int_equal(r.status, 0);
    const char *first = strstr(r.out, "  1 "), *codes = strstr(r.out, "xN: virtual stages");
    assert_non_null(first);
    assert_non_null(codes);
    assert_true(codes < first);
    assert_non_null(strstr(r.out, "  free "));
    assert_non_null(strstr(r.out, "GPU hours"));
    assert_non_null(strstr(r.out, "\nnot measured on a GPU: "));
    assert_non_null(strstr(r.out, "--write FILE"));
    launch_free(&r);
}

/* A search that takes seconds says what it is at, before the first layout is compiled too. */
TEST_WITH(what_takes_more_than_a_second_says_so, workfolder_setup, workfolder_teardown)
{
    static const char *const large =
        "model: {preset: llama-7b}\ndata: {train: none}\n"
        "train: {steps: 10, sequence: 4096, micro_batch: 1, global_batch: 64, precision: bf16}\n";
    AUTO_FREE char *path = workfolder_path(*state, "large.yaml"), *phalanx = launch_beside("../phalanx");
    runs_write_text(path, large);
    launch *l = launch_start(120, "exec %s plan %s --search --ranks 8 2>&1", phalanx, path);
    assert_true(launch_expect(l, "phalanx: estimating all layouts, 1.", 60));
    kill(launch_pid(l), SIGTERM);
    launch_result r = launch_finish(l);
    launch_free(&r);
}

/* A twentieth of the device is left free, and the column says how much; with --memory it is what the user says. */
TEST_WITH(room_is_left_unless_the_user_says_how_much, workfolder_setup, workfolder_teardown)
{
    launch_result r = search(*state, "--json");
    json_t *found = json_of(&r), *row;
    size_t i;
    json_array_foreach(json_object_get(found, "results"), i, row)
    {
        double left = json_number_value(json_object_get(row, "free_bytes")),
               needs = json_number_value(json_object_get(row, "memory_bytes"));
        assert_true(left >= (left + needs) / 20);
        assert_true(left + needs > 78 * 1073741824.0);
    }
    assert_true(i > 0);
    json_decref(found);
    r = search(*state, "--json --memory 20GiB");
    found = json_of(&r);
    row = json_array_get(json_object_get(found, "results"), 0);
    assert_true(json_number_value(json_object_get(row, "free_bytes")) +
                    json_number_value(json_object_get(row, "memory_bytes")) ==
                20 * 1073741824.0);
    json_decref(found);
}

/* The user's own file, comments and all, with the keys of the layout and those of the command line; nothing else. */
TEST_WITH(the_users_own_file_is_written, workfolder_setup, workfolder_teardown)
{
    static const char *const own = "# mine\n"
                                   "model: {architecture: llama, layers: 4, hidden_size: 1024, heads: 2, kv_heads: 2,\n"
                                   "        ffn_size: 4096, vocab_size: 8192, max_sequence: 1024} # small\n"
                                   "data: {train: none}\n"
                                   "train:\n"
                                   "  steps: 10 # few\n"
                                   "  sequence: 1024\n"
                                   "  micro_batch: 1\n"
                                   "  global_batch: 4\n"
                                   "  precision: bf16\n";
    AUTO_FREE char *path = workfolder_path(*state, "own.yaml"), *best = workfolder_path(*state, "best.yaml"),
                   *phalanx = launch_beside("../phalanx");
    runs_write_text(path, own);
    launch_result r = launch_run(120, "%s plan %s --search --ranks 2 train.steps=500 --write %s", phalanx, path, best);
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "phalanx train"));
    assert_non_null(strstr(r.out, "sbatch --nodes=1 --ntasks-per-node=2"));
    launch_free(&r);
    int64_t bytes;
    AUTO_FREE char *text_written = (char *)workfolder_read(best, &bytes);
    assert_non_null(strstr(text_written,
                           "# mine\nmodel: {architecture: llama, layers: 4, hidden_size: 1024, heads: 2, "
                           "kv_heads: 2,\n        ffn_size: 4096, vocab_size: 8192, max_sequence: 1024} # "
                           "small\ndata: {train: none}\ntrain:\n  steps: 500 # few\n"));
    assert_true(bytes < (int64_t)strlen(own) + 300);
}

TEST_WITH(where_nothing_fits_it_says_by_how_much, workfolder_setup, workfolder_teardown)
{
    launch_result r = search(*state, "--memory 1GiB");
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, "nothing fits"));
    assert_non_null(strstr(r.err, "more than 1.00 GiB"));
    launch_free(&r);
    r = search(*state, "--memory 1furlong");
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, "80GiB"));
    launch_free(&r);
}

TEST_WITH(a_file_that_cannot_be_written_is_known_before_the_search, workfolder_setup, workfolder_teardown)
{
    launch_result r = search(*state, "--write /no/such/folder/best.yaml");
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "/no/such/folder/best.yaml"));
    assert_null(strstr(r.err, "played"));
    launch_free(&r);
}

/* Options that the other way of planning does not know are refused, not passed over. */
TEST_WITH(options_that_do_nothing_are_refused, workfolder_setup, workfolder_teardown)
{
    static const struct {
        const char *options, *said;
    } cases[] = {{"--memory 80GiB", "--memory is an option of --search"},
                 {"--write best.yaml", "--write is an option of --search"},
                 {"--search --listing", "--listing is of one layout"},
                 {"--search --rank 0", "--rank is of one layout"},
                 {"--json --schedule", "--schedule is text"},
                 {"--json --listing", "--listing is text"},
                 {"--search --svg step.svg", "--svg is of one layout"},
                 {"--listing --load balanced", "which no load changes"}};
    AUTO_FREE char *path = workfolder_path(*state, "planned.yaml"), *phalanx = launch_beside("../phalanx");
    runs_write_text(path, text);
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        launch_result r = launch_run(60, "%s plan %s --ranks 2 %s", phalanx, path, cases[i].options);
        assert_int_equal(r.status, 2);
        assert_non_null(strstr(r.err, cases[i].said));
        launch_free(&r);
    }
}

/* Experts on two ranks that divide them: how tokens choose is said and priced, of one layout and of a search. */
TEST_WITH(a_load_is_said_and_priced, workfolder_setup, workfolder_teardown)
{
    static const char *const sparse =
        "model: {architecture: mixtral, layers: 4, hidden_size: 256, heads: 2, kv_heads: 2, experts: 8, "
        "experts_per_token: 2, expert_ffn_size: 256, expert_capacity: 1.25, expert_spill: 0, vocab_size: 512, "
        "max_sequence: 256}\n"
        "data: {train: none}\n"
        "train: {steps: 10, sequence: 256, micro_batch: 1, global_batch: 4, precision: bf16}\n";
    AUTO_FREE char *path = workfolder_path(*state, "sparse.yaml"), *phalanx = launch_beside("../phalanx");
    runs_write_text(path, sparse);
    double seconds[2], lacks[2];
    for (int skewed = 0; skewed < 2; skewed++) {
        launch_result r = launch_run(60, "%s plan %s --ranks 2 parallel.expert=2 --json --load %s", phalanx, path,
                                     skewed ? "lognormal:1" : "balanced");
        json_t *planned = json_of(&r), *load = json_object_get(planned, "load");
        assert_string_equal(json_string_value(json_object_get(load, "kind")), skewed ? "lognormal" : "balanced");
        seconds[skewed] = json_number_value(json_object_get(load, "seconds"));
        json_t *first = json_array_get(json_object_get(load, "rungs"), 0);
        lacks[skewed] = json_number_value(json_object_get(first, "lacks_room"));
        json_decref(planned);
    }
    assert_true(lacks[1] > lacks[0] + 0.1);
    assert_true(seconds[1] > seconds[0]);
    launch_result r = launch_run(60, "%s plan %s --ranks 2 parallel.expert=2 --load lognormal:1", phalanx, path);
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "log-normal shares of experts, sigma 1"));
    assert_non_null(strstr(r.out, "are played again"));
    launch_free(&r);
    r = launch_run(120, "OMP_NUM_THREADS=1 %s plan %s --search --ranks 2 --json --load lognormal:1", phalanx, path);
    json_t *found = json_of(&r), *first = json_array_get(json_object_get(found, "results"), 0);
    assert_non_null(json_object_get(first, "replays"));
    json_decref(found);
    r = launch_run(60, "%s plan %s --ranks 2 --load /no/such/loads.jsonl", phalanx, path);
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, "/no/such/loads.jsonl"));
    launch_free(&r);
}

TEST_MAIN(NULL, NULL)
