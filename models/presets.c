#include "models/presets.h"

#include <string.h>

/* GPT-2: width and depth change, the rest does not (heads of 64, sequence 1024, 50,257 tokens). */
#define GPT2(layers_, heads_)                                                                                          \
    {                                                                                                                  \
        .architecture = SHAPE_GPT2, .layers = layers_, .heads = heads_, .kv_heads = heads_, .head_size = 64,           \
        .hidden_size = 64 * (heads_), .ffn_size = 4 * 64 * (heads_), .vocab_size = 50257, .max_sequence = 1024,        \
        .tied_embeddings = true, .rope_theta = 10000, .norm_epsilon = 1e-5                                             \
    }

/* Llama 3: heads of 128, 8 of them for keys and values, 128,256 tokens. */
#define LLAMA3(layers_, heads_, ffn_, sequence_, ...)                                                                  \
    {                                                                                                                  \
        .architecture = SHAPE_LLAMA, .layers = layers_, .heads = heads_, .kv_heads = 8, .head_size = 128,              \
        .hidden_size = 128 * (heads_), .ffn_size = ffn_, .vocab_size = 128256, .max_sequence = sequence_,              \
        .rope_theta = 500000, .norm_epsilon = 1e-5, __VA_ARGS__                                                        \
    }

/* Gemma 2: every second layer sees all tokens; scores and logits are capped. */
#define GEMMA2(layers_, hidden_, ffn_, heads_, kv_heads_, head_, ...)                                                  \
    {                                                                                                                  \
        .architecture = SHAPE_GEMMA2, .layers = layers_, .heads = heads_, .kv_heads = kv_heads_, .head_size = head_,   \
        .hidden_size = hidden_, .ffn_size = ffn_, .vocab_size = 256000, .max_sequence = 8192, .tied_embeddings = true, \
        .rope_theta = 10000, .norm_epsilon = 1e-6, .sliding_window = 4096, .full_every = 2, .attention_cap = 50,       \
        .logits_cap = 30, __VA_ARGS__                                                                                  \
    }

/* Gemma 3: the last layer of each six sees all tokens; embeddings are multiplied by the root of the width. */
#define GEMMA3(layers_, hidden_, ffn_, heads_, kv_heads_, head_, vocabulary_, sequence_, ...)                          \
    {                                                                                                                  \
        .architecture = SHAPE_GEMMA3, .layers = layers_, .heads = heads_, .kv_heads = kv_heads_, .head_size = head_,   \
        .hidden_size = hidden_, .ffn_size = ffn_, .vocab_size = vocabulary_, .max_sequence = sequence_,                \
        .tied_embeddings = true, .rope_theta = 1e6, .rope_local_theta = 1e4, .norm_epsilon = 1e-6, .full_every = 6,    \
        __VA_ARGS__                                                                                                    \
    }
#define GEMMA3_LONG .rope_scaling = {.kind = ROPE_LINEAR, .factor = 8}

/* Granite 3.3: what attention and mlp add is multiplied by 0.22. */
#define GRANITE(hidden_, ffn_, scores_, logits_)                                                                       \
    {                                                                                                                  \
        .architecture = SHAPE_GRANITE, .layers = 40, .heads = 32, .kv_heads = 8, .head_size = (hidden_) / 32,          \
        .hidden_size = hidden_, .ffn_size = ffn_, .vocab_size = 49159, .max_sequence = 131072,                         \
        .tied_embeddings = true, .rope_theta = 1e7, .norm_epsilon = 1e-5, .embedding_multiplier = 12,                  \
        .residual_multiplier = 0.22, .attention_multiplier = scores_, .logits_scaling = logits_                        \
    }

/* Phi: `kv_heads` keys and values, heads of 96 or 128. */
#define PHI(layers_, heads_, kv_heads_, head_, ffn_, vocabulary_, sequence_, ...)                                      \
    {                                                                                                                  \
        .architecture = SHAPE_PHI3, .layers = layers_, .heads = heads_, .kv_heads = kv_heads_, .head_size = head_,     \
        .hidden_size = (heads_) * (head_), .ffn_size = ffn_, .vocab_size = vocabulary_, .max_sequence = sequence_,     \
        .norm_epsilon = 1e-5, __VA_ARGS__                                                                              \
    }

/* Pythia (2304.01373): a quarter of each head rotates. */
#define PYTHIA(layers_, heads_, head_, vocabulary_)                                                                    \
    {                                                                                                                  \
        .architecture = SHAPE_NEOX, .layers = layers_, .heads = heads_, .kv_heads = heads_, .head_size = head_,        \
        .hidden_size = (heads_) * (head_), .ffn_size = 4 * (heads_) * (head_), .vocab_size = vocabulary_,              \
        .max_sequence = 2048, .rope_theta = 10000, .rotary_size = (head_) / 4, .norm_epsilon = 1e-5                    \
    }

/* OLMo 2 and 3 (2501.00656, 2512.13961): heads of 128. */
#define OLMO(kind, layers_, heads_, kv_heads_, ffn_, vocabulary_, sequence_, ...)                                      \
    {                                                                                                                  \
        .architecture = SHAPE_##kind, .layers = layers_, .heads = heads_, .kv_heads = kv_heads_, .head_size = 128,     \
        .hidden_size = 128 * (heads_), .ffn_size = ffn_, .vocab_size = vocabulary_, .max_sequence = sequence_,         \
        .rope_theta = 500000, .norm_epsilon = 1e-6, __VA_ARGS__                                                        \
    }
#define OLMO2(layers, heads, kv_heads, ffn)                                                                            \
    OLMO(OLMO2, layers, heads, kv_heads, ffn, 100352, 4096, .tied_embeddings = false)
#define OLMO3(layers, heads, kv_heads, ffn)                                                                            \
    OLMO(OLMO3, layers, heads, kv_heads, ffn, 100278, 65536, .rope_local_theta = 500000, .sliding_window = 4096,       \
         .full_every = 4,                                                                                              \
         .rope_scaling = {.kind = ROPE_YARN,                                                                           \
                          .factor = 8,                                                                                 \
                          .original_max_sequence = 8192,                                                               \
                          .beta_fast = 32,                                                                             \
                          .beta_slow = 1,                                                                              \
                          .attention_factor = 1.2079441541679836})

/* Mixtral (2401.04088): two of eight experts. */
#define MIXTRAL(layers_, heads_, ffn_, sequence_)                                                                      \
    {                                                                                                                  \
        .architecture = SHAPE_MIXTRAL, .layers = layers_, .heads = heads_, .kv_heads = 8, .head_size = 128,            \
        .hidden_size = 128 * (heads_), .ffn_size = ffn_, .vocab_size = 32000, .max_sequence = sequence_,               \
        .rope_theta = 1e6, .norm_epsilon = 1e-5, .experts = 8, .experts_per_token = 2, .expert_ffn_size = ffn_,        \
        .router_renormalise = true, .experts_every = 1, .expert_capacity = 1.25, .expert_spill = 2                     \
    }

/* Qwen3 (2505.09388): eight of 128 experts. */
#define QWEN3_MOE(layers_, heads_, hidden_, ffn_, expert_)                                                             \
    {                                                                                                                  \
        .architecture = SHAPE_QWEN3_MOE, .layers = layers_, .heads = heads_, .kv_heads = 4, .head_size = 128,          \
        .hidden_size = hidden_, .ffn_size = ffn_, .vocab_size = 151936, .max_sequence = 40960, .rope_theta = 1e6,      \
        .norm_epsilon = 1e-6, .experts = 128, .experts_per_token = 8, .expert_ffn_size = expert_,                      \
        .router_renormalise = true, .experts_every = 1, .expert_capacity = 1.25, .expert_spill = 2                     \
    }

/* Without the layer that predicts more tokens. */
#define GLM4_MOE(layers_, hidden_, ffn_, experts_, expert_, dense_, ...)                                               \
    {                                                                                                                  \
        .architecture = SHAPE_GLM4_MOE, .layers = layers_, .heads = 96, .kv_heads = 8, .head_size = 128,               \
        .hidden_size = hidden_, .ffn_size = ffn_, .vocab_size = 151552, .max_sequence = 131072, .rope_theta = 1e6,     \
        .rotary_size = 64, .norm_epsilon = 1e-5, .experts = experts_, .experts_per_token = 8,                          \
        .expert_ffn_size = expert_, .shared_experts = 1, .dense_layers = dense_, .router_renormalise = true,           \
        .experts_every = 1, .expert_capacity = 1.25, .expert_spill = 2, __VA_ARGS__                                    \
    }

/* Latent attention (2405.04434, 2412.19437): a latent of 512, heads of 128 and 64 elements that rotate. Without the
 * layers that predict more tokens. */
#define DEEPSEEK(kind, layers_, heads_, hidden_, ffn_, experts_, active_, expert_, shared_, ...)                       \
    {                                                                                                                  \
        .architecture = SHAPE_##kind, .layers = layers_, .heads = heads_, .kv_heads = heads_, .head_size = 192,        \
        .rope_head_size = 64, .v_head_size = 128, .kv_lora_rank = 512, .hidden_size = hidden_, .ffn_size = ffn_,       \
        .experts = experts_, .experts_per_token = active_, .expert_ffn_size = expert_, .shared_experts = shared_,      \
        .experts_every = 1, .expert_capacity = 1.25, .expert_spill = 2, __VA_ARGS__                                    \
    }
#define DEEPSEEK_YARN(factor_, fast, scale)                                                                            \
    .rope_scaling = {.kind = ROPE_YARN,                                                                                \
                     .factor = factor_,                                                                                \
                     .original_max_sequence = 4096,                                                                    \
                     .beta_fast = fast,                                                                                \
                     .beta_slow = 1,                                                                                   \
                     .mscale = scale,                                                                                  \
                     .mscale_all_dim = scale,                                                                          \
                     .attention_factor = 1}

/* GPT-OSS (2508.10925): every second layer sees all tokens. */
#define GPT_OSS(layers_, experts_)                                                                                     \
    {                                                                                                                  \
        .architecture = SHAPE_GPT_OSS, .layers = layers_, .heads = 64, .kv_heads = 8, .head_size = 64,                 \
        .hidden_size = 2880, .ffn_size = 2880, .vocab_size = 201088, .max_sequence = 131072, .rope_theta = 150000,     \
        .rope_scaling = {.kind = ROPE_YARN,                                                                            \
                         .factor = 32,                                                                                 \
                         .original_max_sequence = 4096,                                                                \
                         .beta_fast = 32,                                                                              \
                         .beta_slow = 1,                                                                               \
                         .attention_factor = 1.3465735902799727,                                                       \
                         .fractional = true},                                                                          \
        .norm_epsilon = 1e-5, .sliding_window = 128, .full_every = 2, .experts = experts_, .experts_per_token = 4,     \
        .expert_ffn_size = 2880, .router_renormalise = true, .swiglu_limit = 7, .swiglu_alpha = 1.702,                 \
        .experts_every = 1, .expert_capacity = 1.25, .expert_spill = 2                                                 \
    }

static const preset presets[] = {
    {"gpt2-124m", "GPT-2 small", GPT2(12, 12)},
    {"gpt2-355m", "GPT-2 medium", GPT2(24, 16)},
    {"gpt2-774m", "GPT-2 large", GPT2(36, 20)},
    {"gpt2-1558m", "GPT-2 XL", GPT2(48, 25)},
    /* The smallest Llama that tells a story: trained on TinyStories with Llama 2's vocabulary. */
    {"llama-15m",
     "stories15M",
     {.architecture = SHAPE_LLAMA,
      .layers = 6,
      .heads = 6,
      .kv_heads = 6,
      .head_size = 48,
      .hidden_size = 288,
      .ffn_size = 768,
      .vocab_size = 32000,
      .max_sequence = 256,
      .tied_embeddings = true,
      .rope_theta = 10000,
      .norm_epsilon = 1e-5}},
    /* GPT-2 small's width and depth in Llama's architecture, as published for speculative decoding. */
    {"llama-160m",
     "Llama of 160M (12 layers, hidden 768)",
     {.architecture = SHAPE_LLAMA,
      .layers = 12,
      .heads = 12,
      .kv_heads = 12,
      .head_size = 64,
      .hidden_size = 768,
      .ffn_size = 3072,
      .vocab_size = 32000,
      .max_sequence = 2048,
      .rope_theta = 10000,
      .norm_epsilon = 1e-6}},
    {"llama-1b",
     "Llama 3.2 1B",
     {.architecture = SHAPE_LLAMA,
      .layers = 16,
      .heads = 32,
      .kv_heads = 8,
      .head_size = 64,
      .hidden_size = 2048,
      .ffn_size = 8192,
      .vocab_size = 128256,
      .max_sequence = 131072,
      .tied_embeddings = true,
      .rope_theta = 500000,
      .rope_scaling =
          {.factor = 32, .low_frequency_factor = 1, .high_frequency_factor = 4, .original_max_sequence = 8192},
      .norm_epsilon = 1e-5}},
    {"llama-7b",
     "Llama 2 7B",
     {.architecture = SHAPE_LLAMA,
      .layers = 32,
      .heads = 32,
      .kv_heads = 32,
      .head_size = 128,
      .hidden_size = 4096,
      .ffn_size = 11008,
      .vocab_size = 32000,
      .max_sequence = 4096,
      .rope_theta = 10000,
      .norm_epsilon = 1e-5}},
    {"llama-8b", "Llama 3 8B", LLAMA3(32, 32, 14336, 8192, .tied_embeddings = false)},
    {"llama-70b", "Llama 3 70B", LLAMA3(80, 64, 28672, 8192, .tied_embeddings = false)},
    /* Published with Llama 3.1 only, so with its long sequence and stretched frequencies. */
    {"llama-405b", "Llama 3.1 405B",
     LLAMA3(126, 128, 53248, 131072,
            .rope_scaling =
                {.factor = 8, .low_frequency_factor = 1, .high_frequency_factor = 4, .original_max_sequence = 8192})},
    {"gemma2-2b", "Gemma 2 2B",
     GEMMA2(26, 2304, 9216, 8, 4, 256, .attention_multiplier = 0.0625, .embedding_multiplier = 48)},
    {"gemma2-9b", "Gemma 2 9B",
     GEMMA2(42, 3584, 14336, 16, 8, 256, .attention_multiplier = 0.0625, .embedding_multiplier = 59.86651818838306)},
    /* Its scores are multiplied by 1 / sqrt(hidden_size / heads), those of the smaller ones by 1 / sqrt(head_size). */
    {"gemma2-27b", "Gemma 2 27B",
     GEMMA2(46, 4608, 36864, 32, 16, 128, .attention_multiplier = 0.08333333333333333,
            .embedding_multiplier = 67.88225099390856)},
    {"gemma3-1b", "Gemma 3 1B",
     GEMMA3(26, 1152, 6912, 4, 1, 256, 262144, 32768, .sliding_window = 512, .embedding_multiplier = 33.94112549695428,
            .attention_multiplier = 0.0625)},
    {"gemma3-4b", "Gemma 3 4B, its text model",
     GEMMA3(34, 2560, 10240, 8, 4, 256, 262208, 131072, .sliding_window = 1024, GEMMA3_LONG,
            .embedding_multiplier = 50.59644256269407, .attention_multiplier = 0.0625)},
    {"gemma3-12b", "Gemma 3 12B, its text model",
     GEMMA3(48, 3840, 15360, 16, 8, 256, 262208, 131072, .sliding_window = 1024, GEMMA3_LONG,
            .embedding_multiplier = 61.96773353931867, .attention_multiplier = 0.0625)},
    /* Its scores are multiplied by 1 / sqrt(hidden_size / heads), those of the smaller ones by 1 / sqrt(head_size). */
    {"gemma3-27b", "Gemma 3 27B, its text model",
     GEMMA3(62, 5376, 21504, 32, 16, 128, 262208, 131072, .sliding_window = 1024, GEMMA3_LONG,
            .attention_multiplier = 0.07715167498104596, .embedding_multiplier = 73.32121111929344)},
    {"granite-2b", "Granite 3.3 2B", GRANITE(2048, 8192, 0.015625, 8)},
    {"granite-8b", "Granite 3.3 8B", GRANITE(4096, 12800, 0.0078125, 16)},
    {"smollm3-3b",
     "SmolLM3 3B",
     {.architecture = SHAPE_SMOLLM3,
      .layers = 36,
      .heads = 16,
      .kv_heads = 4,
      .head_size = 128,
      .hidden_size = 2048,
      .ffn_size = 11008,
      .vocab_size = 128256,
      .max_sequence = 65536,
      .tied_embeddings = true,
      .rope_theta = 5000000,
      .unrotated_every = 4,
      .norm_epsilon = 1e-6}},
    {"olmo2-1b", "OLMo 2 1B", OLMO2(16, 16, 16, 8192)},
    {"olmo2-7b", "OLMo 2 7B", OLMO2(32, 32, 32, 11008)},
    {"olmo2-13b", "OLMo 2 13B", OLMO2(40, 40, 40, 13824)},
    {"olmo2-32b", "OLMo 2 32B", OLMO2(64, 40, 8, 27648)},
    {"olmo3-7b", "OLMo 3 7B", OLMO3(32, 32, 32, 11008)},
    {"olmo3-32b", "OLMo 3 32B", OLMO3(64, 40, 8, 27648)},
    {"phi3-4b", "Phi-3 mini, 4k tokens",
     PHI(32, 32, 32, 96, 8192, 32064, 4096, .rope_theta = 1e4, .sliding_window = 2047)},
    {"phi4-14b", "Phi-4", PHI(40, 40, 10, 128, 17920, 100352, 16384, .rope_theta = 250000)},
    {"glm4-9b",
     "GLM-4 9B 0414",
     {.architecture = SHAPE_GLM4,
      .layers = 40,
      .heads = 32,
      .kv_heads = 2,
      .head_size = 128,
      .hidden_size = 4096,
      .ffn_size = 13696,
      .vocab_size = 151552,
      .max_sequence = 32768,
      .rope_theta = 10000,
      .rotary_size = 64,
      .norm_epsilon = 1e-5}},
    {"mixtral-8x7b", "Mixtral 8x7B", MIXTRAL(32, 32, 14336, 32768)},
    {"mixtral-8x22b", "Mixtral 8x22B", MIXTRAL(56, 48, 16384, 65536)},
    {"qwen3-30b-a3b", "Qwen3 30B, 3.4B of them active", QWEN3_MOE(48, 32, 2048, 6144, 768)},
    {"qwen3-235b-a22b", "Qwen3 235B, 22B of them active", QWEN3_MOE(94, 64, 4096, 12288, 1536)},
    {"glm-4.5-air", "GLM-4.5 Air, 106B, 12B of them active", GLM4_MOE(46, 4096, 10944, 128, 1408, 1, .qk_norm = false)},
    {"glm-4.5", "GLM-4.5, 355B, 32B of them active",
     GLM4_MOE(92, 5120, 12288, 160, 1536, 3, .qk_norm = true, .router_scale = 2.5)},
    {"deepseek-v2-lite", "DeepSeek-V2-Lite, 16B, 2.7B of them active",
     DEEPSEEK(DEEPSEEK_V2, 27, 16, 2048, 10944, 64, 6, 1408, 2, .dense_layers = 1, .vocab_size = 102400,
              .max_sequence = 163840, .rope_theta = 1e4, .norm_epsilon = 1e-6, DEEPSEEK_YARN(40, 32, 0.707))},
    {"moonlight-16b-a3b", "Moonlight, 16B, 2.9B of them active",
     DEEPSEEK(DEEPSEEK_V3, 27, 16, 2048, 11264, 64, 6, 1408, 2, .dense_layers = 1, .vocab_size = 163840,
              .max_sequence = 8192, .rope_theta = 5e4, .norm_epsilon = 1e-5, .router_scale = 2.446,
              .router_renormalise = true)},
    {"deepseek-v3", "DeepSeek-V3, 671B, 37B of them active",
     DEEPSEEK(DEEPSEEK_V3, 61, 128, 7168, 18432, 256, 8, 2048, 1, .q_lora_rank = 1536, .dense_layers = 3,
              .vocab_size = 129280, .max_sequence = 163840, .rope_theta = 1e4, .norm_epsilon = 1e-6,
              .router_scale = 2.5, .router_groups = 8, .router_groups_kept = 4, .router_renormalise = true,
              DEEPSEEK_YARN(40, 32, 1))},
    {"kimi-k2", "Kimi-K2, 1,026B, 33B of them active",
     DEEPSEEK(DEEPSEEK_V3, 61, 64, 7168, 18432, 384, 8, 2048, 1, .q_lora_rank = 1536, .dense_layers = 1,
              .vocab_size = 163840, .max_sequence = 131072, .rope_theta = 5e4, .norm_epsilon = 1e-6,
              .router_scale = 2.827, .router_renormalise = true, DEEPSEEK_YARN(32, 1, 1))},
    {"gpt-oss-20b", "GPT-OSS 20B, 4.2B of them active", GPT_OSS(24, 32)},
    {"gpt-oss-120b", "GPT-OSS 120B, 5.7B of them active", GPT_OSS(36, 128)},
    {"olmoe-1b-7b",
     "OLMoE 7B, 1.3B of them active",
     {.architecture = SHAPE_OLMOE,
      .layers = 16,
      .heads = 16,
      .kv_heads = 16,
      .head_size = 128,
      .hidden_size = 2048,
      .ffn_size = 1024,
      .vocab_size = 50304,
      .max_sequence = 4096,
      .rope_theta = 10000,
      .norm_epsilon = 1e-5,
      .experts = 64,
      .experts_per_token = 8,
      .expert_ffn_size = 1024,
      .experts_every = 1,
      .expert_capacity = 1.25,
      .expert_spill = 2}},
    {"granite-3b-a800m",
     "Granite 3.0 3B, 0.9B of them active",
     {.architecture = SHAPE_GRANITE_MOE,
      .layers = 32,
      .heads = 24,
      .kv_heads = 8,
      .head_size = 64,
      .hidden_size = 1536,
      .ffn_size = 512,
      .vocab_size = 49155,
      .max_sequence = 4096,
      .tied_embeddings = true,
      .rope_theta = 10000,
      .norm_epsilon = 1e-6,
      .embedding_multiplier = 12,
      .residual_multiplier = 0.22,
      .attention_multiplier = 0.015625,
      .logits_scaling = 6,
      .experts = 40,
      .experts_per_token = 8,
      .expert_ffn_size = 512,
      .router_renormalise = true,
      .experts_every = 1,
      .expert_capacity = 1.25,
      .expert_spill = 2}},
    {"pythia-160m", "Pythia 160M", PYTHIA(12, 12, 64, 50304)},
    {"pythia-1b", "Pythia 1.4B", PYTHIA(24, 16, 128, 50304)},
    {"pythia-7b", "Pythia 6.9B", PYTHIA(32, 32, 128, 50432)},
    {"pythia-12b", "Pythia 12B", PYTHIA(36, 40, 128, 50688)},
};

int presets_count(void)
{
    return (int)(sizeof presets / sizeof *presets);
}

const preset *presets_at(int index)
{
    return &presets[index];
}

const preset *presets_find(const char *name)
{
    for (int i = 0; i < presets_count(); i++)
        if (strcmp(presets[i].name, name) == 0)
            return &presets[i];
    return NULL;
}
