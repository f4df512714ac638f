/* What goes with exported weights, so that other programs make the same ids of a text. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/manifest.h"
#include "engine/data/tokenizer_files.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/workfolder.h"
#include "tests/tools/conversion.h"
#include "tests/test.h"

static json_t *read_object(const char *folder, const char *name)
{
    AUTO_FREE char *path = workfolder_path(folder, name);
    int64_t bytes;
    AUTO_FREE uint8_t *text = workfolder_read(path, &bytes);
    json_error_t error;
    json_t *value = json_loadb((const char *)text, (size_t)bytes, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(value))
        fail_msg("%s:%d: %s", path, error.line, error.text);
    return value;
}

static const char *string_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    if (!text)
        fail_msg("%s is no string", key);
    return text;
}

/* A checkpoint of the golden model with a SentencePiece model beside it, as training leaves it, exported to `to`. */
static void export_with_tokenizer(const char *folder, const char *model, const char *to, const char *settings)
{
    AUTO_FREE char *source = conversion_golden(model), *there = workfolder_path(folder, to),
                   *path = workfolder_path(there, "tokenizer.model");
    AUTO_FREE char *saved = must_format("%s-saved", there), *copy = workfolder_path(saved, "tokenizer.model");
    int64_t bytes;
    AUTO_FREE uint8_t *data = workfolder_read("tests/golden/text/unigram.model", &bytes);
    conversion_must(source, saved, WEIGHTS_PHALANX, WEIGHTS_KEEP, 0);
    workfolder_write(copy, data, bytes);
    if (settings)
        conversion_put(saved, "tokenizer_config.json", settings);
    conversion_must(saved, there, WEIGHTS_HUGGINGFACE, WEIGHTS_KEEP, 0);
}

/* What AutoTokenizer reads; tests/engine/tokenizer/interop_autotokenizer.py has it read by transformers. */
TEST(an_export_has_what_autotokenizer_reads)
{
    static const char *const models[] = {
        "gpt2",      "llama",  "mistral",     "qwen2",    "qwen3",       "starcoder2",  "smollm3", "granite",
        "gemma2",    "gemma3", "phi3",        "neox",     "glm4",        "olmo2",       "olmo3",   "mixtral",
        "qwen3-moe", "olmoe",  "granite-moe", "glm4-moe", "deepseek-v2", "deepseek-v3", "gpt-oss"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        AUTO_FREE char *name = must_format("%s-exported", models[i]), *folder = workfolder_path(*state, name);
        export_with_tokenizer(*state, models[i], name, NULL);
        json_t *file = read_object(folder, "tokenizer.json"), *settings = read_object(folder, "tokenizer_config.json");
        json_t *names = read_object(folder, "special_tokens_map.json"), *model = read_object(folder, "config.json");
        json_t *generation = read_object(folder, "generation_config.json");
        assert_string_equal(string_of(json_object_get(file, "model"), "type"), "Unigram");
        assert_string_equal(string_of(settings, "tokenizer_class"), "PreTrainedTokenizerFast");
        assert_true(json_is_true(json_object_get(settings, "split_special_tokens")));
        assert_int_equal(json_integer_value(json_object_get(settings, "model_max_length")),
                         json_integer_value(json_object_get(
                             model, strcmp(models[i], "gpt2") == 0 ? "n_positions" : "max_position_embeddings")));
        for (int k = 0; k < 2; k++) {
            json_t *from = k ? names : settings;
            assert_string_equal(string_of(from, "bos_token"), "<s>");
            assert_string_equal(string_of(from, "eos_token"), "</s>");
            assert_string_equal(string_of(from, "unk_token"), "<unk>");
            assert_null(json_object_get(from, "pad_token"));
        }
        assert_int_equal(json_integer_value(json_object_get(generation, "eos_token_id")),
                         json_integer_value(json_object_get(model, "eos_token_id")));
        assert_true(json_is_integer(json_object_get(model, "eos_token_id")));
        bool qwen2 = strcmp(models[i], "qwen2") == 0; /* transformers has a class of its own for it */
        assert_int_equal(json_object_get(settings, "auto_map") != NULL, qwen2);
        assert_int_equal(conversion_has(folder, "tokenization_phalanx.py"), qwen2);
        assert_true(conversion_has(folder, "tokenizer.model"));
        json_decref(file);
        json_decref(settings);
        json_decref(names);
        json_decref(model);
        json_decref(generation);
    }
}

/* What came with the tokenizer stays: a chat template is made of special tokens' names, which must become ids. */
TEST(an_export_keeps_the_chat_template)
{
    AUTO_FREE char *folder = workfolder_path(*state, "chat");
    export_with_tokenizer(*state, "llama", "chat",
                          "{\"tokenizer_class\": \"LlamaTokenizer\", \"chat_template\": \"{{ bos_token }}\", "
                          "\"eos_token\": \"<unk>\", \"model_max_length\": 7}");
    json_t *settings = read_object(folder, "tokenizer_config.json");
    assert_string_equal(string_of(settings, "chat_template"), "{{ bos_token }}");
    assert_string_equal(string_of(settings, "tokenizer_class"), "PreTrainedTokenizerFast");
    assert_string_equal(string_of(settings, "eos_token"), "<unk>");
    assert_string_equal(string_of(settings, "bos_token"), "<s>");
    assert_int_equal(json_integer_value(json_object_get(settings, "model_max_length")), 7);
    assert_null(json_object_get(settings, "split_special_tokens"));
    json_decref(settings);
}

/* transformers builds tokenizers of some classes with the class's own pre-tokenizer, whatever tokenizer.json says. */
TEST(an_export_names_a_class_that_reads_the_file)
{
    AUTO_FREE char *source = conversion_golden("llama"), *saved = workfolder_path(*state, "class-saved"),
                   *there = workfolder_path(*state, "class");
    int64_t bytes;
    AUTO_FREE char *json = (char *)workfolder_read("tests/golden/text/phi4.json", &bytes);
    conversion_must(source, saved, WEIGHTS_PHALANX, WEIGHTS_KEEP, 0);
    conversion_put(saved, "tokenizer.json", json);
    conversion_put(saved, "tokenizer_config.json",
                   "{\"tokenizer_class\": \"GPT2Tokenizer\", \"eos_token\": \"<|im_end|>\"}");
    conversion_must(saved, there, WEIGHTS_HUGGINGFACE, WEIGHTS_KEEP, 0);
    json_t *settings = read_object(there, "tokenizer_config.json");
    assert_string_equal(string_of(settings, "tokenizer_class"), "PreTrainedTokenizerFast");
    assert_string_equal(string_of(settings, "eos_token"), "<|im_end|>");
    assert_null(json_object_get(settings, "split_special_tokens"));
    json_decref(settings);
}

/* The checkpoint's manifest, as training writes what began its documents. */
static void record_begin(const char *folder, const char *word)
{
    AUTO_FREE char *path = workfolder_path(folder, "manifest.json");
    AUTO(manifest) *m = NULL;
    assert_int_equal(manifest_read(&m, path), STATUS_OK);
    json_object_set_new(m->meta, "document_begin", json_string(word));
    assert_int_equal(manifest_write(m, path), STATUS_OK);
}

/* tokenizer.json, its configuration and the folder opened again all begin a text with what the checkpoint records. */
TEST(an_export_begins_texts_as_training_did)
{
    static const struct {
        const char *file, *to, *word, *bos; /* NULL: no token */
    } rows[] = {
        {"unigram.model", "tokenizer.model", "end", "</s>"},     {"unigram.model", "tokenizer.model", "token", "<s>"},
        {"unigram.model", "tokenizer.model", "nothing", NULL},   {"llama3.json", "tokenizer.json", "nothing", NULL},
        {"qwen.json", "tokenizer.json", "end", "<|endoftext|>"}, {"llama2.json", "tokenizer.json", "end", "</s>"},
        {"llama2.json", "tokenizer.json", "token", "<s>"}};
    AUTO_FREE char *source = conversion_golden("llama"), *saved = workfolder_path(*state, "begin-saved"),
                   *there = workfolder_path(*state, "begin");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        AUTO_FREE char *clear = must_format("rm -rf %s %s", saved, there),
                       *from = must_format("tests/golden/text/%s", rows[i].file),
                       *copy = workfolder_path(saved, rows[i].to);
        assert_int_equal(system(clear), 0);
        int64_t bytes;
        AUTO_FREE uint8_t *data = workfolder_read(from, &bytes);
        conversion_must(source, saved, WEIGHTS_PHALANX, WEIGHTS_KEEP, 0);
        record_begin(saved, rows[i].word);
        workfolder_write(copy, data, bytes);
        conversion_must(saved, there, WEIGHTS_HUGGINGFACE, WEIGHTS_KEEP, 0);
        json_auto_t *settings = read_object(there, "tokenizer_config.json");
        const char *bos = json_string_value(json_object_get(settings, "bos_token"));
        if (!bos != !rows[i].bos || (bos && strcmp(bos, rows[i].bos)))
            fail_msg("%s, %s: bos_token %s", rows[i].file, rows[i].word, bos);
        assert_int_equal(json_is_true(json_object_get(settings, "add_bos_token")), bos != NULL);
        json_auto_t *file = read_object(there, "tokenizer.json");
        AUTO_FREE char *frame = json_dumps(json_object_get(file, "post_processor"), JSON_ENCODE_ANY | JSON_COMPACT);
        AUTO_FREE char *wanted = must_format("\"single\":[{\"SpecialToken\":{\"id\":\"%s\"", bos ? bos : "");
        if ((strstr(frame, wanted) != NULL) != (bos != NULL) || (strstr(frame, "Template") != NULL) != (bos != NULL))
            fail_msg("%s, %s: post_processor %s", rows[i].file, rows[i].word, frame);
        AUTO(tokenizer) *t = NULL;
        assert_int_equal(tokenizer_files_open(&t, there), STATUS_OK);
        AUTO(tokenizer_scratch) *s = tokenizer_scratch_open(t);
        RELEASED_BY(buffer_ids_free) buffer_ids ids = {0};
        assert_int_equal(tokenizer_encode(t, s, &ids, "a b", 3, 0), STATUS_OK);
        int64_t plain = ids.count;
        assert_int_equal(tokenizer_encode(t, s, &ids, "a b", 3, TOKENIZER_FRAME), STATUS_OK);
        assert_int_equal(ids.count, 2 * plain + (bos != NULL));
        assert_memory_equal(ids.ids + plain + (bos != NULL), ids.ids, (size_t)plain * sizeof *ids.ids);
        if (bos)
            assert_int_equal(ids.ids[plain], tokenizer_find(t, bos, (int64_t)strlen(bos)));
    }
}

TEST_MAIN(workfolder_setup, workfolder_teardown)
