#include "models/presets.h"

#include <string.h>

/* Fields that every model has, and then its own. `norm_epsilon` is the last of the numbers. */
#define MODEL(kind, layers_, heads_, kv_heads_, head_, hidden_, ffn_, vocabulary_, sequence_, epsilon_, ...)           \
    {                                                                                                                  \
        .architecture = SHAPE_##kind, .layers = layers_, .heads = heads_, .kv_heads = kv_heads_, .head_size = head_,   \
        .hidden_size = hidden_, .ffn_size = ffn_, .vocab_size = vocabulary_, .max_sequence = sequence_,                \
        .norm_epsilon = epsilon_, __VA_ARGS__                                                                          \
    }

/* `count_` experts of a width, `active_` of them for each token. */
#define EXPERTS(count_, active_, width_)                                                                               \
    .experts = count_, .experts_per_token = active_, .expert_ffn_size = width_, .experts_every = 1,                    \
    .expert_capacity = 1.25, .expert_spill = 2

/* YaRN's scaling of frequencies (2309.00071). */
#define YARN(factor_, original_, fast_, ...)                                                                           \
    .rope_scaling = {.kind = ROPE_YARN,                                                                                \
                     .factor = factor_,                                                                                \
                     .original_max_sequence = original_,                                                               \
                     .beta_fast = fast_,                                                                               \
                     .beta_slow = 1,                                                                                   \
                     __VA_ARGS__}
/* Llama 3's. */
#define STRETCHED(factor_)                                                                                             \
    .rope_scaling = {                                                                                                  \
        .factor = factor_, .low_frequency_factor = 1, .high_frequency_factor = 4, .original_max_sequence = 8192}

/* GPT-2: width and depth change, the rest does not (heads of 64, sequence 1024, 50,257 tokens). */
#define GPT2(layers, heads)                                                                                            \
    MODEL(GPT2, layers, heads, heads, 64, 64 * (heads), 4 * 64 * (heads), 50257, 1024, 1e-5, .tied_embeddings = true,  \
          .rope_theta = 10000)

/* Llama 3: heads of 128, 8 of them for keys and values, 128,256 tokens. */
#define LLAMA3(layers, heads, ffn, sequence, ...)                                                                      \
    MODEL(LLAMA, layers, heads, 8, 128, 128 * (heads), ffn, 128256, sequence, 1e-5, .rope_theta = 500000, __VA_ARGS__)

/* Gemma 2: every second layer sees all tokens; scores and logits are capped. */
#define GEMMA2(layers, hidden, ffn, heads, kv_heads, head, ...)                                                        \
    MODEL(GEMMA2, layers, heads, kv_heads, head, hidden, ffn, 256000, 8192, 1e-6, .tied_embeddings = true,             \
          .rope_theta = 10000, .sliding_window = 4096, .full_every = 2, .attention_cap = 50, .logits_cap = 30,         \
          __VA_ARGS__)

/* Gemma 3: the last layer of each six sees all tokens; embeddings are multiplied by the root of the width. */
#define GEMMA3(layers, hidden, ffn, heads, kv_heads, head, vocabulary, sequence, ...)                                  \
    MODEL(GEMMA3, layers, heads, kv_heads, head, hidden, ffn, vocabulary, sequence, 1e-6, .tied_embeddings = true,     \
          .rope_theta = 1e6, .rope_local_theta = 1e4, .full_every = 6, __VA_ARGS__)
#define GEMMA3_LONG .rope_scaling = {.kind = ROPE_LINEAR, .factor = 8}

/* Granite 3: outputs of attention and mlp are multiplied by 0.22. */
#define GRANITE_SCALED(scores_, logits_)                                                                               \
    .tied_embeddings = true, .embedding_multiplier = 12, .attention_multiplier = scores_, .logits_scaling = logits_
#define GRANITE(hidden, ffn, scores, logits)                                                                           \
    MODEL(GRANITE, 40, 32, 8, (hidden) / 32, hidden, ffn, 49159, 131072, 1e-5, .rope_theta = 1e7,                      \
          .residual_multiplier = 0.22, GRANITE_SCALED(scores, logits))

/* Phi: `kv_heads` keys and values, heads of 96 or 128. */
#define PHI(layers, heads, kv_heads, head, ffn, vocabulary, sequence, ...)                                             \
    MODEL(PHI3, layers, heads, kv_heads, head, (heads) * (head), ffn, vocabulary, sequence, 1e-5, __VA_ARGS__)

/* Pythia (2304.01373): a quarter of each head rotates. */
#define PYTHIA(layers, heads, head, vocabulary)                                                                        \
    MODEL(NEOX, layers, heads, heads, head, (heads) * (head), 4 * (heads) * (head), vocabulary, 2048, 1e-5,            \
          .rope_theta = 10000, .rotary_size = (head) / 4)

/* OLMo 2 and 3 (2501.00656, 2512.13961): heads of 128. */
#define OLMO(kind, layers, heads, kv_heads, ffn, vocabulary, sequence, ...)                                            \
    MODEL(kind, layers, heads, kv_heads, 128, 128 * (heads), ffn, vocabulary, sequence, 1e-6, .rope_theta = 500000,    \
          __VA_ARGS__)
#define OLMO2(layers, heads, kv_heads, ffn)                                                                            \
    OLMO(OLMO2, layers, heads, kv_heads, ffn, 100352, 4096, .tied_embeddings = false)
#define OLMO3(layers, heads, kv_heads, ffn)                                                                            \
    OLMO(OLMO3, layers, heads, kv_heads, ffn, 100278, 65536, .rope_local_theta = 500000, .sliding_window = 4096,       \
         .full_every = 4, YARN(8, 8192, 32, .attention_factor = 1.2079441541679836))

/* Mixtral (2401.04088): two of eight experts. */
#define MIXTRAL(layers, heads, ffn, sequence)                                                                          \
    MODEL(MIXTRAL, layers, heads, 8, 128, 128 * (heads), ffn, 32000, sequence, 1e-5, .rope_theta = 1e6,                \
          .router_renormalise = true, EXPERTS(8, 2, ffn))

/* Qwen3 (2505.09388): eight of 128 experts. */
#define QWEN3_MOE(layers, heads, hidden, ffn, expert)                                                                  \
    MODEL(QWEN3_MOE, layers, heads, 4, 128, hidden, ffn, 151936, 40960, 1e-6, .rope_theta = 1e6,                       \
          .router_renormalise = true, EXPERTS(128, 8, expert))

/* The preset lacks the MTP module. */
#define GLM4_MOE(layers, hidden, ffn, experts, expert, dense, ...)                                                     \
    MODEL(GLM4_MOE, layers, 96, 8, 128, hidden, ffn, 151552, 131072, 1e-5, .rope_theta = 1e6, .rotary_size = 64,       \
          .shared_experts = 1, .dense_layers = dense, .router_renormalise = true, EXPERTS(experts, 8, expert),         \
          __VA_ARGS__)

/* Latent attention (2405.04434, 2412.19437): a latent of 512, heads of 128 and 64 elements that rotate. The presets
 * lack MTP modules. */
#define DEEPSEEK(kind, layers, heads, hidden, ffn, vocabulary, sequence, epsilon, dense, shared, ...)                  \
    MODEL(kind, layers, heads, heads, 192, hidden, ffn, vocabulary, sequence, epsilon, .rope_head_size = 64,           \
          .v_head_size = 128, .kv_lora_rank = 512, .dense_layers = dense, .shared_experts = shared, __VA_ARGS__)
#define DEEPSEEK_YARN(factor, fast, scale)                                                                             \
    YARN(factor, 4096, fast, .mscale = scale, .mscale_all_dim = scale, .attention_factor = 1)

/* GPT-OSS (2508.10925): every second layer sees all tokens. */
#define GPT_OSS(layers, experts)                                                                                       \
    MODEL(GPT_OSS, layers, 64, 8, 64, 2880, 2880, 201088, 131072, 1e-5, .rope_theta = 150000, .sliding_window = 128,   \
          .full_every = 2, .router_renormalise = true, .swiglu_limit = 7, .swiglu_alpha = 1.702,                       \
          EXPERTS(experts, 4, 2880), YARN(32, 4096, 32, .attention_factor = 1.3465735902799727, .fractional = true))

static const preset presets[] = {
    {"gpt2-124m", "GPT-2 small", GPT2(12, 12)},
    {"gpt2-355m", "GPT-2 medium", GPT2(24, 16)},
    {"gpt2-774m", "GPT-2 large", GPT2(36, 20)},
    {"gpt2-1558m", "GPT-2 XL", GPT2(48, 25)},
    /* The smallest Llama that writes a story: trained on TinyStories with Llama 2's vocabulary. */
    {"llama-15m", "stories15M",
     MODEL(LLAMA, 6, 6, 6, 48, 288, 768, 32000, 256, 1e-5, .tied_embeddings = true, .rope_theta = 10000)},
    /* GPT-2 small's width and depth in Llama's architecture, as published for speculative decoding. */
    {"llama-160m", "Llama of 160M (12 layers, hidden 768)",
     MODEL(LLAMA, 12, 12, 12, 64, 768, 3072, 32000, 2048, 1e-6, .rope_theta = 10000)},
    {"llama-1b", "Llama 3.2 1B",
     MODEL(LLAMA, 16, 32, 8, 64, 2048, 8192, 128256, 131072, 1e-5, .tied_embeddings = true, .rope_theta = 500000,
           STRETCHED(32))},
    {"llama-7b", "Llama 2 7B", MODEL(LLAMA, 32, 32, 32, 128, 4096, 11008, 32000, 4096, 1e-5, .rope_theta = 10000)},
    {"llama-8b", "Llama 3 8B", LLAMA3(32, 32, 14336, 8192, .tied_embeddings = false)},
    {"llama-70b", "Llama 3 70B", LLAMA3(80, 64, 28672, 8192, .tied_embeddings = false)},
    /* Published with Llama 3.1 only, so with its long sequence and stretched frequencies. */
    {"llama-405b", "Llama 3.1 405B", LLAMA3(126, 128, 53248, 131072, STRETCHED(8))},
    {"gemma2-2b", "Gemma 2 2B",
     GEMMA2(26, 2304, 9216, 8, 4, 256, .attention_multiplier = 0.0625, .embedding_multiplier = 48)},
    {"gemma2-9b", "Gemma 2 9B",
     GEMMA2(42, 3584, 14336, 16, 8, 256, .attention_multiplier = 0.0625, .embedding_multiplier = 59.86651818838306)},
    /* Its scores are multiplied by 1 / sqrt(hidden_size / heads), the smaller models' by 1 / sqrt(head_size). */
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
    /* Its scores are multiplied by 1 / sqrt(hidden_size / heads), the smaller models' by 1 / sqrt(head_size). */
    {"gemma3-27b", "Gemma 3 27B, its text model",
     GEMMA3(62, 5376, 21504, 32, 16, 128, 262208, 131072, .sliding_window = 1024, GEMMA3_LONG,
            .attention_multiplier = 0.07715167498104596, .embedding_multiplier = 73.32121111929344)},
    {"granite-2b", "Granite 3.3 2B", GRANITE(2048, 8192, 0.015625, 8)},
    {"granite-8b", "Granite 3.3 8B", GRANITE(4096, 12800, 0.0078125, 16)},
    {"smollm3-3b", "SmolLM3 3B",
     MODEL(SMOLLM3, 36, 16, 4, 128, 2048, 11008, 128256, 65536, 1e-6, .tied_embeddings = true, .rope_theta = 5000000,
           .unrotated_every = 4)},
    {"olmo2-1b", "OLMo 2 1B", OLMO2(16, 16, 16, 8192)},
    {"olmo2-7b", "OLMo 2 7B", OLMO2(32, 32, 32, 11008)},
    {"olmo2-13b", "OLMo 2 13B", OLMO2(40, 40, 40, 13824)},
    {"olmo2-32b", "OLMo 2 32B", OLMO2(64, 40, 8, 27648)},
    {"olmo3-7b", "OLMo 3 7B", OLMO3(32, 32, 32, 11008)},
    {"olmo3-32b", "OLMo 3 32B", OLMO3(64, 40, 8, 27648)},
    {"phi3-4b", "Phi-3 mini, 4k tokens",
     PHI(32, 32, 32, 96, 8192, 32064, 4096, .rope_theta = 1e4, .sliding_window = 2047)},
    {"phi4-14b", "Phi-4", PHI(40, 40, 10, 128, 17920, 100352, 16384, .rope_theta = 250000)},
    {"glm4-9b", "GLM-4 9B 0414",
     MODEL(GLM4, 40, 32, 2, 128, 4096, 13696, 151552, 32768, 1e-5, .rope_theta = 10000, .rotary_size = 64)},
    {"mixtral-8x7b", "Mixtral 8x7B", MIXTRAL(32, 32, 14336, 32768)},
    {"mixtral-8x22b", "Mixtral 8x22B", MIXTRAL(56, 48, 16384, 65536)},
    {"qwen3-30b-a3b", "Qwen3 30B, 3.4B of them active", QWEN3_MOE(48, 32, 2048, 6144, 768)},
    {"qwen3-235b-a22b", "Qwen3 235B, 22B of them active", QWEN3_MOE(94, 64, 4096, 12288, 1536)},
    {"glm-4.5-air", "GLM-4.5 Air, 106B, 12B of them active", GLM4_MOE(46, 4096, 10944, 128, 1408, 1, .qk_norm = false)},
    {"glm-4.5", "GLM-4.5, 355B, 32B of them active",
     GLM4_MOE(92, 5120, 12288, 160, 1536, 3, .qk_norm = true, .router_scale = 2.5)},
    {"deepseek-v2-lite", "DeepSeek-V2-Lite, 16B, 2.7B of them active",
     DEEPSEEK(DEEPSEEK_V2, 27, 16, 2048, 10944, 102400, 163840, 1e-6, 1, 2, .rope_theta = 1e4, EXPERTS(64, 6, 1408),
              DEEPSEEK_YARN(40, 32, 0.707))},
    {"moonlight-16b-a3b", "Moonlight, 16B, 2.9B of them active",
     DEEPSEEK(DEEPSEEK_V3, 27, 16, 2048, 11264, 163840, 8192, 1e-5, 1, 2, .rope_theta = 5e4, EXPERTS(64, 6, 1408),
              .router_scale = 2.446, .router_renormalise = true)},
    {"deepseek-v3", "DeepSeek-V3, 671B, 37B of them active",
     DEEPSEEK(DEEPSEEK_V3, 61, 128, 7168, 18432, 129280, 163840, 1e-6, 3, 1, .rope_theta = 1e4, EXPERTS(256, 8, 2048),
              .q_lora_rank = 1536, .router_scale = 2.5, .router_groups = 8, .router_groups_kept = 4,
              .router_renormalise = true, DEEPSEEK_YARN(40, 32, 1))},
    {"kimi-k2", "Kimi-K2, 1,026B, 33B of them active",
     DEEPSEEK(DEEPSEEK_V3, 61, 64, 7168, 18432, 163840, 131072, 1e-6, 1, 1, .rope_theta = 5e4, EXPERTS(384, 8, 2048),
              .q_lora_rank = 1536, .router_scale = 2.827, .router_renormalise = true, DEEPSEEK_YARN(32, 1, 1))},
    {"gpt-oss-20b", "GPT-OSS 20B, 4.2B of them active", GPT_OSS(24, 32)},
    {"gpt-oss-120b", "GPT-OSS 120B, 5.7B of them active", GPT_OSS(36, 128)},
    {"olmoe-1b-7b", "OLMoE 7B, 1.3B of them active",
     MODEL(OLMOE, 16, 16, 16, 128, 2048, 1024, 50304, 4096, 1e-5, .rope_theta = 10000, EXPERTS(64, 8, 1024))},
    {"granite-3b-a800m", "Granite 3.0 3B, 0.9B of them active",
     MODEL(GRANITE_MOE, 32, 24, 8, 64, 1536, 512, 49155, 4096, 1e-6, .rope_theta = 10000, .residual_multiplier = 0.22,
           .router_renormalise = true, EXPERTS(40, 8, 512), GRANITE_SCALED(0.015625, 6))},
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
