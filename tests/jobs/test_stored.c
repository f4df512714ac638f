/* Training on data sets in an object store is the training on the same files, bit for bit: whatever the network and
 * the cache's disk do, for ranks that share a cache, after a kill and a resume. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/data/samples.h"
#include "engine/system/reading.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/engine/store/s3_server.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

enum { STEPS = 8, LARGE = 13000000 /* tokens of two bytes: more than three blocks */ };

static s3_server *server;

/* ---- helpers ----------------------------------------------------------------------------------------------------- */

/* TOP/NAME.EXTENSION as an object sets/NAME.EXTENSION */
static void upload(const char *top, const char *name, const char *extension)
{
    int64_t bytes;
    AUTO_FREE char *path = must_format("%s/%s.%s", top, name, extension),
                   *key = must_format("sets/%s.%s", name, extension);
    AUTO_FREE uint8_t *data = workfolder_read(path, &bytes);
    s3_server_put(server, key, data, bytes);
}

static void make_set(const char *top, const char *name, int64_t tokens, uint64_t seed)
{
    AUTO_FREE char *prefix = workfolder_path(top, name);
    runs_write_data(prefix, 131, tokens, seed);
    upload(top, name, "bin");
    upload(top, name, "idx");
}

static int begin(void **state)
{
    if (workfolder_setup(state))
        return -1;
    const char *top = *state;
    server = s3_server_start();
    make_set(top, "first", 9000, 1);
    make_set(top, "second", 6000, 2);
    make_set(top, "held", 4000, 3);
    AUTO_FREE char *path = workfolder_path(top, "run.yaml");
    char *text = must_format(
        "model: {architecture: gpt2, layers: 2, hidden_size: 48, heads: 4, vocab_size: 131, max_sequence: 32}\n"
        "data: {train: [{path: %s/first, weight: 5}, {path: %s/second, weight: 3}], validation: %s/held,\n"
        "       document_mask: true, cache: %s/cache}\n"
        "train: {steps: %d, sequence: 32, micro_batch: 2, batch_ramp: [[0, 8], [3, 12]], global_batch: 12,\n"
        "        precision: fp32, device: cpu, threads: 1, seed: 3}\n"
        "optimizer: {lr: 3e-3, schedule: constant, warmup: 3}\n"
        "checkpoint: {every: 0, keep: 0}\n"
        "evaluate: {every: 3, batches: 2}\n"
        "run: {tensorboard: false, hang_seconds: 60}\n",
        top, top, top, top, STEPS);
    runs_write_text(path, text);
    free(text);
    return 0;
}

static int end(void **state)
{
    s3_server_stop(server);
    return workfolder_teardown(state);
}

#define STORED                                                                                                         \
    "'data.train=[{path: s3://bucket/sets/first, weight: 5}, {path: s3://bucket/sets/second, weight: 3}]' "            \
    "data.validation=s3://bucket/sets/held "

/* A run into TOP/NAME: what it says on standard error, the caller's. */
static char *train(const char *top, const char *name, int ranks, int wanted, const char *keys)
{
    AUTO_FREE char *arguments = must_format("%s/run.yaml run.folder=%s/%s %s", top, top, name, keys);
    launch_result r = runs_train(120, ranks, arguments);
    if (r.status != wanted)
        fail_msg("%s ends with %d: %s%s", arguments, r.status, r.out, r.err);
    if (strstr(r.err, S3_SERVER_SECRET) || strstr(r.out, S3_SERVER_SECRET))
        fail_msg("a secret: %s%s", r.out, r.err);
    char *said = r.err;
    r.err = NULL;
    launch_free(&r);
    return said;
}

static void trains(const char *top, const char *name, int ranks, const char *keys)
{
    free(train(top, name, ranks, 0, keys));
}

static void assert_same(const char *top, const char *name, const char *other)
{
    char *a = workfolder_path(top, name), *b = workfolder_path(top, other), difference[256];
    runs_metrics of_a = runs_read_metrics(a), of_b = runs_read_metrics(b);
    assert_true(of_a.count > 0);
    if (!runs_same_metrics(&of_a, &of_b))
        fail_msg("the losses of %s are not those of %s", name, other);
    int equal = runs_compare_checkpoints(difference, sizeof difference, a, b);
    assert_string_equal(difference, "");
    assert_true(equal > 10);
    free(a);
    free(b);
}

/* What du says of the cache's blocks. */
static int64_t cache_bytes(const char *top)
{
    int64_t sum = 0;
    reading_names names = {0};
    AUTO_FREE char *folder = workfolder_path(top, "cache");
    assert_int_equal(reading_folder(&names, folder), STATUS_OK);
    for (int i = 0; i < names.count; i++) {
        struct stat facts;
        AUTO_FREE char *path = workfolder_path(folder, names.name[i]);
        if (stat(path, &facts) == 0 && strcmp(names.name[i], "lock") != 0)
            sum += facts.st_size;
    }
    reading_names_free(&names);
    return sum;
}

static void forget_cache(const char *top)
{
    launch_result r = launch_run(20, "rm -rf %s/cache", top);
    assert_int_equal(r.status, 0);
    launch_free(&r);
}

static void assert_says(const char *said, const char *words, int times)
{
    int n = 0;
    for (const char *at = said; (at = strstr(at, words)); at++)
        n++;
    if (n != times)
        fail_msg("\"%s\" is said %d times, not %d: %s", words, n, times, said);
}

static double summary_value(const char *top, const char *name, const char *key)
{
    AUTO_FREE char *folder = workfolder_path(top, name);
    json_t *summary = runs_read_summary(folder), *value = json_object_get(summary, key);
    double number = json_is_number(value) ? json_number_value(value) : -1;
    json_decref(summary);
    return number;
}

/* ---- the same as files ------------------------------------------------------------------------------------------- */

TEST_WITH(data_in_a_store_train_as_files_do_on_one_rank_and_on_two, begin, end)
{
    const char *top = *state;
    trains(top, "local", 1, "");
    trains(top, "stored", 1, STORED);
    assert_same(top, "stored", "local");
    assert_true(summary_value(top, "stored", "fetched_bytes") > 0);
    assert_true(summary_value(top, "local", "fetched_bytes") < 0);
    int64_t asked = s3_server_requests(server);
    trains(top, "local-2", 2, "parallel.data=2");
    trains(top, "stored-2", 2, STORED "parallel.data=2");
    assert_same(top, "stored-2", "local-2");
    assert_true(summary_value(top, "stored-2", "fetched_bytes") == 0); /* it is all in the cache */
    assert_true(s3_server_requests(server) - asked < 80);              /* they are looked at */
    char *mixed =
        must_format("'data.train=[{path: s3://bucket/sets/first, weight: 5}, {path: %s/second, weight: 3}]'", top);
    trains(top, "mixed", 1, mixed);
    assert_same(top, "mixed", "local");
    free(mixed);
}

/* Of both ranks' requests for .bin: the blocks of the sets. */
TEST_WITH(two_ranks_fetch_each_block_once, begin, end)
{
    const char *top = *state;
    static const char *const names[] = {"first", "second", "held"};
    int64_t sum = 0, bytes;
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2; k++) {
            char *key = must_format("sets/%s.%s", names[i], k ? "idx" : "bin");
            free(s3_server_get(server, key, &bytes));
            sum += bytes;
            free(key);
        }
    trains(top, "stored", 2, STORED "parallel.data=2");
    assert_int_equal((int64_t)summary_value(top, "stored", "fetched_bytes"), sum);
}

/* A bit that is another one is seen where a range is the whole object. */
TEST_WITH(faults_of_the_network_change_no_bit, begin, end)
{
    const char *top = *state;
    trains(top, "local", 2, "parallel.data=2");
    s3_server_faults(server, "GET:503 GET:cut=100 GET:damage HEAD:reset GET:cut=3000 GET:damage GET:garbage HEAD:500");
    trains(top, "stored", 2, STORED "parallel.data=2");
    assert_true(s3_server_faults_done(server));
    assert_same(top, "stored", "local");

    make_set(top, "large", LARGE, 5);
    AUTO_FREE char *local = must_format("data.train=%s/large parallel.data=2", top);
    trains(top, "local-large", 2, local);
    s3_server_faults(server, "GET:reset GET:cut=3000 GET:slow=200000 GET:503/1 GET:garbage GET:cut=200000 "
                             "GET:429 GET:cut=0 GET:hang GET:reset");
    trains(top, "large", 2, "data.train=s3://bucket/sets/large parallel.data=2 data.cache_size=20MiB");
    assert_true(s3_server_faults_done(server));
    assert_same(top, "large", "local-large");
}

/* ---- stops and restarts ------------------------------------------------------------------------------------------ */

TEST_WITH(a_run_that_is_killed_while_it_fetches_goes_on, begin, end)
{
    const char *top = *state;
    trains(top, "local", 2, "parallel.data=2");
    s3_server_be(server, (s3_server_traits){.rate = 30000});
    for (int i = 0; i < 3; i++) {
        char *arguments =
            must_format("%s/run.yaml run.folder=%s/stored checkpoint.every=2 parallel.data=2 " STORED, top, top);
        launch *l = runs_start(60, 2, arguments);
        AUTO_FREE char *folder = workfolder_path(top, "stored");
        int first = 0, second = 0;
        for (double until = clock_seconds() + 10; !(first && second) && clock_seconds() < until; clock_nap(0.01)) {
            first = runs_process(folder, 0);
            second = runs_process(folder, 1);
        }
        assert_true(first > 0 && second > 0);
        clock_nap(0.3 + 0.4 * i);
        kill(first, SIGKILL);
        kill(second, SIGKILL);
        launch_result r = launch_finish(l);
        assert_int_not_equal(r.status, 0);
        launch_free(&r);
        free(arguments);
    }
    s3_server_be(server, (s3_server_traits){0});
    trains(top, "stored", 2, STORED "parallel.data=2 checkpoint.every=2");
    assert_same(top, "stored", "local");
}

TEST_WITH(a_run_resumes_bit_for_bit_and_a_changed_object_is_refused, begin, end)
{
    const char *top = *state;
    trains(top, "local", 1, "");
    trains(top, "stored", 1, STORED "train.steps=3 checkpoint.every=3");
    trains(top, "stored", 1, STORED);
    assert_same(top, "stored", "local");
    make_set(top, "first", 9001, 9);
    char *said = train(top, "stored", 1, 2, STORED "train.steps=10");
    assert_says(said, "is not the data set that the checkpoint was made with", 1);
    assert_says(said, "data.allow_changed=true", 1);
    free(said);
    said = train(top, "stored", 1, 0, STORED "train.steps=10 data.allow_changed=true");
    assert_says(said, "going on (data.allow_changed)", 1);
    free(said);
}

/* ---- the cache --------------------------------------------------------------------------------------------------- */

TEST_WITH(a_cache_smaller_than_the_data_stays_within_its_size, begin, end)
{
    const char *top = *state;
    enum { MOST = 20 << 20 };
    make_set(top, "large", LARGE, 5);
    AUTO_FREE char *local = must_format("data.train=%s/large", top);
    static const char *const orders[] = {"data.shuffle=false train.batch_ramp=[] ", "data.shuffle=true "};
    for (int i = 0; i < 2; i++) {
        char *of_local = must_format("%s %s", local, orders[i]), *a = must_format("local%d", i);
        char *of_stored =
            must_format("data.train=s3://bucket/sets/large data.cache_size=20MiB parallel.data=2 %s", orders[i]);
        char *with_two = must_format("%s parallel.data=2", of_local), *b = must_format("stored%d", i);
        trains(top, a, 2, with_two);
        forget_cache(top);
        char *arguments = must_format("%s/run.yaml run.folder=%s/%s %s", top, top, b, of_stored);
        launch *l = runs_start(120, 2, arguments);
        char *cache = workfolder_path(top, "cache");
        while (!launch_ended(l)) {
            if (access(cache, F_OK) == 0)
                assert_true(cache_bytes(top) <= MOST);
            clock_nap(0.005);
        }
        launch_result r = launch_finish(l);
        if (r.status != 0)
            fail_msg("%s", r.err);
        assert_true(cache_bytes(top) > 1 << 20);
        launch_free(&r);
        assert_same(top, b, a);
        char *const made[] = {of_local, a, of_stored, with_two, b, arguments, cache};
        for (size_t k = 0; k < sizeof made / sizeof *made; k++)
            free(made[k]);
    }
}

TEST_WITH(a_damaged_cache_is_fetched_again_and_said, begin, end)
{
    const char *top = *state;
    trains(top, "local", 1, "");
    trains(top, "first-run", 1, STORED);
    reading_names names = {0};
    AUTO_FREE char *folder = workfolder_path(top, "cache");
    assert_int_equal(reading_folder(&names, folder), STATUS_OK);
    for (int i = 0; i < names.count; i++) {
        int64_t bytes;
        AUTO_FREE char *path = workfolder_path(folder, names.name[i]);
        AUTO_FREE uint8_t *data = workfolder_read(path, &bytes);
        data[bytes / 3] ^= 1;
        workfolder_write(path, data, bytes);
    }
    reading_names_free(&names);
    AUTO_FREE char *said = train(top, "stored", 1, 0, STORED);
    assert_says(said, "is damaged: the block is fetched again", 1);
    assert_same(top, "stored", "local");
}

TEST_WITH(a_full_disk_and_a_folder_that_cannot_be_made_are_done_without, begin, end)
{
    const char *top = *state;
    trains(top, "local", 1, "");
    AUTO_FREE char *spy = launch_beside("io_faults.so"), *binary = launch_beside("../phalanx");
    launch_result r =
        launch_run(60,
                   "env LD_PRELOAD=%s 'PHALANX_IO_FAULTS=%s/cache/* ENOSPC -1 write 4' %s train %s/run.yaml "
                   "run.folder=%s/full " STORED,
                   spy, top, binary, top, top);
    assert_int_equal(r.status, 0);
    assert_says(r.err, "No space left on device: blocks are read from the store into memory meanwhile", 1);
    launch_free(&r);
    assert_same(top, "full", "local");
    AUTO_FREE char *said = train(top, "none", 1, 0, STORED "data.cache=/proc/none/cache");
    assert_says(said, "blocks are read from the store into memory meanwhile", 1);
    assert_same(top, "none", "local");
}

/* ---- what is said ------------------------------------------------------------------------------------------------ */

TEST_WITH(waiting_for_data_is_a_metric_and_is_said_once, begin, end)
{
    const char *top = *state;
    make_set(top, "large", LARGE, 5);
    s3_server_be(server, (s3_server_traits){.rate = 8e6});
    char *said = train(top, "slow", 1, 0,
                       "data.train=s3://bucket/sets/large data.cache_size=12MiB train.steps=24 evaluate.every=0");
    s3_server_be(server, (s3_server_traits){0});
    assert_says(said, "training has waited for blocks of data in", 1);
    free(said);
    double stall = summary_value(top, "slow", "stall_seconds");
    assert_true(stall > 0.1);
    assert_true(summary_value(top, "slow", "cache_misses") > 0);
    AUTO_FREE char *path = must_format("%s/slow/metrics.jsonl", top);
    json_t *line = runs_last_line(path);
    assert_true(json_is_number(json_object_get(line, "stall_seconds")));
    assert_true(json_is_integer(json_object_get(line, "cache_misses")));
    json_decref(line);
}

TEST_WITH(what_cannot_be_read_ends_the_run_and_is_no_bad_sample, begin, end)
{
    const char *top = *state;
    static const struct {
        const char *keys, *words;
    } rows[] = {
        {"data.train=s3://bucket/sets/none", "there is no object s3://bucket/sets/none.idx"},
        {"data.train=s3://missing/sets/first", "there is no object s3://missing/sets/first.idx"},
        {"data.train=s3://bucket", "s3://bucket"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        AUTO_FREE char *name = must_format("refused%zu", i), *said = train(top, name, 1, 1, rows[i].keys);
        if (i < 1)
            assert_says(said, rows[i].words, 1);
        assert_int_equal(runs_error_lines(said), 1);
    }
    make_set(top, "large", LARGE, 5);
    s3_server_faults(server,
                     "GET:ok GET:403 GET:403 GET:403 GET:403 GET:403 GET:403 GET:403 GET:403 GET:403 GET:403 GET:403 "
                     "GET:403 GET:403 GET:403 GET:403 GET:403");
    AUTO_FREE char *said =
        train(top, "denied", 1, 1,
              "data.train=s3://bucket/sets/large data.skip_bad=true evaluate.every=0 data.cache_size=30MiB");
    s3_server_faults(server, "");
    assert_says(said, "AccessDenied", 1);
    assert_says(said, "left out", 0);
}

/* ---- beside the samples ------------------------------------------------------------------------------------------ */

TEST_WITH(samples_of_islands_and_documents_are_those_of_files, begin, end)
{
    enum { LENGTH = 16 };
    const char *top = *state;
    static int32_t ids[2][INPUT_COUNT][LENGTH];
    char url[] = "s3://bucket/sets/first", *local = workfolder_path(top, "first"),
         *folder = workfolder_path(top, "cache");
    config c = {.data = {.cache = folder, .cache_size = 1 << 30}};
    stored *from = stored_open(&c, 1);
    samples *s[2];
    for (int k = 0; k < 2; k++) {
        config_source item = {.path = k ? url : local, .weight = 1};
        const config_sources sources = {.count = 1, .item = &item};
        assert_int_equal(samples_open(&s[k], &sources, from, LENGTH, 131, true, 7), STATUS_OK);
        assert_int_equal(samples_are_remote(s[k]), k);
        samples_interleave(s[k], 1, 3);
        assert_int_equal(samples_expect(s[k], 0, 40), k);
    }
    for (int64_t i = 0; i < 60; i++) {
        for (int k = 0; k < 2; k++) {
            bool left_out;
            int32_t *into[INPUT_COUNT] = {[INPUT_tokens] = ids[k][INPUT_tokens],
                                          [INPUT_targets] = ids[k][INPUT_targets],
                                          [INPUT_positions] = ids[k][INPUT_positions],
                                          [INPUT_document_start] = ids[k][INPUT_document_start],
                                          [INPUT_second_targets] = ids[k][INPUT_second_targets]};
            assert_int_equal(samples_read(s[k], &left_out, into, i), STATUS_OK);
        }
        assert_memory_equal(ids[0], ids[1], sizeof ids[0]);
    }
    samples_close(s[0]);
    samples_close(s[1]);
    stored_close(from);
    free(local);
    free(folder);
}

TEST_WITH(the_tokenizer_beside_a_prefix_is_found_and_inspect_shows_the_set, begin, end)
{
    const char *top = *state;
    AUTO_FREE char *binary = launch_beside("../phalanx"), *text = workfolder_path(top, "text.txt");
    char line[] = "A line of a text that is long enough for a few samples of bytes. ";
    AUTO_FREE char *long_text = must_calloc(400, sizeof line);
    for (int i = 0; i < 300; i++)
        strcat(long_text, line);
    runs_write_text(text, long_text);
    launch_result r = launch_run(30, "cd %s && %s tokenize --tokenizer bytes --output texts text.txt", top, binary);
    assert_int_equal(r.status, 0);
    launch_free(&r);
    upload(top, "texts", "bin");
    upload(top, "texts", "idx");
    upload(top, "texts", "tokenizer.bytes");
    upload(top, "texts", "facts");
    launch_result local = launch_run(30, "cd %s && %s inspect --verify texts", top, binary);
    launch_result afar = launch_run(30, "cd %s && %s inspect --verify s3://bucket/sets/texts", top, binary);
    if (afar.status != 0)
        fail_msg("%s", afar.err);
    assert_string_equal(strchr(local.out, '\n'), strchr(afar.out, '\n'));
    assert_true(strstr(afar.out, "A line of a") != NULL);
    assert_string_equal(afar.err, "");
    launch_free(&local);
    launch_free(&afar);
    AUTO_FREE char *path = workfolder_path(top, "small.yaml");
    runs_write_text(path,
                    "model: {layers: 1, hidden_size: 16, heads: 2, ffn_size: 32}\n"
                    "data: {train: s3://bucket/sets/texts}\n"
                    "train: {steps: 2, sequence: 32, micro_batch: 2, global_batch: 2, device: cpu, threads: 1}\n");
    r = launch_run(60,
                   "cd %s && %s train small.yaml data.cache=cache run.folder=small && "
                   "ls small/checkpoints/step-00000002/tokenizer.bytes && "
                   "grep '\"document_begin\":\"end\"' small/checkpoints/step-00000002/manifest.json",
                   top, binary);
    if (r.status != 0)
        fail_msg("%s", r.err);
    launch_free(&r);
}

TEST_MAIN(NULL, NULL)
