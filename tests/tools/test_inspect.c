/* phalanx inspect: what it says of each kind of thing, in words and as JSON, and how it refuses. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "engine/system/atomic.h"
#include "engine/files/indexed.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/engine/checkpoint/savers.h"
#include "tests/jobs/workfolder.h"
#include "tools/tools.h"
#include "tests/test.h"

/* Run it with stdout and stderr in one file; the text is the caller's. */
static char *inspect(int *exit_status, const char *folder, const char *path, const char *option)
{
    char *file = workfolder_path(folder, "output"), name[] = "inspect", *first = must_strdup(path),
         *second = option ? must_strdup(option) : NULL;
    char *argv[] = {name, first, second, NULL};
    fflush(stdout);
    fflush(stderr);
    int out = dup(1), err = dup(2), descriptor = open(file, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(descriptor, 1);
    dup2(descriptor, 2);
    *exit_status = inspect_main(option ? 3 : 2, argv);
    fflush(stdout);
    fflush(stderr);
    dup2(out, 1);
    dup2(err, 2);
    close(out);
    close(err);
    close(descriptor);
    int64_t bytes;
    char *text = (char *)workfolder_read(file, &bytes);
    free(file);
    free(first);
    free(second);
    return text;
}

static void says(const char *folder, const char *path, const char *option, int expected, const char *const *parts)
{
    int exit_status;
    AUTO_FREE char *text = inspect(&exit_status, folder, path, option);
    if (exit_status != expected)
        fail_msg("exit status %d: %s", exit_status, text);
    for (; *parts; parts++)
        if (!strstr(text, *parts))
            fail_msg("\"%s\" is not said in: %s", *parts, text);
}

#define SAYS(path, option, expected, ...) says(*state, path, option, expected, (const char *const[]){__VA_ARGS__, NULL})

TEST(a_checkpoint_and_a_run_are_described)
{
    AUTO_FREE char *run = workfolder_path(*state, "run"), *folder = workfolder_path(run, "checkpoints");
    AUTO_FREE char *step = workfolder_path(folder, "step-00000007"), *manifest = workfolder_path(step, "manifest.json");
    AUTO_FREE char *metrics = workfolder_path(run, "metrics.jsonl"),
                   *model = workfolder_path(step, "model-00000.safetensors");
    assert_int_equal(savers_write(folder, "step-00000007", 5, (savers_layout){3, 0, false}), STATUS_OK);
    const char *const lines = "{\"step\":6,\"loss\":4.5}\n{\"step\":7,\"loss\":4.25,\"grad_norm\":2}\n"
                              "{\"step\":7,\"eval_loss\":4.75}\n{\"step\":8,\"lo";
    workfolder_write(metrics, lines, (int64_t)strlen(lines));
    SAYS(run, NULL, 0, "last step 7: loss 4.25, gradient norm 2", "step 7: loss 4.75", "checkpoints: 1",
         "step-00000007");
    SAYS(step, NULL, 0, "saved by 3 ranks", "seed: 5", "moment1", "bf16", "[6, 16]", "in 3 pieces", "h.0.attn.weight");
    SAYS(folder, "--verify", 0, "saved by 3 ranks");
    SAYS(manifest, NULL, 0, "saved by 3 ranks");
    SAYS(model, NULL, 0, "safetensors file", "wte.weight[0:2, 0:5]", "format: \"pt\"");

    int exit_status;
    char *text = inspect(&exit_status, *state, step, "--json");
    json_t *object = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_int_equal(exit_status, 0);
    assert_int_equal(json_integer_value(json_object_get(object, "ranks")), 3);
    assert_int_equal(json_array_size(json_object_get(object, "tensors")), 8);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(object, "total"), "elements")), 393);
    json_decref(object);
    free(text);

    int64_t bytes; /* damage: seen by --verify alone, which names it */
    AUTO_FREE uint8_t *data = workfolder_read(model, &bytes);
    data[bytes - 1] ^= 1;
    workfolder_write(model, data, bytes);
    SAYS(step, NULL, 0, "saved by 3 ranks");
    SAYS(step, "--verify", 1, "model-00000.safetensors", "damaged");
    workfolder_write(manifest, "{}", 2);
    SAYS(run, NULL, 0, "latest cannot be loaded", "manifest.json");
    SAYS(step, NULL, 1, "manifest.json: damaged or truncated");
}

TEST(a_data_set_is_described)
{
    AUTO_FREE char *prefix = workfolder_path(*state, "data"), *bin = workfolder_path(*state, "data.bin");
    indexed_writer *w;
    int32_t tokens[100];
    for (int i = 0; i < 100; i++)
        tokens[i] = i * 3;
    assert_int_equal(indexed_writer_open(&w, prefix, 1000), STATUS_OK);
    assert_int_equal(indexed_writer_document(w, tokens, 100), STATUS_OK);
    assert_int_equal(indexed_writer_document(w, tokens, 4), STATUS_OK);
    assert_int_equal(indexed_writer_close(w), STATUS_OK);
    SAYS(prefix, NULL, 0, "documents: 2", "tokens: 104, stored as uint16", "begins a document: unknown",
         "4 to 100, mean 52.0", "document 0: 0 3 6 9", "45 ...\n", "document 1: 0 3 6 9\n");
    SAYS(bin, "--verify", 0, "documents: 2", "largest token id: 297");
    SAYS(prefix, "--json", 0, "\"documents\": 2", "\"longest\": 100", "\"dtype\": \"uint16\"");
    assert_int_equal(truncate(bin, 100), 0);
    SAYS(prefix, NULL, 1, "data.idx: sequence 0", "truncated");
}

/* Ids that no vocabulary has, as another program may have stored them: refused at once, and without memory for each of
 * them. */
TEST(an_id_of_two_to_the_31_is_refused_in_little_memory)
{
    static const struct {
        uint8_t code;
        int64_t id;
    } cases[] = {{4, INT32_MAX}, {5, INT64_C(1) << 31}, {5, INT64_C(1) << 62}, {4, 1 << 24}};
    AUTO_FREE char *prefix = workfolder_path(*state, "wide"), *bin = workfolder_path(*state, "wide.bin"),
                   *idx = workfolder_path(*state, "wide.idx");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t index[34 + 4 + 8 + 16] = "MMIDIDX";
        index[9] = 1;
        index[17] = cases[i].code;
        index[18] = 1; /* sequences */
        index[26] = 2; /* boundaries */
        index[34] = 2; /* tokens */
        index[54] = 1; /* the last boundary */
        int64_t wide[2] = {1, cases[i].id};
        int32_t narrow[2] = {1, (int32_t)cases[i].id};
        workfolder_write(idx, index, sizeof index);
        workfolder_write(bin, cases[i].code == 5 ? (void *)wide : (void *)narrow, cases[i].code == 5 ? 16 : 8);
        SAYS(prefix, "--verify", 1, "token 1", "has id", "outside the vocabulary of 16777216");
    }
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    assert_true(usage.ru_maxrss < 1 << 20); /* KiB; it was 16 GiB */
}

TEST(a_configuration_is_described)
{
    AUTO_FREE char *broken = workfolder_path(*state, "broken.yaml");
    SAYS("models/configs/gpt2-124m.yaml", NULL, 0, "configuration models/configs/gpt2-124m.yaml",
         "gpt2, 12 layers of width 768", "124.4 million parameters", "phalanx plan models/configs/gpt2-124m.yaml");
    SAYS("models/configs/gpt2-124m.yaml", "--json", 0, "\"model.layers\": \"12\"", "\"parameters\": 124439808");
    assert_int_equal(atomic_replace(broken, "model: {layer: 2}", 17), STATUS_OK);
    SAYS(broken, NULL, 2, "model.layer");
}

/* Its lines: test_inspect_huggingface.c. */
TEST(a_hugging_face_folder_is_described_or_refused)
{
    AUTO_FREE char *folder = workfolder_path(*state, "hub"), *file = workfolder_path(folder, "config.json");
    SAYS("tests/golden/models/llama", NULL, 0, "Hugging Face folder tests/golden/models/llama", "to start from it");
    SAYS("tests/golden/models/llama", "--json", 0, "\"kind\": \"huggingface\"", "\"parameters\": 21728");
    assert_int_equal(mkdir(folder, 0700), 0);
    workfolder_write(file, "{\"model_type\":\"mamba\"}", 22);
    SAYS(folder, NULL, 1, "  refused: ", "model_type is \"mamba\"");
    SAYS(folder, "--json", 1, "\"refused\": \"", "\"kind\": \"huggingface\"");
}

TEST(wrong_paths_and_usage_are_refused)
{
    AUTO_FREE char *nothing = workfolder_path(*state, "nothing");
    SAYS(nothing, NULL, 1, "there is no such folder or file");
    SAYS(*state, NULL, 1, "holds no checkpoint");
    SAYS(*state, "--frob", 2, "--frob");
    SAYS("--help", NULL, 0, "--json", "--verify", "--samples", "--ids", "PATH");
}

TEST_MAIN(workfolder_setup, workfolder_teardown)
