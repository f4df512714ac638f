/* config.json: every shape survives the way there and back, and old and new spellings mean the same. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "models/huggingface.h"
#include "models/names.h"
#include "models/presets.h"
#include "tests/jobs/workfolder.h"
#include "tests/models/parsed.h"
#include "tests/test.h"

static void assert_same_shape(const model_shape *a, const model_shape *b)
{
    assert_int_equal(a->architecture, b->architecture);
    assert_int_equal(a->layers, b->layers);
    assert_int_equal(a->heads, b->heads);
    assert_int_equal(a->kv_heads, b->kv_heads);
    assert_int_equal(a->head_size, b->head_size);
    assert_int_equal(a->hidden_size, b->hidden_size);
    assert_int_equal(a->ffn_size, b->ffn_size);
    assert_int_equal(a->vocab_size, b->vocab_size);
    assert_int_equal(a->max_sequence, b->max_sequence);
    assert_int_equal(a->sliding_window, b->sliding_window);
    assert_int_equal(a->full_first, b->full_first);
    assert_int_equal(a->full_every, b->full_every);
    assert_int_equal(a->experts, b->experts);
    assert_int_equal(a->experts_per_token, b->experts_per_token);
    assert_int_equal(a->expert_ffn_size, b->expert_ffn_size);
    assert_int_equal(a->experts_every, b->experts_every);
    assert_int_equal(a->dense_layers, b->dense_layers);
    assert_int_equal(a->router_renormalise, b->router_renormalise);
    assert_true(a->router_loss == b->router_loss);
    assert_true(a->router_scale == b->router_scale);
    assert_true(a->swiglu_limit == b->swiglu_limit);
    assert_true(a->swiglu_alpha == b->swiglu_alpha);
    assert_int_equal(a->shared_experts, b->shared_experts);
    assert_int_equal(a->router_groups, b->router_groups);
    assert_int_equal(a->router_groups_kept, b->router_groups_kept);
    assert_int_equal(a->qk_norm, b->qk_norm);
    assert_int_equal(a->attention_bias, b->attention_bias);
    assert_true(a->kv_lora_rank == b->kv_lora_rank && a->q_lora_rank == b->q_lora_rank);
    assert_int_equal(a->rope_head_size, b->rope_head_size);
    if (a->kv_lora_rank > 0)
        assert_int_equal(a->v_head_size ? a->v_head_size : a->head_size, b->v_head_size);
    assert_int_equal(a->tied_embeddings, b->tied_embeddings);
    assert_true(a->norm_epsilon == b->norm_epsilon);
    if (a->architecture == SHAPE_GPT2)
        return;
    assert_true(a->rope_theta == b->rope_theta);
    assert_true(a->rope_local_theta == b->rope_local_theta);
    assert_true(a->rope_scaling.factor == b->rope_scaling.factor);
    assert_true(a->rope_scaling.low_frequency_factor == b->rope_scaling.low_frequency_factor);
    assert_true(a->rope_scaling.high_frequency_factor == b->rope_scaling.high_frequency_factor);
    assert_int_equal(a->rope_scaling.original_max_sequence, b->rope_scaling.original_max_sequence);
    const shape_rope_scaling *r = &a->rope_scaling, *q = &b->rope_scaling;
    assert_true(r->mscale == q->mscale && r->mscale_all_dim == q->mscale_all_dim);
}

static void survives(const model_shape *shape, dtype type)
{
    char *text, *again;
    model_shape back;
    json_t *tokens = json_pack("{s:i, s:[i, i]}", "bos_token_id", 1, "eos_token_id", 2, 3), *tokens_back;
    assert_int_equal(huggingface_text(&text, shape, type, tokens), STATUS_OK);
    assert_int_equal(parsed_config(&back, &tokens_back, text), STATUS_OK);
    assert_same_shape(shape, &back);
    assert_int_equal(shape->rope_parameters, back.rope_parameters);
    assert_int_equal(shape->rope_parameters, strstr(text, "\"rope_parameters\"") != NULL);
    assert_true(json_equal(tokens, tokens_back));
    assert_int_equal(huggingface_text(&again, &back, type, tokens_back), STATUS_OK);
    assert_string_equal(text, again);
    json_decref(tokens);
    json_decref(tokens_back);
    free(text);
    free(again);
}

static const shape_rope_scaling scalings[] = {
    {.kind = ROPE_LLAMA3,
     .factor = 1.1,
     .low_frequency_factor = 1.3,
     .high_frequency_factor = 4.7,
     .original_max_sequence = 12},
    {.kind = ROPE_LINEAR, .factor = 1.1},
    {.kind = ROPE_DYNAMIC, .factor = 3},
    {.kind = ROPE_YARN,
     .factor = 1.1,
     .original_max_sequence = 12,
     .beta_fast = 31.3,
     .beta_slow = 1.1,
     .attention_factor = 1.7,
     .fractional = true},
};

/* A factor a frequency, and, if asked, others than those that follow from the sizes. */
static shape_rope_scaling longrope_of(const model_shape *s, bool said)
{
    shape_rope_scaling r = {.kind = ROPE_LONGROPE,
                            .factor = said ? 1.1 : (double)s->max_sequence / 12,
                            .original_max_sequence = 12,
                            .attention_factor = said ? 1.7 : 0};
    for (int i = 0; i < (s->rotary_size ? s->rotary_size : s->head_size) / 2; i++) {
        r.short_factor[i] = 1 + i / 3.0;
        r.long_factor[i] = 2 + i;
    }
    return r;
}

/* Some of the layers' experts, where there are any. */
static void give_experts(model_shape *s, int variant)
{
    shape_architecture a = s->architecture;
    const bool some = shape_has_key(a, KEY_SPARSE_LAYERS);
    if (!shape_has_key(a, KEY_EXPERTS))
        return;
    s->experts = 5 + variant;
    s->experts_per_token = 1 + variant % 4;
    s->expert_ffn_size = some || shape_has_key(a, KEY_SHARED) ? 33 : s->ffn_size;
    s->experts_every = some ? 1 + variant % 3 : 1;
    s->dense_layers = some || shape_has_key(a, KEY_DENSE_FIRST) ? variant / 4 : 0;
    s->shared_experts = shape_has_key(a, KEY_SHARED) ? variant % 3 : 0;
    s->qk_norm = shape_has_key(a, KEY_QK_NORM) && variant & 1;
    if (shape_has_key(a, KEY_GROUPS) && variant & 1) {
        s->experts = 12;
        s->router_groups = 3 + variant % 2;
        s->router_groups_kept = 2;
        s->router_scale = 2.5;
    }
    s->swiglu_limit = !shape_has(s, TRAIT_CLAMPED) ? 0 : variant & 1 ? 1.0 / 3 : 7;
    s->swiglu_alpha = !shape_has(s, TRAIT_CLAMPED) ? 0 : variant & 2 ? 1.0 / 7 : 1.702;
    s->router_renormalise = shape_has(s, TRAIT_RENORMALISED) || (shape_has_key(a, KEY_NORM_TOPK) && variant & 1);
    s->router_loss = shape_has_key(a, KEY_ROUTER_LOSS) && variant & 2 ? 1.0 / 30 : 0;
}

/* Sizes of latent attention, where there is any, and none elsewhere; with yarn its two scales. */
static void give_latents(model_shape *s, int variant)
{
    s->kv_lora_rank = s->q_lora_rank = s->rope_head_size = s->v_head_size = 0;
    s->attention_bias = shape_has_key(s->architecture, KEY_LATENT) && variant & 4;
    if (!shape_has_key(s->architecture, KEY_LATENT))
        return;
    s->kv_heads = s->heads, s->kv_lora_rank = 17;
    s->q_lora_rank = variant & 1 ? 19 : 0;
    s->rope_head_size = s->head_size / 4 * 2;
    s->v_head_size = variant & 2 ? 11 : 0;
    if (shape_scales(s, ROPE_YARN))
        s->rope_scaling.mscale = 1.0 / 3, s->rope_scaling.mscale_all_dim = 0.7;
}

TEST(every_shape_survives_the_way_there_and_back)
{
    for (int i = 0; i < presets_count(); i++)
        survives(&presets_at(i)->shape, DTYPE_BF16);
    for (int a = 0; a < SHAPE_ARCHITECTURES; a++)
        for (int variant = 0; variant < 8; variant++) {
            bool gpt2 = a == SHAPE_GPT2, neox = a == SHAPE_NEOX, plain = gpt2 || neox || variant & 1,
                 granite = shape_has_key((shape_architecture)a, KEY_MULTIPLIERS),
                 windows = shape_has_key((shape_architecture)a, KEY_WINDOW) ||
                           shape_has_key((shape_architecture)a, KEY_LAYER_WINDOWS) ||
                           shape_has_key((shape_architecture)a, KEY_WINDOW_PATTERN);
            model_shape s = {.architecture = (shape_architecture)a,
                             .layers = 3,
                             .heads = 4,
                             .hidden_size = 40,
                             .ffn_size = 77,
                             .vocab_size = 101,
                             .max_sequence = 50,
                             .kv_heads = plain ? 4 : 2,
                             .head_size = plain ? 10 : 16,
                             .tied_embeddings = variant & 2,
                             .sliding_window = windows && variant & 4 ? 7 : 0,
                             .full_first = a == SHAPE_QWEN2 && variant & 4 ? variant & 1 : 0,
                             .full_every = a == SHAPE_QWEN3 && variant & 4 ? 2 * (variant & 1) : 0,
                             .embedding_multiplier = granite                                  ? 12.1
                                                     : a == SHAPE_GEMMA2 || a == SHAPE_GEMMA3 ? sqrt(40)
                                                                                              : 0,
                             .rope_local_theta = a == SHAPE_GEMMA3 || a == SHAPE_OLMO3 ? 3000 : 0,
                             .residual_multiplier = granite ? 0.22 : 0,
                             .attention_multiplier = granite || a == SHAPE_GEMMA2 || a == SHAPE_GEMMA3 ? 1.0 / 3 : 0,
                             .attention_cap = a == SHAPE_GEMMA2 && variant & 1 ? 1.0 / 7 : 0,
                             .logits_cap = a == SHAPE_GEMMA2 && variant & 2 ? 30 : 0,
                             .logits_scaling = granite ? 8 : 0,
                             .rotary_size = (a == SHAPE_PHI3 || a == SHAPE_GLM4 || neox) && variant & 1 ? 6 : 0,
                             .rope_parameters = a == SHAPE_OLMO3 || a == SHAPE_GPT_OSS || (!gpt2 && variant & 2),
                             .unrotated_every = a == SHAPE_SMOLLM3 ? variant & 3 : 0,
                             .rope_theta = 12345.678901234567,
                             .norm_epsilon = 1.0 / 3e5};
            give_experts(&s, variant);
            if (variant & 4 && (a == SHAPE_PHI3 || (a == SHAPE_LLAMA && variant & 1))) {
                s.rope_scaling = longrope_of(&s, variant & 2);
                shape_fill(&s);
            } else if (variant & 4)
                s.rope_scaling = scalings[variant & 3];
            give_latents(&s, variant);
            survives(&s, DTYPE_FP32);
        }
}

/* Reals are written with as many digits as the one that needs most of them: whichever that is. */
TEST(one_number_of_many_digits_keeps_them)
{
    model_shape s = presets_find("olmo3-7b")->shape;
    s.rope_scaling = (shape_rope_scaling){.factor = 0};
    s.rope_parameters = true;
    s.rope_local_theta = 12345.678901234567;
    survives(&s, DTYPE_BF16);
}

/* Layer types of six layers, F: full_attention, and what they are here. */
TEST(layers_may_differ_in_their_window)
{
    static const struct {
        const char *types;
        int full_first, full_every; /* -1: refused */
    } cases[] = {
        {"SSSSSS", 0, 0}, {"FSSSSS", 1, 0}, {"FFFFFS", 5, 0},  {"SFSFSF", 0, 2},  {"SSFSSF", 0, 3},  {"SSSSSF", 0, 6},
        {"FFSFSF", 2, 2}, {"FSFSSF", 1, 3}, {"SFSSSF", -1, 0}, {"FSFSFS", -1, 0}, {"SFFSSS", -1, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *list = must_strdup("");
        for (const char *c = cases[i].types; *c; c++) {
            char *longer = must_format("%s%s\"%s_attention\"", list, *list ? "," : "", *c == 'F' ? "full" : "sliding");
            free(list);
            list = longer;
        }
        AUTO_FREE char *text =
            must_format("{\"model_type\":\"qwen2\",\"hidden_size\":64,\"intermediate_size\":100,"
                        "\"num_hidden_layers\":6,\"num_attention_heads\":8,\"num_key_value_heads\":8,"
                        "\"vocab_size\":99,\"max_position_embeddings\":128,\"sliding_window\":9,"
                        "\"use_sliding_window\":true,\"layer_types\":[%s]}",
                        list);
        model_shape s = {0};
        status result = parsed_config(&s, NULL, text);
        assert_int_equal(result, cases[i].full_first < 0 ? STATUS_FAILED : STATUS_OK);
        if (result == STATUS_OK) {
            for (int k = 0; k < 6; k++)
                assert_int_equal(shape_layer(&s, k).window, cases[i].types[k] == 'F' ? 0 : 9);
            assert_int_equal(s.full_first, cases[i].full_first);
            assert_int_equal(s.full_every, cases[i].full_every);
            survives(&s, DTYPE_BF16);
        } else {
            workfolder_message_has("layer_types is [");
        }
        free(list);
    }
}

TEST(a_shape_that_transformers_lacks_is_refused)
{
    char *text = NULL;
    model_shape s = presets_find("llama-160m")->shape, g = presets_find("gpt2-124m")->shape;
    s.logits_scaling = 8;
    assert_int_equal(huggingface_text(&text, &s, DTYPE_FP32, NULL), STATUS_FAILED);
    workfolder_message_has("logits_scaling");
    s.logits_scaling = 0;
    s.attention_cap = 8;
    assert_int_equal(huggingface_text(&text, &s, DTYPE_FP32, NULL), STATUS_FAILED);
    workfolder_message_has("attention_cap");
    s.attention_cap = 0;
    s.logits_cap = 8;
    assert_int_equal(huggingface_text(&text, &s, DTYPE_FP32, NULL), STATUS_FAILED);
    workfolder_message_has("logits_cap");
    s.logits_cap = 0;
    s.unrotated_every = 2;
    assert_int_equal(huggingface_text(&text, &s, DTYPE_FP32, NULL), STATUS_FAILED);
    workfolder_message_has("model.unrotated_every is 2");
    s.unrotated_every = 0;
    s.sliding_window = 100;
    assert_int_equal(huggingface_text(&text, &s, DTYPE_FP32, NULL), STATUS_FAILED);
    workfolder_message_has("model.sliding_window is 100");
    s.architecture = SHAPE_MISTRAL;
    s.full_first = 1;
    assert_int_equal(huggingface_text(&text, &s, DTYPE_FP32, NULL), STATUS_FAILED);
    workfolder_message_has("model.full_first is 1");
    s.full_first = 0;
    assert_int_equal(huggingface_text(&text, &s, DTYPE_FP32, NULL), STATUS_OK);
    free(text);
    text = NULL;
    s = presets_find("mixtral-8x7b")->shape;
    s.dense_layers = 1;
    assert_int_equal(huggingface_text(&text, &s, DTYPE_FP32, NULL), STATUS_FAILED);
    workfolder_message_has("model.dense_layers is 1");
    s.dense_layers = 0;
    s.experts_every = 2;
    assert_int_equal(huggingface_text(&text, &s, DTYPE_FP32, NULL), STATUS_FAILED);
    workfolder_message_has("model.experts_every 2");
    g.kv_heads = 4;
    assert_int_equal(huggingface_text(&text, &g, DTYPE_FP32, NULL), STATUS_FAILED);
    workfolder_message_has("kv_heads");
    g.kv_heads = g.heads;
    g.head_size = 32;
    assert_int_equal(huggingface_text(&text, &g, DTYPE_FP32, NULL), STATUS_FAILED);
    assert_null(text);
}

/* As published: Llama 1 (no kv heads, no theta), Llama 3.1, transformers 5's spelling of it, GPT-2. */
#define SIZES                                                                                                          \
    "\"hidden_size\":64,\"intermediate_size\":100,\"num_hidden_layers\":2,\"num_attention_heads\":8,\"vocab_size\":"   \
    "99,"                                                                                                              \
    "\"max_position_embeddings\":128"
#define KV ",\"num_key_value_heads\":2"
#define SCALING                                                                                                        \
    "\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192"

static const model_shape llama = {.architecture = SHAPE_LLAMA,
                                  .layers = 2,
                                  .heads = 8,
                                  .kv_heads = 8,
                                  .head_size = 8,
                                  .hidden_size = 64,
                                  .ffn_size = 100,
                                  .vocab_size = 99,
                                  .max_sequence = 128,
                                  .rope_theta = 10000,
                                  .norm_epsilon = 1e-6};

static const model_shape gpt2 = {.architecture = SHAPE_GPT2,
                                 .layers = 2,
                                 .heads = 8,
                                 .kv_heads = 8,
                                 .head_size = 8,
                                 .hidden_size = 64,
                                 .ffn_size = 256,
                                 .vocab_size = 99,
                                 .max_sequence = 128,
                                 .tied_embeddings = true,
                                 .norm_epsilon = 1e-5};

static model_shape llama3, mistral, qwen2, qwen3, linear, dynamic, yarn, deepseek, smollm3, phi3, olmo3, olmo3_bases;

static void make_shapes(void)
{
    llama3 = mistral = linear = dynamic = yarn = deepseek = smollm3 = llama;
    llama3.kv_heads = 2;
    llama3.rope_theta = 500000;
    llama3.rope_scaling = (shape_rope_scaling){
        .factor = 8, .low_frequency_factor = 1, .high_frequency_factor = 4, .original_max_sequence = 8192};
    linear.rope_scaling = (shape_rope_scaling){.kind = ROPE_LINEAR, .factor = 2};
    dynamic.rope_scaling = (shape_rope_scaling){.kind = ROPE_DYNAMIC, .factor = 2};
    yarn.rope_scaling = (shape_rope_scaling){.kind = ROPE_YARN,
                                             .factor = 4,
                                             .original_max_sequence = 32,
                                             .beta_fast = 32,
                                             .beta_slow = 1,
                                             .attention_factor = 0.1 * log(4) + 1};
    deepseek.rope_scaling = yarn.rope_scaling;
    deepseek.rope_scaling.attention_factor = (0.1 * 0.5 * log(4) + 1) / (0.1 * 2 * log(4) + 1);
    deepseek.rope_scaling.fractional = true;
    smollm3.architecture = SHAPE_SMOLLM3;
    smollm3.kv_heads = 2;
    smollm3.tied_embeddings = true;
    smollm3.unrotated_every = 2;
    olmo3 = llama;
    olmo3.architecture = SHAPE_OLMO3;
    olmo3.rope_theta = olmo3.rope_local_theta = 500000;
    olmo3.norm_epsilon = 1e-5;
    olmo3.sliding_window = 9;
    olmo3.full_every = 4;
    olmo3_bases = olmo3;
    olmo3_bases.rope_theta = 20000;
    olmo3_bases.rope_local_theta = 3000;
    olmo3_bases.full_every = 2;
    olmo3_bases.rope_scaling = yarn.rope_scaling;
    phi3 = llama;
    phi3.architecture = SHAPE_PHI3;
    phi3.norm_epsilon = 1e-5;
    mistral.architecture = SHAPE_MISTRAL;
    mistral.kv_heads = 2;
    mistral.sliding_window = 4096;
    qwen2 = mistral;
    qwen2.architecture = SHAPE_QWEN2;
    qwen2.sliding_window = 0;
    qwen3 = qwen2;
    qwen3.architecture = SHAPE_QWEN3;
    qwen3.head_size = 16;
    qwen3.sliding_window = 9;
}

static const struct {
    const model_shape *shape;
    const char *text;
} spellings[] = {
    {&llama, "{\"model_type\":\"llama\"," SIZES "}"},
    {&llama,
     "{\"model_type\":\"llama\"," SIZES ",\"rope_scaling\":null,\"num_key_value_heads\":null,\"pretraining_tp\":1}"},
    {&llama, "{\"model_type\":\"llama\"," SIZES ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1e4}}"},
    {&llama, "{\"model_type\":\"llama\"," SIZES ",\"sliding_window\":5,\"architectures\":[\"LlamaModel\"]}"},
    {&llama3, "{\"model_type\":\"llama\"," SIZES KV
              ",\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"llama3\"," SCALING "}}"},
    {&llama3, "{\"model_type\":\"llama\"," SIZES KV
              ",\"rope_theta\":500000,\"rope_scaling\":{\"type\":\"llama3\"," SCALING "}}"},
    {&llama3, "{\"model_type\":\"llama\"," SIZES KV
              ",\"rope_parameters\":{\"rope_type\":\"llama3\",\"rope_theta\":5e5," SCALING "}}"},
    {&linear, "{\"model_type\":\"llama\"," SIZES ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}"},
    {&dynamic, "{\"model_type\":\"llama\"," SIZES ",\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":2.0}}"},
    {&yarn, "{\"model_type\":\"llama\"," SIZES
            ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":32}}"},
    {&yarn, "{\"model_type\":\"llama\"," SIZES ",\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":10000,"
            "\"original_max_position_embeddings\":32,\"truncate\":true}}"}, /* 4 = 128 / 32 */
    {&deepseek, "{\"model_type\":\"llama\"," SIZES ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,"
                "\"original_max_position_embeddings\":32,\"mscale\":0.5,\"mscale_all_dim\":2,\"truncate\":false}}"},
    {&smollm3, "{\"model_type\":\"smollm3\"," SIZES KV ",\"rope_theta\":10000,\"no_rope_layers\":[1,0]}"},
    {&smollm3, "{\"model_type\":\"smollm3\"," SIZES KV ",\"rope_theta\":10000,\"no_rope_layer_interval\":2}"},
    {&olmo3, "{\"model_type\":\"olmo3\"," SIZES ",\"sliding_window\":9,\"rope_theta\":500000}"},
    {&olmo3, "{\"model_type\":\"olmo3\"," SIZES ",\"sliding_window\":9,\"sliding_window_pattern\":2}"},
    {&olmo3_bases, "{\"model_type\":\"olmo3\"," SIZES ",\"sliding_window\":9,\"layer_types\":[\"sliding_attention\","
                   "\"full_attention\"],\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"yarn\",\"factor\":4,"
                   "\"original_max_position_embeddings\":32,\"rope_theta\":20000},\"sliding_attention\":"
                   "{\"rope_type\":\"default\",\"rope_theta\":3000}}}"},
    {&phi3, "{\"model_type\":\"phi3\"," SIZES "}"},          /* whose own default epsilon is 1e-5 */
    {&mistral, "{\"model_type\":\"mistral\"," SIZES KV "}"}, /* transformers' own default window */
    {&mistral, "{\"model_type\":\"mistral\"," SIZES KV ",\"sliding_window\":4096,\"head_dim\":8}"},
    {&qwen2, "{\"model_type\":\"qwen2\"," SIZES KV
             ",\"sliding_window\":131072,\"use_sliding_window\":false,\"max_window_layers\":28}"},
    {&qwen2, "{\"model_type\":\"qwen2\"," SIZES KV
             ",\"sliding_window\":9,\"use_sliding_window\":true,\"max_window_layers\":2}"},
    {&qwen2, "{\"model_type\":\"qwen2\"," SIZES KV ",\"layer_types\":[\"full_attention\",\"full_attention\"]}"},
    {&qwen3, "{\"model_type\":\"qwen3\"," SIZES KV
             ",\"head_dim\":16,\"sliding_window\":9,\"use_sliding_window\":true,\"max_window_layers\":0}"},
    {&qwen3, "{\"model_type\":\"qwen3\"," SIZES KV ",\"head_dim\":16,\"sliding_window\":9,\"use_sliding_window\":true,"
             "\"layer_types\":[\"sliding_attention\",\"sliding_attention\"]}"},
    {&gpt2, "{\"model_type\":\"gpt2\",\"n_ctx\":128,\"n_positions\":128,\"n_embd\":64,\"n_layer\":2,\"n_head\":8,"
            "\"vocab_size\":99}"},
    {&gpt2,
     "{\"model_type\":\"gpt2\",\"n_positions\":128,\"n_embd\":64,\"n_layer\":2,\"n_head\":8,\"vocab_size\":99,"
     "\"n_inner\":null,\"activation_function\":\"gelu_new\",\"scale_attn_weights\":true,\"layer_norm_epsilon\":1e-"
     "05}"},
};

TEST(old_and_new_spellings_mean_the_same)
{
    make_shapes();
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        model_shape s;
        if (parsed_config(&s, NULL, spellings[i].text) != STATUS_OK)
            fail_msg("case %zu: %s", i, status_message());
        assert_same_shape(&s, spellings[i].shape);
    }
}

/* The list of names and the count of parameters are written apart; they agree. */
TEST(the_listed_tensors_are_all_the_parameters)
{
    for (int i = 0; i < presets_count(); i++)
        for (int a = 0; a < SHAPE_ARCHITECTURES; a++) {
            model_shape s = presets_at(i)->shape;
            s.architecture = (shape_architecture)a;
            s.tied_embeddings = (i + a) % 2;
            s.experts = s.shared_experts = 0;
            s.qk_norm = s.qk_norm && shape_has_key(s.architecture, KEY_QK_NORM);
            s.rotary_size = shape_has_key(s.architecture, KEY_LATENT) ? 0 : s.rotary_size;
            give_experts(&s, (i + a) % 8);
            give_latents(&s, (i + a) % 8);
            int count;
            int64_t sum = 0;
            names_tensor *list = names_list(&count, &s);
            for (int k = 0; k < count; k++)
                sum += list[k].shape[0] * (list[k].dims == 2 ? list[k].shape[1] : 1);
            assert_int_equal(sum, parts_parameters(&s));
            names_free(list, count);
        }
}

TEST_MAIN(NULL, NULL)
