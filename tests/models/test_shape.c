/* The shapes of models: published parameter counts, and impossible sizes refused by name. */
#include <string.h>

#include "models/parts.h"
#include "models/presets.h"
#include "tests/test.h"

TEST(presets_have_the_published_number_of_parameters)
{
    static const struct {
        const char *name;
        int64_t parameters;
    } published[] = {
        {"gpt2-124m", 124439808},          {"gpt2-355m", 354823168},
        {"gpt2-774m", 774030080},          {"gpt2-1558m", 1557611200},
        {"llama-15m", 15191712},           {"llama-160m", 162417408},
        {"llama-1b", 1235814400},          {"llama-7b", 6738415616},
        {"llama-8b", 8030261248},          {"llama-70b", 70553706496},
        {"llama-405b", 405853388800},      {"smollm3-3b", 3075098624},
        {"gemma2-2b", 2614341888},         {"gemma2-9b", 9241705984},
        {"gemma2-27b", 27227128320},       {"gemma3-1b", 999885952},
        {"gemma3-4b", 3880263168},         {"gemma3-12b", 11766034176},
        {"gemma3-27b", 27009346304},       {"granite-2b", 2533539840},
        {"granite-8b", 8170864640},        {"olmo2-1b", 1484916736},
        {"olmo2-7b", 7298617344},          {"olmo2-13b", 13716198400},
        {"olmo2-32b", 32234279936},        {"olmo3-7b", 7298011136},
        {"olmo3-32b", 32233522176},        {"phi3-4b", 3821079552},
        {"phi4-14b", 14659507200},         {"glm4-9b", 9400279040},
        {"pythia-160m", 162322944},        {"pythia-1b", 1414647808},
        {"pythia-7b", 6857302016},         {"pythia-12b", 11846072320},
        {"mixtral-8x7b", 46702792704},     {"mixtral-8x22b", 140620634112},
        {"qwen3-30b-a3b", 30532122624},    {"qwen3-235b-a22b", 235093634560},
        {"olmoe-1b-7b", 6919161856},       {"granite-3b-a800m", 3298793472},
        {"glm-4.5-air", 106852251264},     {"glm-4.5", 352797829024},
        {"deepseek-v2-lite", 15706484224}, {"moonlight-16b-a3b", 15960110208},
        {"deepseek-v3", 671026419200},     {"kimi-k2", 1026408232448},
        {"gpt-oss-20b", 20914757184},      {"gpt-oss-120b", 116829156672},
    };
    int count = (int)(sizeof published / sizeof *published);
    assert_int_equal(count, presets_count());
    for (int i = 0; i < count; i++) {
        const preset *p = presets_find(published[i].name);
        assert_non_null(p);
        assert_int_equal(parts_parameters(&p->shape), published[i].parameters);
    }
    assert_null(presets_find("llama-9b"));
}

/* What transformers' models have but for the experts that a token does not pass. */
TEST(of_the_experts_a_tokens_are_active)
{
    static const struct {
        const char *name;
        int64_t active;
    } presets[] = {
        {"mixtral-8x7b", 12879925248},    {"mixtral-8x22b", 39152031744},    {"qwen3-30b-a3b", 3353032704},
        {"qwen3-235b-a22b", 22190763520}, {"olmoe-1b-7b", 1282017280},       {"granite-3b-a800m", 882874368},
        {"llama-8b", 8030261248},         {"glm-4.5-air", 13424129664},      {"glm-4.5", 33632266144},
        {"deepseek-v2-lite", 2661150208}, {"moonlight-16b-a3b", 2914776192}, {"deepseek-v3", 37552297472},
        {"kimi-k2", 32861500928},
    };
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        assert_int_equal(parts_active_parameters(&presets_find(presets[i].name)->shape), presets[i].active);
    model_shape s = presets_find("qwen3-30b-a3b")->shape;
    const int64_t expert = 3 * s.hidden_size * s.expert_ffn_size, mlp = 3 * s.hidden_size * s.ffn_size;
    const int64_t all = parts_active_parameters(&s), router = s.experts * s.hidden_size;
    s.dense_layers = 1;
    s.experts_every = 6; /* layers 5, 11, ... of 48 */
    assert_int_equal(parts_active_parameters(&s), all + 40 * (mlp - router - 8 * expert));
}

/* The block behind the last layer is one more like it, with a matrix of [hidden, 2 hidden] and three norms. */
TEST(a_block_behind_the_last_layer_counts_as_one)
{
    model_shape air = presets_find("glm-4.5-air")->shape, longer = air;
    longer.layers++;
    air.mtp_layers = 1;
    assert_int_equal(parts_parameters(&air),
                     parts_parameters(&longer) + 2 * air.hidden_size * air.hidden_size + 3 * air.hidden_size);
    assert_int_equal(shape_routers(&air), shape_routers(&longer));
    assert_int_equal(shape_blocks(&air), longer.layers);
}

TEST(presets_are_possible_and_complete)
{
    for (int i = 0; i < presets_count(); i++) {
        model_shape filled = presets_at(i)->shape;
        assert_int_equal(shape_check(&filled), STATUS_OK);
        shape_fill(&filled);
        assert_memory_equal(&filled, &presets_at(i)->shape, sizeof filled);
    }
}

/* Qwen2.5-0.5B and Qwen3-0.6B: the published sizes with biases, tied embeddings, and heads wider than hidden /
 * heads. */
TEST(traits_count_biases_and_head_norms)
{
    model_shape qwen2 = {.architecture = SHAPE_QWEN2,
                         .layers = 24,
                         .heads = 14,
                         .kv_heads = 2,
                         .head_size = 64,
                         .hidden_size = 896,
                         .ffn_size = 4864,
                         .vocab_size = 151936,
                         .max_sequence = 32768,
                         .tied_embeddings = true};
    assert_int_equal(parts_parameters(&qwen2), 494032768);
    model_shape qwen3 = {.architecture = SHAPE_QWEN3,
                         .layers = 28,
                         .heads = 16,
                         .kv_heads = 8,
                         .head_size = 128,
                         .hidden_size = 1024,
                         .ffn_size = 3072,
                         .vocab_size = 151936,
                         .max_sequence = 40960,
                         .tied_embeddings = true};
    assert_int_equal(parts_parameters(&qwen3), 596049920);
    model_shape starcoder2 = {.architecture = SHAPE_STARCODER2,
                              .layers = 30,
                              .heads = 24,
                              .kv_heads = 2,
                              .head_size = 128,
                              .hidden_size = 3072,
                              .ffn_size = 12288,
                              .vocab_size = 49152,
                              .max_sequence = 16384,
                              .tied_embeddings = true};
    assert_int_equal(parts_parameters(&starcoder2), 3030371328); /* starcoder2-3b, as published */
    model_shape granite = {.architecture = SHAPE_GRANITE,
                           .layers = 40,
                           .heads = 32,
                           .kv_heads = 8,
                           .head_size = 64,
                           .hidden_size = 2048,
                           .ffn_size = 8192,
                           .vocab_size = 49155,
                           .max_sequence = 4096,
                           .tied_embeddings = true};
    assert_int_equal(parts_parameters(&granite), 2533531648); /* granite-3.0-2b: "2.53B" */
    model_shape mistral = {.architecture = SHAPE_MISTRAL,
                           .layers = 32,
                           .heads = 32,
                           .kv_heads = 8,
                           .head_size = 128,
                           .hidden_size = 4096,
                           .ffn_size = 14336,
                           .vocab_size = 32000,
                           .max_sequence = 32768};
    assert_int_equal(parts_parameters(&mistral), 7241732096);
}

TEST(architectures_are_found_by_name)
{
    for (int a = 0; a < SHAPE_ARCHITECTURES; a++)
        assert_int_equal(shape_architecture_named(shape_traits_of((shape_architecture)a)->name), a);
    assert_int_equal(shape_architecture_named("bert"), SHAPE_ARCHITECTURES);
}

TEST(what_is_left_out_is_filled_in)
{
    model_shape s = {.architecture = SHAPE_LLAMA, .layers = 1, .heads = 32, .hidden_size = 4096};
    shape_fill(&s);
    assert_int_equal(s.head_size, 128);
    assert_int_equal(s.kv_heads, 32);
    assert_int_equal(s.ffn_size, 11008);
    s = (model_shape){.architecture = SHAPE_GPT2, .layers = 1, .heads = 12, .hidden_size = 768};
    shape_fill(&s);
    assert_int_equal(s.ffn_size, 3072);
}

typedef struct impossible {
    const char *message;
    void (*spoil)(model_shape *);
} impossible;

static void no_layers(model_shape *s)
{
    s->layers = 0;
}

static void odd_kv_heads(model_shape *s)
{
    s->kv_heads = 5;
}

static void uneven_heads(model_shape *s)
{
    s->heads = s->kv_heads = 3;
    s->head_size = 0;
    shape_fill(s);
}

static void odd_head(model_shape *s)
{
    s->head_size = 63;
}

static void huge_heads(model_shape *s)
{
    s->heads = s->kv_heads = 1 << 16;
    s->head_size = 1 << 12;
}

static void negative_window(model_shape *s)
{
    s->sliding_window = -1;
}

static void no_theta(model_shape *s)
{
    s->rope_theta = 0;
}

static void small_factor(model_shape *s)
{
    s->rope_scaling.factor = 0.5;
}

static void crossed_factors(model_shape *s)
{
    s->rope_scaling = (shape_rope_scaling){
        .factor = 8, .low_frequency_factor = 4, .high_frequency_factor = 1, .original_max_sequence = 8192};
}

static void no_original(model_shape *s)
{
    s->rope_scaling = (shape_rope_scaling){.factor = 8, .low_frequency_factor = 1, .high_frequency_factor = 4};
}

static void negative_epsilon(model_shape *s)
{
    s->norm_epsilon = -1;
}

static void certain_dropout(model_shape *s)
{
    s->dropout = 1;
}

static void many_experts(model_shape *s)
{
    s->experts = 513;
}

static void stray_latent(model_shape *s)
{
    s->kv_lora_rank = 512;
}

static void stray_bias(model_shape *s)
{
    s->attention_bias = true;
}

static void no_latent(model_shape *s)
{
    *s = presets_find("deepseek-v3")->shape;
    s->kv_lora_rank = 0;
}

static void wide_rope(model_shape *s)
{
    *s = presets_find("deepseek-v3")->shape;
    s->rope_head_size = 192;
}

static void shared_keys(model_shape *s)
{
    *s = presets_find("deepseek-v3")->shape;
    s->kv_heads = 8;
}

static void many_active(model_shape *s)
{
    s->experts = 64;
    s->experts_per_token = 33;
}

TEST(impossible_sizes_are_refused_by_name)
{
    static const impossible cases[] = {
        {"model.layers is 0: it must be from 1 to 16384", no_layers},
        {"model.heads 32 must be a multiple of model.kv_heads 5", odd_kv_heads},
        {"model.hidden_size 4096 is not a multiple of model.heads 3: change one, or set model.head_size", uneven_heads},
        {"model.head_size is 63: rotary positions need an even size", odd_head},
        {"model.heads 65536 x model.head_size 4096 must be at most 16777216", huge_heads},
        {"model.experts is 513: it must be from 0 to 512", many_experts},
        {"model.experts_per_token is 33: it must be from 0 to 32", many_active},
        {"model.kv_lora_rank is 512, q_lora_rank 0, rope_head_size 0 and v_head_size 0: llama has no latent attention; "
         "leave them out, or choose deepseek_v2 or deepseek_v3 as model.architecture",
         stray_latent},
        {"model.attention_bias is true: of llama it is fixed which products have biases; leave it out, or choose "
         "deepseek_v2 or deepseek_v3 as model.architecture",
         stray_bias},
        {"model.kv_lora_rank is 0: deepseek_v3 needs at least 1", no_latent},
        {"model.rope_head_size is 192: it must be even, from 2, and below model.head_size 192, which counts the "
         "elements "
         "that rotate and those that do not",
         wide_rope},
        {"model.kv_heads is 8: in latent attention every one of model.heads 128 has a key of its own; leave it out",
         shared_keys},
        {"model.sliding_window is -1: it must be from 0 to 1073741824", negative_window},
        {"model.rope_theta is 0: it must be positive", no_theta},
        {"model.rope_scaling.factor is 0.5: it must be at least 1, or 0 for none", small_factor},
        {"model.rope_scaling: low_frequency_factor 4 must be positive and below high_frequency_factor 1",
         crossed_factors},
        {"model.rope_scaling.original_max_sequence is 0: give the sequence length before scaling", no_original},
        {"model.norm_epsilon is -1: it must be above 0 and below 1", negative_epsilon},
        {"train.dropout is 1: it must be at least 0 and below 1", certain_dropout},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model_shape s = presets_find("llama-8b")->shape;
        cases[i].spoil(&s);
        assert_int_equal(shape_check(&s), STATUS_USAGE);
        assert_string_equal(status_message(), cases[i].message);
    }
}

/* The limits of shape_check are there so that this cannot overflow: the largest shape that passes still counts. */
TEST(the_largest_possible_shape_counts_without_overflow)
{
    model_shape s = {.architecture = SHAPE_LLAMA,
                     .layers = 1 << 14,
                     .heads = 1 << 16,
                     .kv_heads = 1 << 16,
                     .head_size = 1 << 8,
                     .hidden_size = 1 << 20,
                     .ffn_size = 1 << 24,
                     .vocab_size = INT32_MAX,
                     .max_sequence = 1 << 30,
                     .rope_theta = 1,
                     .norm_epsilon = 1e-5};
    assert_int_equal(shape_check(&s), STATUS_OK);
    long double expected =
        16384.0L * (7.0L * 1048576 * 16777216 + 2.0L * 1048576) + 2.0L * INT32_MAX * 1048576 + 1048576;
    assert_true((long double)parts_parameters(&s) == expected);
    s.architecture = SHAPE_MIXTRAL;
    s.experts = 1 << 9;
    s.experts_per_token = s.experts_every = 1;
    s.expert_ffn_size = 1 << 15;
    assert_int_equal(shape_check(&s), STATUS_OK);
    expected += 16384.0L * 512 * 1048576; /* routers */
    assert_true((long double)parts_parameters(&s) == expected);
    s.expert_ffn_size++;
    assert_int_equal(shape_check(&s), STATUS_USAGE);
    assert_string_equal(status_message(), "model.experts 512 x model.expert_ffn_size 32769 must be at most 16777216");
}

TEST_MAIN(NULL, NULL)
