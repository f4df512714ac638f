/* The models of the matrix of layouts: see layouts.h. */
#include <string.h>

#include "memory/log.h"
#include "tests/jobs/layouts.h"

#define LATENT                                                                                                         \
    "architecture: deepseek_v3, layers: 6, hidden_size: 48, heads: 12, head_size: 10, rope_head_size: 4, "             \
    "v_head_size: "                                                                                                    \
    "7, kv_lora_rank: 18, q_lora_rank: 22, ffn_size: 100, shared_experts: 1, router_scale: 1.75, "

/* Widths that no tensor size divides (ffn 100, vocabulary 131); key/value heads fewer than ranks (llama's 2 on 4 and 6
 * ranks, tied's 3 on 6); eight layers where four stages hold two runs each. */
static const layouts_model models[] = {
    {"gpt2", "architecture: gpt2, layers: 6, hidden_size: 48, heads: 12", "", NULL},
    {"llama",
     "architecture: llama, layers: 8, hidden_size: 48, heads: 12, head_size: 8, kv_heads: 2, ffn_size: 100, "
     "tied_embeddings: false",
     "", NULL},
    {"tied",
     "architecture: llama, layers: 6, hidden_size: 48, heads: 12, head_size: 8, kv_heads: 3, ffn_size: 100, "
     "tied_embeddings: true",
     "", NULL},
    {"qwen2",
     "architecture: qwen2, layers: 6, hidden_size: 48, heads: 12, head_size: 8, kv_heads: 4, ffn_size: 100, "
     "tied_embeddings: true",
     "", NULL},
    {"qwen3", "architecture: qwen3, layers: 6, hidden_size: 48, heads: 12, head_size: 8, kv_heads: 6, ffn_size: 100",
     "", NULL},
    {"mistral",
     "architecture: mistral, layers: 6, hidden_size: 64, heads: 12, head_size: 8, kv_heads: 3, ffn_size: 112, "
     "sliding_window: 9",
     "", NULL},
    {"gemma2",
     "architecture: gemma2, layers: 6, hidden_size: 48, heads: 6, head_size: 8, kv_heads: 3, ffn_size: 100, "
     "sliding_window: 9, full_every: 2, norm_epsilon: 1e-3, attention_cap: 0.5, logits_cap: 0.75",
     "", NULL},
    {"gemma3",
     "architecture: gemma3_text, layers: 6, hidden_size: 48, heads: 6, head_size: 8, kv_heads: 3, ffn_size: 100, "
     "sliding_window: 9, full_every: 3, rope_local_theta: 1000, norm_epsilon: 1e-3, rope_scaling: {kind: linear, "
     "factor: 4}",
     "", NULL},
    {"granite",
     "architecture: granite, layers: 6, hidden_size: 48, heads: 12, head_size: 8, kv_heads: 2, ffn_size: 100, "
     "embedding_multiplier: 6, residual_multiplier: 0.4, attention_multiplier: 0.2, logits_scaling: 3, "
     "tied_embeddings: true",
     "", NULL},
    {"glm4",
     "architecture: glm4, layers: 6, hidden_size: 48, heads: 12, head_size: 8, kv_heads: 2, ffn_size: 100, "
     "rotary_size: 4, norm_epsilon: 1e-3",
     "", NULL},
    {"neox",
     "architecture: gpt_neox, layers: 6, hidden_size: 48, heads: 12, head_size: 8, ffn_size: 100, rotary_size: 2", "",
     NULL},
    {"olmo2",
     "architecture: olmo2, layers: 6, hidden_size: 48, heads: 12, head_size: 8, kv_heads: 2, ffn_size: 100, "
     "norm_epsilon: 1e-3",
     "", NULL},
    {"olmo3",
     "architecture: olmo3, layers: 6, hidden_size: 48, heads: 6, head_size: 8, kv_heads: 3, ffn_size: 100, "
     "sliding_window: 9, full_every: 3, rope_theta: 1000, rope_scaling: {kind: yarn, factor: 4}, norm_epsilon: 1e-3",
     "", NULL},
    {"phi3",
     "architecture: phi3, layers: 6, hidden_size: 48, heads: 12, head_size: 8, kv_heads: 2, ffn_size: 100, "
     "sliding_window: 9, rotary_size: 6, rope_scaling: {kind: longrope, factor: 4, short_factor: [1, 1, 2], "
     "long_factor: [1, 2, 5]}",
     "", NULL},
    {"smollm3",
     "architecture: smollm3, layers: 6, hidden_size: 48, heads: 12, head_size: 8, kv_heads: 2, ffn_size: 100, "
     "unrotated_every: 3, rope_scaling: {kind: yarn, factor: 4}",
     "", NULL},
    {"mixtral",
     "architecture: mixtral, layers: 6, hidden_size: 48, heads: 12, head_size: 8, kv_heads: 2, ffn_size: 100, experts: "
     "6, expert_ffn_size: 20, router_loss: 0.1, router_z_loss: 0.01",
     "", NULL},
    {"experts",
     "architecture: mixtral, layers: 8, hidden_size: 48, heads: 6, head_size: 8, kv_heads: 3, ffn_size: 100, experts: "
     "7, experts_per_token: 3, expert_ffn_size: 28, dense_layers: 1, experts_every: 2, router_loss: 0.1",
     "data.document_mask=true train.dropout=0.1", NULL},
    {"batch",
     "architecture: mixtral, layers: 6, hidden_size: 48, heads: 12, head_size: 8, kv_heads: 2, ffn_size: 100, experts: "
     "6, expert_ffn_size: 20, router_loss: 0.3, router_loss_over: batch",
     "", NULL},
    {"shared",
     "architecture: glm4_moe, layers: 6, hidden_size: 48, heads: 12, head_size: 8, kv_heads: 2, ffn_size: 100, "
     "experts: 6, expert_ffn_size: 22, shared_experts: 2, dense_layers: 1, router_scale: 1.75, router_groups: 3, "
     "router_groups_kept: 2, qk_norm: true, rotary_size: 4, router_bias_rate: 0.03, router_loss: 0.1",
     "", NULL},
    {"gpt-oss",
     "architecture: gpt_oss, layers: 6, hidden_size: 48, heads: 12, head_size: 8, kv_heads: 2, experts: 6, "
     "expert_ffn_size: 22, swiglu_limit: 0.1, sliding_window: 9, full_every: 2, router_loss: 0.1",
     "", NULL},
    {"gpt-oss-48",
     "architecture: gpt_oss, layers: 4, hidden_size: 48, heads: 12, head_size: 8, kv_heads: 2, experts: 5, "
     "expert_ffn_size: 18, swiglu_limit: 0.1, sliding_window: 9, full_every: 2",
     "train.sequence=48 model.max_sequence=48", NULL},
    {"mtp",
     "architecture: glm4_moe, layers: 5, hidden_size: 48, heads: 12, head_size: 8, kv_heads: 2, ffn_size: 100, "
     "experts: 6, expert_ffn_size: 22, shared_experts: 1, dense_layers: 1, rotary_size: 4, router_bias_rate: 0.03, "
     "router_loss: 0.1, mtp_layers: 1",
     "data.document_mask=true", NULL},
    {"mtp-tied",
     "architecture: glm4_moe, layers: 6, hidden_size: 48, heads: 12, head_size: 8, kv_heads: 2, ffn_size: 100, "
     "experts: 6, expert_ffn_size: 22, router_bias_rate: 0.03, mtp_layers: 1, mtp_loss: 0.5, tied_embeddings: true",
     "train.dropout=0.1", NULL},
    {"mtp-latent",
     LATENT "experts: 6, expert_ffn_size: 22, dense_layers: 1, router_bias_rate: 0.03, mtp_layers: 1, mtp_loss: 0.4",
     "", NULL},
    {"biased",
     "architecture: mixtral, layers: 6, hidden_size: 48, heads: 12, head_size: 8, kv_heads: 2, ffn_size: 100, experts: "
     "6, expert_ffn_size: 20, router_bias_rate: 0.03",
     "", NULL},
    {"latent", LATENT "experts: 6, expert_ffn_size: 22, dense_layers: 1, router_bias_rate: 0.03", "", NULL},
    {"latent-biased", LATENT "experts: 2, dense_layers: 6, attention_bias: true", "", NULL},
    {"unrouted", LATENT "experts: 2, dense_layers: 6", "", NULL},
    {"direct",
     "architecture: deepseek_v2, layers: 6, hidden_size: 48, heads: 6, head_size: 14, rope_head_size: 6, v_head_size: "
     "9, kv_lora_rank: 20, ffn_size: 100, experts: 6, experts_per_token: 3, expert_ffn_size: 22, dense_layers: 1, "
     "router_groups: 3, router_groups_kept: 2, rope_scaling: {kind: yarn, factor: 4, mscale: 0.6, mscale_all_dim: 0.9}",
     "data.document_mask=true train.sequence=48 model.max_sequence=48", NULL},
    {"documents", "architecture: llama, layers: 6, hidden_size: 48, heads: 6, head_size: 8, kv_heads: 2, ffn_size: 100",
     "data.document_mask=true", NULL},
    {"dropout", "architecture: gpt2, layers: 6, hidden_size: 48, heads: 6", "train.dropout=0.1", NULL},
    {"llama-48", "architecture: llama, layers: 4, hidden_size: 48, heads: 12, head_size: 8, kv_heads: 2, ffn_size: 100",
     "train.sequence=48 model.max_sequence=48", NULL},
    {"llama-bf16",
     "architecture: llama, layers: 8, hidden_size: 48, heads: 12, head_size: 8, kv_heads: 2, ffn_size: 100, "
     "tied_embeddings: false",
     "train.precision=bf16", "llama"},
    {"gpt2-bf16", "architecture: gpt2, layers: 6, hidden_size: 48, heads: 12", "train.precision=bf16", "gpt2"},
    {"latent-bf16", LATENT "experts: 6, expert_ffn_size: 22, dense_layers: 1, router_bias_rate: 0.03",
     "train.precision=bf16", "latent"},
    {"llama-fp16",
     "architecture: llama, layers: 8, hidden_size: 48, heads: 12, head_size: 8, kv_heads: 2, ffn_size: 100, "
     "tied_embeddings: false",
     "train.precision=fp16 train.loss_scale=4096", "llama"},
    {"gpt2-fp16", "architecture: gpt2, layers: 6, hidden_size: 48, heads: 12",
     "train.precision=fp16 train.loss_scale=4096", "gpt2"},
};

int layouts_models(void)
{
    return (int)(sizeof models / sizeof *models);
}

const layouts_model *layouts_model_at(int index)
{
    return &models[index];
}

const layouts_model *layouts_model_of(const char *name)
{
    for (int i = 0; i < layouts_models(); i++)
        if (!strcmp(models[i].name, name))
            return &models[i];
    MUST(0, "no model %s", name);
}
