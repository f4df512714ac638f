/* What goes with exported weights, so that other programs make the same ids of a text. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

TEST_MAIN(workfolder_setup, workfolder_teardown)
