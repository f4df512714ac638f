/* phalanx inspect of a Hugging Face folder: each line that it says, of folders with old and new keys, and how it
 * refuses what training would. */
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "models/huggingface.h"
#include "models/presets.h"
#include "tests/jobs/workfolder.h"
#include "tests/tools/conversion.h"
#include "tools/inspect/inspect_parts.h"
#include "tests/test.h"

typedef struct answer {
    status status;
    char *text;
} answer;

/* What is printed, with "FOLDER" for the folder's path. */
static answer ask(const char *work, const char *folder)
{
    AUTO_FREE char *file = workfolder_path(work, "output");
    fflush(stdout);
    int out = dup(1), descriptor = open(file, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(descriptor, 1);
    json_t *object = NULL;
    const inspect_request r = {.path = folder};
    answer a = {.status = inspect_gather_huggingface(&object, &r)};
    inspect_print_huggingface(object);
    fflush(stdout);
    dup2(out, 1);
    close(out);
    close(descriptor);
    int64_t bytes;
    char *text = (char *)workfolder_read(file, &bytes);
    a.text = must_strdup("");
    for (char *at = text, *next; *at; at = next) {
        next = strstr(at, folder);
        char *longer =
            next ? must_format("%s%.*sFOLDER", a.text, (int)(next - at), at) : must_format("%s%s", a.text, at);
        next = next ? next + strlen(folder) : at + strlen(at);
        free(a.text);
        a.text = longer;
    }
    json_decref(object);
    free(text);
    return a;
}

static void says_all(const char *work, const char *folder, const char *expected)
{
    answer a = ask(work, folder);
    assert_int_equal(a.status, STATUS_OK);
    size_t same = 0;
    while (a.text[same] && a.text[same] == expected[same])
        same++;
    while (same > 0 && a.text[same - 1] != '\n')
        same--;
    if (strcmp(a.text, expected) != 0)
        fail_msg("it says\n%.300s\nand not\n%.300s", a.text + same, expected + same);
    free(a.text);
}

static void says(const char *work, const char *folder, status expected, const char *const *parts)
{
    answer a = ask(work, folder);
    if (a.status != expected)
        fail_msg("status %d: %s", (int)a.status, a.text);
    for (; *parts; parts++)
        if (**parts == '!' ? strstr(a.text, *parts + 1) != NULL : strstr(a.text, *parts) == NULL)
            fail_msg("\"%s\" in: %s", *parts, a.text);
    free(a.text);
}

#define SAYS(folder, expected, ...) says(*state, folder, expected, (const char *const[]){__VA_ARGS__, NULL})

/* A copy of a golden model as phalanx exports it, with transformers 4's keys; the path is the caller's. */
static char *copy_of(const char *work, const char *model, const char *name, int64_t shard_bytes)
{
    char *source = conversion_golden(model), *there = workfolder_path(work, name);
    conversion_must(source, there, WEIGHTS_HUGGINGFACE, WEIGHTS_KEEP, shard_bytes);
    free(source);
    return there;
}

static void write_changed(const char *folder, const char *key, json_t *value, size_t flags)
{
    AUTO_FREE char *path = workfolder_path(folder, "config.json");
    json_t *root = json_load_file(path, 0, NULL);
    if (value)
        json_object_set_new(root, key, value);
    else
        json_object_del(root, key);
    assert_int_equal(json_dump_file(root, path, JSON_INDENT(2) | flags), 0);
    json_decref(root);
}

static void change(const char *folder, const char *key, json_t *value)
{
    write_changed(folder, key, value, 0);
}

static void remove_and_sort(const char *folder, const char *key)
{
    write_changed(folder, key, NULL, JSON_SORT_KEYS);
}

TEST(every_line_of_a_folder_with_transformers_5s_keys)
{
    says_all(*state, "tests/golden/models/llama-yarn",
             "Hugging Face folder FOLDER\n"
             "  model: llama (LlamaForCausalLM), 2 layers of width 48, 37.2 thousand parameters (37200)\n"
             "  weights: 21 tensors in 1 file, 145.3 KiB, fp32; the head has weights of its own\n"
             "  tokenizer: none; put tokenizer.json or tokenizer.model there to tokenize text and to generate\n"
             "  config.json, taken:\n"
             "    architectures [\"LlamaForCausalLM\"] -> the first must be the class with the head, or the bare "
             "model's\n"
             "    bos_token_id 1 -> kept for exports and for generated text\n"
             "    eos_token_id 2 -> kept for exports; ends generated text\n"
             "    head_dim 12 -> model.head_size\n"
             "    hidden_size 48 -> model.hidden_size\n"
             "    intermediate_size 48 -> model.ffn_size\n"
             "    max_position_embeddings 64 -> model.max_sequence\n"
             "    model_type \"llama\" -> model.architecture\n"
             "    num_attention_heads 4 -> model.heads\n"
             "    num_hidden_layers 2 -> model.layers\n"
             "    num_key_value_heads 2 -> model.kv_heads\n"
             "    rms_norm_eps 1e-5 -> model.norm_epsilon\n"
             "    rope_parameters {\"beta_fast\":4.0,\"beta_slow\":0.25,\"factor\":4.... -> model.rope_theta, "
             "model.rope_scaling (transformers 5's, which says both)\n"
             "    tie_word_embeddings false -> model.tied_embeddings\n"
             "    vocab_size 97 -> model.vocab_size\n"
             "  config.json, as it must be:\n"
             "    attention_bias false\n"
             "    hidden_act \"silu\"\n"
             "    mlp_bias false\n"
             "  a run has:\n"
             "    model.architecture=llama\n"
             "    model.layers=2\n"
             "    model.hidden_size=48\n"
             "    model.heads=4\n"
             "    model.kv_heads=2\n"
             "    model.head_size=12\n"
             "    model.ffn_size=48\n"
             "    model.vocab_size=97\n"
             "    model.max_sequence=64\n"
             "    model.tied_embeddings=false\n"
             "    model.rope_theta=10000\n"
             "    model.rope_scaling.factor=4\n"
             "    model.rope_scaling.original_max_sequence=16\n"
             "    model.rope_scaling.beta_fast=4\n"
             "    model.rope_scaling.beta_slow=0.25\n"
             "    model.rope_scaling.attention_factor=1.138629436111989\n"
             "    model.rope_parameters=true\n"
             "    model.norm_epsilon=1.0e-05\n"
             "    model.rope_scaling.kind=yarn\n"
             "  to start from it: phalanx train CONFIG.yaml model.from=FOLDER\n");
}

TEST(every_line_of_a_folder_with_the_older_keys)
{
    AUTO_FREE char *folder = copy_of(*state, "gemma3", "older", 40000);
    change(folder, "rope_theta", json_real(5e4));
    change(folder, "rope_local_base_freq", json_real(1e3));
    change(folder, "rope_scaling", json_pack("{s:s, s:f}", "rope_type", "linear", "factor", 2.0));
    remove_and_sort(folder, "rope_parameters");
    change(folder, "logits_cap", json_integer(3));
    change(folder, "sliding_window_pattern", json_integer(2)); /* layer_types decides */
    change(folder, "use_cache", json_false());
    change(folder, "final_logit_softcapping", json_null());
    says_all(*state, folder,
             "Hugging Face folder FOLDER\n"
             "  model: gemma3_text (Gemma3ForCausalLM), 3 layers of width 32, 35.9 thousand parameters (35872)\n"
             "  weights: 41 tensors in 4 files, 140.1 KiB, fp32; the head is the embedding's table\n"
             "  tokenizer: none; put tokenizer.json or tokenizer.model there to tokenize text and to generate\n"
             "  config.json, taken:\n"
             "    architectures [\"Gemma3ForCausalLM\"] -> the first must be the class with the head, or the bare "
             "model's\n"
             "    bos_token_id 96 -> kept for exports and for generated text\n"
             "    eos_token_id 96 -> kept for exports; ends generated text\n"
             "    head_dim 16 -> model.head_size\n"
             "    hidden_size 32 -> model.hidden_size\n"
             "    intermediate_size 48 -> model.ffn_size\n"
             "    layer_types [\"sliding_attention\",\"full_attention\",\"slidin... -> model.full_first, "
             "model.full_every (full_attention or sliding_attention for each layer, at equal distances)\n"
             "    max_position_embeddings 512 -> model.max_sequence\n"
             "    model_type \"gemma3_text\" -> model.architecture\n"
             "    num_attention_heads 4 -> model.heads\n"
             "    num_hidden_layers 3 -> model.layers\n"
             "    num_key_value_heads 2 -> model.kv_heads\n"
             "    query_pre_attn_scalar 20 -> model.attention_multiplier (scores are divided by its root)\n"
             "    rms_norm_eps 1e-6 -> model.norm_epsilon\n"
             "    rope_local_base_freq 1000.0 -> model.rope_local_theta\n"
             "    rope_scaling {\"factor\":2.0,\"rope_type\":\"linear\"} -> model.rope_scaling (transformers 4's; with "
             "rope_theta within, that one is taken)\n"
             "    rope_theta 50000.0 -> model.rope_theta\n"
             "    sliding_window 8 -> model.sliding_window (null: none)\n"
             "    tie_word_embeddings true -> model.tied_embeddings\n"
             "    vocab_size 97 -> model.vocab_size\n"
             "  config.json, as it must be:\n"
             "    attention_bias false\n"
             "    hidden_activation \"gelu_pytorch_tanh\"\n"
             "  config.json, not asked for, since other keys decide:\n"
             "    sliding_window_pattern 2 -> model.full_every (unless layer_types says which layers have the window)\n"
             "  config.json, unknown here (compare logits if one of these changes what is computed):\n"
             "    logits_cap 3\n"
             "  a run has:\n"
             "    model.architecture=gemma3_text\n"
             "    model.layers=3\n"
             "    model.hidden_size=32\n"
             "    model.heads=4\n"
             "    model.kv_heads=2\n"
             "    model.head_size=16\n"
             "    model.ffn_size=48\n"
             "    model.vocab_size=97\n"
             "    model.max_sequence=512\n"
             "    model.tied_embeddings=true\n"
             "    model.rope_theta=50000\n"
             "    model.rope_local_theta=1000\n"
             "    model.rope_scaling.factor=2\n"
             "    model.rope_parameters=false\n"
             "    model.norm_epsilon=1.0e-06\n"
             "    model.embedding_multiplier=5.656854249492381\n"
             "    model.attention_multiplier=0.22360679774997896\n"
             "    model.sliding_window=8\n"
             "    model.full_every=2\n"
             "    model.rope_scaling.kind=linear\n"
             "  to start from it: phalanx train CONFIG.yaml model.from=FOLDER\n");
}

TEST(keys_of_other_architectures_are_unknown)
{
    AUTO_FREE char *folder = copy_of(*state, "llama", "foreign", 0);
    change(folder, "sliding_window", json_integer(5));
    change(folder, "embedding_multiplier", json_real(12));
    change(folder, "rope_scaling",
           json_pack("{s:s, s:s, s:i, s:i, s:n}", "rope_type", "linear", "type", "linear", "factor", 2, "beta_fast", 32,
                     "finetuned"));
    SAYS(folder, STATUS_OK, "unknown here", "    sliding_window 5\n", "    embedding_multiplier 12.0\n",
         "    rope_scaling.beta_fast 32\n", "!    rope_scaling.factor", "!scaling.type", "!finetuned", "kind=linear\n");
    change(folder, "rope_scaling", json_null());
    change(folder, "rope_parameters",
           json_pack("{s:s, s:i, s:i, s:b}", "rope_type", "yarn", "rope_theta", 500, "factor", 4, "truncate", 1));
    SAYS(folder, STATUS_OK, "!    rope_parameters.", "model.rope_theta=500\n", "kind=yarn\n");
}

/* A reading for each key would take minutes. */
TEST(thousands_of_unread_keys_cost_few_readings)
{
    AUTO_FREE char *folder = copy_of(*state, "llama", "many", 0);
    json_t *rope = json_pack("{s:s, s:i}", "rope_type", "linear", "factor", 2);
    for (int i = 0; i < 8000; i++) {
        AUTO_FREE char *key = must_format("extra_%d", i);
        json_object_set_new(rope, key, json_integer(i));
    }
    change(folder, "rope_scaling", rope);
    SAYS(folder, STATUS_OK, "    rope_scaling.extra_0 0\n", "    rope_scaling.extra_7999 7999\n",
         "!    rope_scaling.factor", "kind=linear\n");
}

TEST(every_golden_model_is_understood_whole)
{
    static const char *const models[] = {"gpt2", "llama", "mistral", "qwen2", "qwen3", "granite", "gemma3", "neox"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        AUTO_FREE char *folder = conversion_golden(models[i]);
        SAYS(folder, STATUS_OK, "to start from it", "!unknown here", "!refused");
    }
}

TEST(a_published_shape_is_named)
{
    char *folder = copy_of(*state, "llama", "published", 0), *text;
    for (int i = 0; i < presets_count(); i++) {
        const preset *p = presets_at(i);
        assert_int_equal(huggingface_text(&text, &p->shape, DTYPE_BF16, NULL), STATUS_OK);
        conversion_put(folder, "config.json", text);
        AUTO_FREE char *line = must_format("a run has: model.preset=%s\n", p->name);
        SAYS(folder, STATUS_FAILED, line, "refused: FOLDER: tensor "); /* the weights are another's */
        free(text);
    }
    change(folder, "vocab_size", json_integer(12345));
    SAYS(folder, STATUS_FAILED, "!model.preset", "model.vocab_size=12345");
    free(folder);
}

TEST(what_training_would_refuse_is_refused)
{
    AUTO_FREE char *folder = copy_of(*state, "llama", "refused", 40000), *index = NULL;
    SAYS(folder, STATUS_OK, "tensors in 3 files");
    AUTO_FREE char *shard = workfolder_path(folder, "model-00002-of-00003.safetensors");
    assert_int_equal(truncate(shard, 30000), 0);
    SAYS(folder, STATUS_FAILED, "  refused: FOLDER/model-00002-of-00003.safetensors: ", "model.layers=2", "!to start");
    assert_int_equal(unlink(shard), 0);
    SAYS(folder, STATUS_FAILED, "  refused: ", "model-00002-of-00003.safetensors");
    index = workfolder_path(folder, "model.safetensors.index.json");
    assert_int_equal(unlink(index), 0);
    SAYS(folder, STATUS_FAILED, "  refused: FOLDER has model-0000");
    change(folder, "hidden_act", json_string("relu"));
    SAYS(folder, STATUS_FAILED, "  refused: FOLDER/config.json: hidden_act is \"relu\": phalanx has only \"silu\"\n",
         "phalanx help families", "!a run has", "!to start");
    change(folder, "model_type", json_string("mamba"));
    SAYS(folder, STATUS_FAILED, "  refused: FOLDER/config.json: model_type is \"mamba\": phalanx knows gpt2, llama");
    conversion_put(folder, "config.json", "{");
    SAYS(folder, STATUS_FAILED, "  refused: FOLDER/config.json:1: no JSON");
}

TEST(a_tokenizer_is_opened)
{
    AUTO_FREE char *folder = copy_of(*state, "llama", "tokenizer", 0),
                   *path = workfolder_path(folder, "tokenizer.json");
    int64_t bytes;
    AUTO_FREE uint8_t *text = workfolder_read("tests/golden/text/gpt2.json", &bytes);
    workfolder_write(path, text, bytes);
    SAYS(folder, STATUS_OK, "  tokenizer: BPE of ", " ids (tokenizer.json); bos ",
         "it makes ids that the model has no");
    conversion_put(folder, "tokenizer.json", "{\"model\":{\"type\":\"WordPiece\"}}");
    SAYS(folder, STATUS_OK, "  tokenizer: refused: FOLDER/tokenizer.json: ", "WordPiece", "to start from it");
}

TEST_MAIN(workfolder_setup, workfolder_teardown)
