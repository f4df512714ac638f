/* Folders of a store in place of folders on disk: convert, inspect, generate, eval, plan and model.from make of them
 * what they make of the same files; what is here already is not fetched again, what has changed is; no credential is in
 * anything that a command writes, says or shows. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "tests/engine/store/s3_server.h"
#include "tests/jobs/launch.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

static s3_server *server;

static launch_result run(const char *folder, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* "phalanx ..." within the folder, on one core. */
static launch_result run(const char *folder, const char *format, ...)
{
    char arguments[2000], *program = launch_beside("../phalanx"), *whole = realpath(program, NULL);
    va_list list;
    va_start(list, format);
    vsnprintf(arguments, sizeof arguments, format, list);
    va_end(list);
    assert_non_null(whole);
    launch_result r =
        launch_run(120, "cd %s && export OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES= && %s %s", folder, whole, arguments);
    const char *const secrets[] = {S3_SERVER_ID, S3_SERVER_SECRET, S3_SERVER_TOKEN};
    for (int i = 0; i < 3; i++)
        if (strstr(r.out, secrets[i]) || strstr(r.err, secrets[i]))
            fail_msg("phalanx %s: a credential: %s%s", arguments, r.out, r.err);
    free(whole);
    free(program);
    return r;
}

static char *out_of(launch_result r)
{
    if (r.status)
        fail_msg("status %d: %s", r.status, r.err);
    char *out = must_strdup(r.out);
    launch_free(&r);
    return out;
}

static void put_file(const char *folder, const char *name, const char *prefix)
{
    AUTO_FREE char *path = workfolder_path(folder, name), *key = must_format("%s/%s", prefix, name);
    int64_t bytes;
    AUTO_FREE uint8_t *data = workfolder_read(path, &bytes);
    s3_server_put(server, key, data, bytes);
}

static void put_folder(const char *folder, const char *prefix)
{
    DIR *list = opendir(folder);
    assert_non_null(list);
    for (struct dirent *entry; (entry = readdir(list));)
        if (entry->d_name[0] != '.' && entry->d_type == DT_REG)
            put_file(folder, entry->d_name, prefix);
    closedir(list);
}

#define MODEL                                                                                                          \
    "model: {architecture: llama, layers: 2, hidden_size: 32, heads: 4, kv_heads: 2, ffn_size: 64, max_sequence: "     \
    "64}\n"
#define REST                                                                                                           \
    "data: {train: corpus}\ntrain: {steps: 4, sequence: 32, micro_batch: 2, global_batch: 2, precision: fp32, "        \
    "device: "                                                                                                         \
    "cpu}\noptimizer: {warmup: 1}\ncheckpoint: {every: 2}\n"

/* A run, its weights as Hugging Face has them, and both in the store. */
static int begin_all(void **state)
{
    if (workfolder_setup(state))
        return -1;
    server = s3_server_start();
    const char *w = *state;
    char *cache = must_format("%s/cache", w), *text = must_calloc(1, 20000), *path = workfolder_path(w, "text.txt");
    setenv("XDG_CACHE_HOME", cache, 1);
    for (int i = 0; i < 400; i++)
        sprintf(text + strlen(text), "the number %d is a number\n", i * 37 % 101);
    workfolder_write(path, text, (int64_t)strlen(text));
    free(path);
    path = workfolder_path(w, "run.yaml");
    workfolder_write(path, MODEL REST "run: {folder: run}\n", (int64_t)strlen(MODEL REST "run: {folder: run}\n"));
    free(path);
    path = workfolder_path(w, "from.yaml");
    workfolder_write(path, REST, (int64_t)strlen(REST));
    free(out_of(run(w, "tokenize --tokenizer bytes --output corpus text.txt")));
    free(out_of(run(w, "train run.yaml")));
    free(out_of(run(w, "convert --from run --to hf")));
    free(path);
    path = workfolder_path(w, "hf");
    put_folder(path, "models/hf");
    s3_server_put(server, "models/hf/pytorch_model.bin", "not asked for", 13);
    s3_server_put(server, "models/hf/onnx/model.safetensors", "not asked for", 13);
    s3_server_put(server, "models/hf/.gitattributes", "x", 1);
    free(path);
    path = workfolder_path(w, "run/checkpoints/step-00000004");
    put_folder(path, "runs/a/checkpoints/step-00000004");
    s3_server_put(server, "runs/a/checkpoints/latest", "step-00000004\n", 14);
    s3_server_put(server, "runs/a/checkpoints/step-00000002/manifest.json", "{}", 2);
    s3_server_put(server, "runs/a/metrics.jsonl", "{}\n", 3);
    free(path);
    free(text);
    free(cache);
    return 0;
}

static int end_all(void **state)
{
    s3_server_stop(server);
    return workfolder_teardown(state);
}

/* Standard output of a command with a folder of a store, and of the same with one on disk. */
static void assert_same_output(const char *w, const char *const folder[2], const char *before, const char *behind)
{
    char *out[2];
    for (int i = 0; i < 2; i++) {
        out[i] = out_of(run(w, "%s %s %s", before, folder[i], behind));
        char *speed = strstr(out[i], " tokens, "); /* what follows is how fast it was */
        if (speed)
            *speed = 0;
    }
    assert_string_equal(out[0], out[1]);
    free(out[0]);
    free(out[1]);
}

TEST(commands_take_folders_of_a_store)
{
    const char *w = *state;
    static const char *const pairs[][2] = {{"s3://bucket/models/hf", "hf"},
                                           {"s3://bucket/models/hf/", "hf"},
                                           {"s3://bucket/runs/a", "run"},
                                           {"s3://bucket/runs/a/checkpoints", "run"},
                                           {"s3://bucket/runs/a/checkpoints/step-00000004", "run"}};
    for (int i = 0; i < 5; i++) {
        assert_same_output(w, pairs[i],
                           "generate --tokenizer bytes --prompt 'the n' --tokens 8 --temperature 0 "
                           "--checkpoint",
                           "");
        assert_same_output(w, pairs[i], "eval --data corpus --checkpoint", "--limit 8");
    }
    free(out_of(run(w, "convert --from s3://bucket/models/hf --format huggingface --to again")));
    launch_result r = launch_run(10, "cd %s && cmp hf/model.safetensors again/model.safetensors", w);
    assert_int_equal(r.status, 0);
    launch_free(&r);
    r = launch_run(10,
                   "cd %s && find cache -name '*.bin' -o -name '.git*' -o -name onnx -o -name '*.part' -o -name "
                   "metrics.jsonl -o -name 'step-00000002*'",
                   w);
    assert_string_equal(r.out, ""); /* what is not needed is not fetched */
    launch_free(&r);
}

/* eval's and plan's data sets, a text and a tokenizer. */
TEST(commands_take_data_of_a_store)
{
    const char *w = *state;
    static const char *const sets[2] = {"s3://bucket/sets/corpus", "corpus"};
    static const char *const texts[2] = {"s3://bucket/sets/text.txt", "text.txt"};
    put_file(w, "corpus.bin", "sets");
    put_file(w, "corpus.idx", "sets");
    put_file(w, "corpus.tokenizer.bytes", "sets");
    put_file(w, "text.txt", "sets");
    s3_server_faults(server, "HEAD:503 GET:reset GET:cut=100");
    assert_same_output(w, sets, "eval --checkpoint hf --data", "");
    assert_true(s3_server_faults_done(server));
    assert_same_output(w, sets, "eval --checkpoint run --limit 9 --data", "");
    assert_same_output(w, texts, "eval --checkpoint hf --tokenizer s3://bucket/sets/corpus.tokenizer.bytes --text", "");
    assert_same_output(w, sets, "plan run.yaml parallel.context=2 --ranks 2 --json --data", "");
    launch_result r = run(w, "eval --checkpoint hf --data s3://bucket/sets/none");
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "s3://bucket/sets/none.idx"));
    launch_free(&r);
}

TEST(training_begins_with_weights_of_a_store)
{
    const char *w = *state;
    AUTO_FREE char *a = out_of(run(w, "train from.yaml model.from=s3://bucket/models/hf run.folder=from-store"));
    AUTO_FREE char *b = out_of(run(w, "train from.yaml model.from=hf run.folder=from-disk"));
    launch_result r = launch_run(10,
                                 "cd %s && grep 's3://bucket/models/hf' from-store/config.yaml && cut -d, -f1-3 "
                                 "from-store/metrics.jsonl >a && cut -d, -f1-3 from-disk/metrics.jsonl >b && cmp a b",
                                 w);
    if (r.status)
        fail_msg("%s%s", r.out, r.err);
    launch_free(&r);
}

/* How many bytes of objects the server has sent is not seen here; requests are. */
TEST(what_is_here_is_not_fetched_again)
{
    const char *w = *state;
    launch_result r = run(w, "inspect --verify s3://bucket/models/hf");
    assert_int_equal(r.status, 0);
    launch_free(&r);
    int64_t before = s3_server_requests(server);
    r = run(w, "inspect --verify s3://bucket/models/hf");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.err, "kept in"));
    launch_free(&r);
    assert_int_equal(s3_server_requests(server), before + 1); /* the list */
    put_file(w, "text.txt", "models/hf");                     /* a file more */
    s3_server_put(server, "models/hf/README.md", "new", 3);
    r = run(w, "inspect --verify s3://bucket/models/hf");
    assert_non_null(strstr(r.err, ", of which "));
    launch_free(&r);
    r = launch_run(10, "cat %s/cache/phalanx/hf-*[0-9a-f]/README.md", w);
    assert_string_equal(r.out, "new");
    launch_free(&r);
    s3_server_put(server, "models/hf/README.md", "NEW", 3); /* as long as before */
    r = run(w, "inspect --verify s3://bucket/models/hf");
    launch_free(&r);
    r = launch_run(10, "cat %s/cache/phalanx/hf-*[0-9a-f]/README.md", w);
    assert_string_equal(r.out, "NEW");
    launch_free(&r);
}

/* Of shapes only headers are fetched, and nobody takes the hole behind them for weights. */
TEST(names_and_sizes_need_no_values)
{
    const char *w = *state;
    char *a = out_of(run(w, "inspect --json s3://bucket/models/hf"));
    assert_non_null(strstr(a, "\"path\": \"s3://bucket/models/hf\""));
    free(a);
    a = out_of(run(w, "inspect --json s3://bucket/runs/a"));
    assert_non_null(strstr(a, "\"kind\": \"checkpoint\""));
    free(a);
    a = out_of(run(w, "plan from.yaml model.from=s3://bucket/models/hf --json"));
    char *b = out_of(run(w, "plan from.yaml model.from=hf --json"));
    assert_non_null(strstr(a, "\"parameters\": 35040, "));
    *strstr(a, "\"messages\"") = *strstr(b, "\"messages\"") = 0; /* seconds follow, which a CPU is measured for */
    assert_string_equal(a, b);
    free(a);
    free(b);
    launch_result r = launch_run(10, "ls -d %s/cache/phalanx/hf-*-headers", w);
    r.out[strcspn(r.out, "\n")] = 0;
    launch_result refused = run(w, "convert --from %s --to zeros", r.out);
    assert_int_not_equal(refused.status, 0);
    assert_non_null(strstr(refused.err, "but no values"));
    launch_free(&refused);
    launch_free(&r);
}

TEST(trouble_leaves_nothing_half_fetched)
{
    const char *w = *state;
    AUTO_FREE char *cache = must_format("%s/cache2", w), *old = must_strdup(getenv("XDG_CACHE_HOME"));
    setenv("XDG_CACHE_HOME", cache, 1);
    s3_server_faults(server, "503 GET:cut=5 GET:reset HEAD:503 GET:cut=1000 GET:500 HEAD:reset");
    free(out_of(run(w, "convert --from s3://bucket/models/hf --format huggingface --to troubled")));
    launch_result r = launch_run(10, "cd %s && cmp hf/model.safetensors troubled/model.safetensors", w);
    assert_int_equal(r.status, 0);
    launch_free(&r);
    r = launch_run(10, "rm -r %s", cache);
    launch_free(&r);
    s3_server_faults(server, "ok GET:403");
    r = run(w, "convert --from s3://bucket/models/hf --to denied");
    assert_int_not_equal(r.status, 0);
    assert_non_null(strstr(r.err, "403 AccessDenied"));
    launch_free(&r);
    r = launch_run(10, "find %s -name '*.part'", cache);
    assert_string_equal(r.out, "");
    launch_free(&r);
    r = run(w, "inspect s3://bucket/none");
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "s3://bucket/none: there is no object in this folder of the store"));
    launch_free(&r);
    s3_server_put(server, "runs/evil/latest", "../../x\n", 8);
    r = run(w, "inspect s3://bucket/runs/evil");
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "s3://bucket/runs/evil/latest names no checkpoint"));
    launch_free(&r);
    setenv("XDG_CACHE_HOME", old, 1);
}

TEST(several_ranks_fetch_once)
{
    const char *w = *state;
    AUTO_FREE char *cache = must_format("%s/cache3", w), *old = must_strdup(getenv("XDG_CACHE_HOME")),
                   *mpirun = launch_mpirun(2);
    AUTO_FREE char *program = launch_beside("../phalanx"), *whole = realpath(program, NULL);
    setenv("XDG_CACHE_HOME", cache, 1);
    int64_t before = s3_server_requests(server);
    launch_result r = launch_run(120,
                                 "cd %s && OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES= %s %s eval --checkpoint "
                                 "s3://bucket/models/hf --data corpus --limit 8",
                                 w, mpirun, whole);
    if (r.status)
        fail_msg("%s%s", r.out, r.err);
    launch_free(&r);
    int64_t two = s3_server_requests(server) - before;
    r = launch_run(10, "rm -r %s", cache);
    launch_free(&r);
    before = s3_server_requests(server);
    free(out_of(run(w, "eval --checkpoint s3://bucket/models/hf --data corpus --limit 8")));
    assert_int_equal(two, s3_server_requests(server) - before + 1); /* the other rank's list */
    setenv("XDG_CACHE_HOME", old, 1);
}

/* Files of all that was made here, but for the cache's own (objects have no credentials), and a process at work. */
TEST(no_credential_is_left_behind)
{
    const char *w = *state;
    AUTO_FREE char *program = launch_beside("../phalanx"), *whole = realpath(program, NULL);
    setenv("AWS_SESSION_TOKEN", S3_SERVER_TOKEN, 1);
    s3_server_set_secret(server, S3_SERVER_SECRET, true);
    free(out_of(run(w, "train from.yaml model.from=s3://bucket/models/hf run.folder=secret")));
    free(out_of(run(w, "report secret --output secret/page.html")));
    free(out_of(run(w, "tokenize --tokenizer bytes --output secret/data s3://bucket/models/hf/text.txt")));
    s3_server_faults(server, "ok slow=200 slow=200 slow=200");
    launch *l = launch_start(
        60, "cd %s && exec %s tokenize --tokenizer bytes --output slow s3://bucket/models/hf/text.txt", w, whole);
    launch_result r = launch_run(10, "sleep 0.5; tr '\\0' ' ' </proc/%d/cmdline", launch_pid(l));
    assert_non_null(strstr(r.out, "tokenize"));
    assert_null(strstr(r.out, S3_SERVER_SECRET));
    assert_null(strstr(r.out, S3_SERVER_TOKEN));
    assert_null(strstr(r.out, S3_SERVER_ID));
    launch_free(&r);
    s3_server_faults(server, NULL);
    r = launch_finish(l);
    launch_free(&r);
    r = launch_run(20, "grep -rlF -e '%s' -e '%s' -e '%s' %s", S3_SERVER_SECRET, S3_SERVER_TOKEN, S3_SERVER_ID, w);
    assert_string_equal(r.out, "");
    assert_int_equal(r.status, 1); /* grep: nothing was found */
    launch_free(&r);
    s3_server_set_secret(server, S3_SERVER_SECRET, false);
    unsetenv("AWS_SESSION_TOKEN");
}

TEST_MAIN(begin_all, end_all)
