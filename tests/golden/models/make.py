#!/usr/bin/env python3
"""Tiny random models and what float64 PyTorch makes of them: the expectations of tests/jobs/test_golden.c.

    python3 tests/golden/models/make.py [MODEL...] (torch, transformers, safetensors, numpy; rewrites the folders of these models,
                                                    of all of them without a name)

Each folder is a Hugging Face model (config.json, model.safetensors) and beside it
    gradients.safetensors  the gradient of step 1: mean over the global batch, before clipping, as fp32
    expected.json          losses and gradient norms of STEPS steps, logits of a few positions of the first sample; where
                           the configuration asks for it, what the balancing of routers adds to the loss, over what,
                           which norms and gradients include; the losses of a block behind the last layer, likewise
train.bin and train.idx hold the tokens, in Megatron's format. All of transformers' own code runs in float64: its
modules name torch.float32 in norms, softmax and rotary tables, so that name means float64 here, and a dispatch mode
refuses any operation that makes a smaller float all the same.
"""
import json
import math
import os
import shutil
import struct
import sys

import numpy
import safetensors.numpy
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers.core_model_loading import revert_weight_conversion
from torch.utils._python_dispatch import TorchDispatchMode

HERE = os.path.dirname(os.path.abspath(__file__))
VOCABULARY, LENGTH, STEPS = 97, 32, 100
GLOBAL_BATCH, MICRO_BATCH = 8, 2
LR, MIN_LR, WARMUP, CLIP, DECAY, BETAS, EPSILON = 1e-3, 1e-4, 10, 1.0, 0.1, (0.9, 0.95), 1e-8
MTP_LOSS = 0.3
LOGIT_POSITIONS = (0, 13, 31)

SIZES = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=512, attention_dropout=0.0)
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=16, beta_fast=4.0,
            beta_slow=0.25)


def models():
    from transformers import (DeepseekV2Config, DeepseekV2ForCausalLM, DeepseekV3Config, DeepseekV3ForCausalLM, Gemma2Config, Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, Glm4Config, Glm4ForCausalLM, Glm4MoeConfig, Glm4MoeForCausalLM, GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GptOssConfig, GptOssForCausalLM, GPTNeoXForCausalLM, GraniteConfig, GraniteForCausalLM, GraniteMoeConfig, GraniteMoeForCausalLM, LlamaConfig, LlamaForCausalLM, MistralConfig,
                              MistralForCausalLM, MixtralConfig, MixtralForCausalLM, Olmo2Config, Olmo2ForCausalLM, Olmo3Config, Olmo3ForCausalLM, OlmoeConfig, OlmoeForCausalLM, Phi3Config, Phi3ForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM,
                              SmolLM3Config, SmolLM3ForCausalLM, Starcoder2Config, Starcoder2ForCausalLM)

    def longrope(original):
        return Phi3Config(**SIZES, rms_norm_eps=1e-5, original_max_position_embeddings=original, pad_token_id=None,
                          bos_token_id=96, eos_token_id=96,
                          rope_parameters=dict(rope_type="longrope", rope_theta=1e4, partial_rotary_factor=0.75,
                                               short_factor=[1.0, 1.25, 1.5], long_factor=[1.1, 3.0, 7.5]))

    def mixtral(**more):
        return MixtralConfig(**{**SIZES, "intermediate_size": 28}, sliding_window=12, num_local_experts=5,
                             num_experts_per_tok=2, bos_token_id=96, eos_token_id=96,
                             rope_parameters=dict(rope_type="default", rope_theta=1e4), **more)

    def qwen3_moe(**more):
        return Qwen3MoeConfig(**{**SIZES, "num_hidden_layers": 3}, head_dim=16, num_experts=7, num_experts_per_tok=3,
                              moe_intermediate_size=20, norm_topk_prob=True, mlp_only_layers=[0], bos_token_id=96,
                              eos_token_id=96, **more)

    def glm4_moe(layers, behind):
        return Glm4MoeConfig(
            **{**SIZES, "num_hidden_layers": layers}, head_dim=16, attention_bias=True, use_qk_norm=True,
            n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=20, n_shared_experts=2,
            first_k_dense_replace=1, n_group=2, topk_group=1, routed_scaling_factor=1.75,
            num_nextn_predict_layers=behind, rms_norm_eps=1e-5, pad_token_id=None, bos_token_id=96, eos_token_id=96)

    def deepseek_v3(layers, behind, **more):
        return DeepseekV3Config(
            **{**SIZES, "hidden_size": 32, "num_hidden_layers": layers, "num_attention_heads": 6, "num_key_value_heads": 6},
            q_lora_rank=22, kv_lora_rank=18, qk_nope_head_dim=10, qk_rope_head_dim=4, v_head_dim=12, n_routed_experts=8,
            num_experts_per_tok=2, moe_intermediate_size=20, n_shared_experts=1, first_k_dense_replace=1, n_group=2,
            topk_group=1, routed_scaling_factor=1.75, num_nextn_predict_layers=behind, rms_norm_eps=1e-5, pad_token_id=None,
            bos_token_id=96, eos_token_id=96, **more)

    balanced = dict(output_router_logits=True, router_aux_loss_coef=0.1)
    no_dropout = dict(attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)
    return {
        "gpt2": (GPT2LMHeadModel, GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_inner=88, n_layer=2, n_head=4,
                                             n_positions=40, bos_token_id=96, eos_token_id=96, **no_dropout), "fp32"),
        # latents of keys and values, all sizes of a head different; scores that yarn multiplies beside cosines and sines;
        # three experts of the two groups of three whose best ones are best
        "deepseek-v2": (DeepseekV2ForCausalLM, DeepseekV2Config(
            **{**SIZES, "hidden_size": 36, "num_hidden_layers": 3, "num_attention_heads": 3, "num_key_value_heads": 3,
               "max_position_embeddings": 64}, q_lora_rank=None, kv_lora_rank=20, qk_nope_head_dim=10, qk_rope_head_dim=6,
            v_head_dim=14, n_routed_experts=6, num_experts_per_tok=3, moe_intermediate_size=20, n_shared_experts=2,
            first_k_dense_replace=1, topk_method="group_limited_greedy", n_group=3, topk_group=2,
            routed_scaling_factor=1.3, rms_norm_eps=1e-5, pad_token_id=None, bos_token_id=96, eos_token_id=96,
            rope_parameters=dict(YARN, mscale=0.6, mscale_all_dim=0.9)), "fp32"),
        # queries of a latent, too; sigmoids with a bias, two of the four experts of the better one of two groups
        "deepseek-v3": (DeepseekV3ForCausalLM, deepseek_v3(3, 0), "fp32"),
        # biases of the products that make latents, and of attention's last one
        "deepseek-v3-biased": (DeepseekV3ForCausalLM, deepseek_v3(2, 0, attention_bias=True), "fp32"),
        # behind the last layer one more, which predicts the token after the next
        "deepseek-v3-mtp": (DeepseekV3ForCausalLM, deepseek_v3(2, 1), "fp32"),
        # caps of scores and of logits that change most of them, windows in every second layer
        "gemma2": (Gemma2ForCausalLM, Gemma2Config(
            **{**SIZES, "num_hidden_layers": 3}, head_dim=16, sliding_window=8, query_pre_attn_scalar=20,
            attn_logit_softcapping=0.5, final_logit_softcapping=0.75, attn_implementation="eager",
            pad_token_id=None, bos_token_id=96, eos_token_id=96), "fp32"),
        # norms on both sides, two rotary bases, windows but in every second layer
        "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig(
            **{**SIZES, "num_hidden_layers": 3}, head_dim=16, sliding_window=8, query_pre_attn_scalar=20,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            rope_parameters={"full_attention": dict(rope_type="linear", factor=2.0, rope_theta=5e4),
                             "sliding_attention": dict(rope_type="default", rope_theta=1e3)},
            pad_token_id=None, bos_token_id=96, eos_token_id=96), "fp32"),
        # norms on both sides, biases of q, k, v, pairs of neighbours in half of each head, fused gate and up
        "glm4": (Glm4ForCausalLM, Glm4Config(**SIZES, head_dim=16, pad_token_id=None, bos_token_id=96, eos_token_id=96),
                 "fp32"),
        # a first layer without experts, then sigmoids with a bias, two of the four experts of the better one of two groups,
        # and as wide as two of them an mlp that all tokens pass
        "glm4-moe": (Glm4MoeForCausalLM, glm4_moe(3, 0), "fp32"),
        # behind the last layer one more, which predicts the token after the next
        "glm4-moe-mtp": (Glm4MoeForCausalLM, glm4_moe(2, 1), "fp32"),
        # sinks, biased experts whose gates and ups are cut off, windows in every second layer, a ramp between whole
        # frequencies; with a loss that balances the routers
        "gpt-oss": (GptOssForCausalLM, GptOssConfig(
            **{**SIZES, "num_hidden_layers": 3, "intermediate_size": 20}, head_dim=16, sliding_window=8,
            num_local_experts=5, num_experts_per_tok=2, swiglu_limit=0.5, swiglu_alpha=1.25,
            rope_parameters={**YARN, "rope_theta": 5e4, "truncate": False}, pad_token_id=None, bos_token_id=96,
            eos_token_id=96, **balanced), "fp32"),
        # a multiplier of embeddings, branches, scores and logits each
        "granite": (GraniteForCausalLM, GraniteConfig(**SIZES, rms_norm_eps=1e-5, embedding_multiplier=6.0,
                                                      residual_multiplier=0.4, attention_multiplier=0.2,
                                                      logits_scaling=3.0, tie_word_embeddings=True), "fp32"),
        # the same with experts, whose logits are chosen before they become weights
        "granite-moe": (GraniteMoeForCausalLM, GraniteMoeConfig(
            **{**SIZES, "intermediate_size": 28}, rms_norm_eps=1e-5, embedding_multiplier=6.0, residual_multiplier=0.4,
            attention_multiplier=0.2, logits_scaling=3.0, tie_word_embeddings=True, num_local_experts=5,
            num_experts_per_tok=2, bos_token_id=96, eos_token_id=96), "fp32"),
        # grouped keys and values, own head, the three ranges of Llama 3's stretch
        "llama": (LlamaForCausalLM, LlamaConfig(**SIZES, rms_norm_eps=1e-5, rope_parameters=dict(LLAMA3)), "fp32"),
        "llama-tied": (LlamaForCausalLM, LlamaConfig(**{**SIZES, "num_key_value_heads": 4}, rms_norm_eps=1e-5,
                                                     tie_word_embeddings=True), "fp32"),
        # six layers to cut into stages; stored in bf16, which fp32 holds exactly
        "llama-deep": (LlamaForCausalLM, LlamaConfig(**{**SIZES, "num_hidden_layers": 6, "intermediate_size": 30},
                                                     rms_norm_eps=1e-5, tie_word_embeddings=True), "bf16"),
        # the ramp of the frequencies within the heads' four pairs, cosines and sines that are larger than one
        "llama-yarn": (LlamaForCausalLM, LlamaConfig(**{**SIZES, "hidden_size": 48, "max_position_embeddings": 64},
                                                     rms_norm_eps=1e-5, rope_parameters=dict(YARN)), "fp32"),
        "mistral": (MistralForCausalLM, MistralConfig(**SIZES, sliding_window=8), "fp32"),
        # two of five experts in every layer, a window; the same with a loss that balances the router
        "mixtral": (MixtralForCausalLM, mixtral(), "fp32"),
        "mixtral-balanced": (MixtralForCausalLM, mixtral(**balanced), "fp32"),
        # attention and mlp in parallel, exact gelu, q, k and v stacked by head, a quarter of a head rotates
        "neox": (GPTNeoXForCausalLM, GPTNeoXConfig(
            vocab_size=VOCABULARY, hidden_size=64, intermediate_size=88, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=512, bos_token_id=96, eos_token_id=96, hidden_act="gelu"), "fp32"),
        # norms behind only, queries and keys normalised over all heads
        "olmo2": (Olmo2ForCausalLM, Olmo2Config(**{**SIZES, "hidden_size": 48, "num_attention_heads": 6}, rms_norm_eps=1e-5,
                                                pad_token_id=None, bos_token_id=96, eos_token_id=96), "fp32"),
        # the same with windows but in every second layer, whose rotary frequencies alone are stretched
        "olmo3": (Olmo3ForCausalLM, Olmo3Config(
            **{**SIZES, "num_hidden_layers": 3}, rms_norm_eps=1e-5, sliding_window=8,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            rope_parameters={"full_attention": {**YARN, "rope_theta": 5e4, "factor": 32.0},
                             "sliding_attention": dict(rope_type="default", rope_theta=1e3)},
            pad_token_id=None, bos_token_id=96, eos_token_id=96), "fp32"),
        # weights of three of six experts that do not add up to one, queries and keys normalised over all heads
        "olmoe": (OlmoeForCausalLM, OlmoeConfig(
            **{**SIZES, "hidden_size": 48, "intermediate_size": 20, "num_attention_heads": 6}, num_experts=6,
            num_experts_per_tok=3, pad_token_id=None, bos_token_id=96, eos_token_id=96), "fp32"),
        # fused weights, three quarters of a head rotate, a window
        "phi3": (Phi3ForCausalLM, Phi3Config(
            **SIZES, rms_norm_eps=1e-5, sliding_window=12, pad_token_id=None, bos_token_id=96, eos_token_id=96,
            rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.75)), "fp32"),
        # longrope, in sequences as long as the original ones, and in longer ones
        "phi3-short": (Phi3ForCausalLM, longrope(32), "fp32"),
        "phi3-long": (Phi3ForCausalLM, longrope(12), "fp32"),
        "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SIZES, tie_word_embeddings=True,
                                                rope_parameters=dict(rope_type="default", rope_theta=1e6)), "fp32"),
        # the first layer sees all tokens, the others have a window
        "qwen2-layers": (Qwen2ForCausalLM, Qwen2Config(**{**SIZES, "num_hidden_layers": 3}, use_sliding_window=True,
                                                       sliding_window=8, max_window_layers=1), "fp32"),
        # heads x head_dim is not the hidden size
        "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=16), "fp32"),
        # weights that add up to one, a first layer without experts; the same with a loss that balances the routers of
        # each layer by sample
        "qwen3-moe": (Qwen3MoeForCausalLM, qwen3_moe(), "fp32"),
        "qwen3-moe-balanced": (Qwen3MoeForCausalLM, qwen3_moe(**balanced), "fp32"),
        # experts in every second layer
        "qwen3-moe-step": (Qwen3MoeForCausalLM, Qwen3MoeConfig(
            **{**SIZES, "num_hidden_layers": 4, "num_key_value_heads": 4}, num_experts=5, num_experts_per_tok=2,
            moe_intermediate_size=20, decoder_sparse_step=2, bos_token_id=96, eos_token_id=96), "fp32"),
        # every second layer does not rotate
        "smollm3": (SmolLM3ForCausalLM, SmolLM3Config(**{**SIZES, "num_hidden_layers": 3}, no_rope_layer_interval=2,
                                                      rope_parameters=dict(rope_type="default", rope_theta=5e4),
                                                      pad_token_id=None, bos_token_id=96, eos_token_id=96), "fp32"),
        # LayerNorm, rotary positions and biases everywhere
        "starcoder2": (Starcoder2ForCausalLM, Starcoder2Config(**SIZES, sliding_window=12, tie_word_embeddings=True,
                                                               residual_dropout=0.0, embedding_dropout=0.0,
                                                               bos_token_id=96, eos_token_id=96), "fp32"),
    }


def make_tokens(rng):
    """Documents of a noisy first-order chain: something to learn, and every id occurs."""
    count, tokens, ends = STEPS * GLOBAL_BATCH * LENGTH + 1, [], []
    follower = rng.permutation(VOCABULARY)
    while len(tokens) < count:
        document = [int(rng.integers(VOCABULARY))]
        for _ in range(int(rng.integers(20, 400))):
            document.append(int(follower[document[-1]]) if rng.random() < 0.7 else int(rng.integers(VOCABULARY)))
        tokens += document[:count - len(tokens)]
        ends.append(len(tokens))
    return numpy.array(tokens, dtype=numpy.uint16), ends


def write_indexed(tokens, ends):
    lengths = numpy.diff([0] + ends)
    with open(os.path.join(HERE, "train.bin"), "wb") as f:
        f.write(tokens.astype("<u2").tobytes())
    with open(os.path.join(HERE, "train.idx"), "wb") as f:
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(ends), len(ends) + 1))
        f.write(lengths.astype("<i4").tobytes())
        f.write((numpy.array([0] + ends[:-1], dtype="<i8") * 2).tobytes())
        f.write(numpy.arange(len(ends) + 1, dtype="<i8").tobytes())


class OnlyFloat64(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        for value in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64:
                raise TypeError(f"{function} made {value.dtype}")
        return result


def randomize(model, generator, dtype):
    """Norms off one and biases off zero, so that a mistake in either shows; values that the file's type holds."""
    with torch.no_grad():
        for name, b in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                b.copy_(0.1 * torch.randn(b.shape, generator=generator, dtype=torch.float64)).copy_(b.to(dtype))
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            if p.dim() > 1:
                p.copy_(0.1 * noise)
            else:
                p.copy_((0.0 if name.endswith("bias") else 1.0) + 0.1 * noise)
            p.copy_(p.to(dtype))


def learning_rate(t):
    if t <= WARMUP:
        return LR * t / WARMUP
    return MIN_LR + (LR - MIN_LR) * (1 + math.cos(math.pi * (t - WARMUP) / (STEPS - WARMUP))) / 2


def router_loss(output, config, over):
    """What balances experts, with its coefficient; None where the configuration does not ask for it."""
    if not getattr(config, "output_router_logits", False):
        return None
    if over == "pooled":  # over all layers and tokens, as transformers has it
        return config.router_aux_loss_coef * output.aux_loss
    total = 0.0  # (2101.03961) of each layer and sample, 1 where experts are balanced
    for logits in output.router_logits:
        experts = logits.shape[-1]
        chosen = F.one_hot(logits.topk(config.num_experts_per_tok, dim=-1).indices, experts).sum(dim=1)
        share = chosen.reshape(-1, LENGTH, experts).to(torch.float64).mean(dim=1) / config.num_experts_per_tok
        probability = logits.softmax(dim=-1).reshape(-1, LENGTH, experts).mean(dim=1)
        total = total + experts * (share * probability).sum(dim=-1).mean()
    return config.router_aux_loss_coef * total


def decays(name, p):
    """Vectors do not, neither do those of all experts in one tensor."""
    return p.dim() > 1 and not name.endswith("bias")


def add_block(model):
    """A layer like the last one, which transformers' forward pass leaves out (2412.19437, section 2.2; names as in the
    published folders of GLM-4.5 and DeepSeek-V3). Both h' = eh_proj [enorm(embedding of token i + 1) ; hnorm(h)] and h
    being behind the last norm are as vLLM, SGLang and Megatron-LM have them."""
    layers, config = model.model.layers, model.config
    if not getattr(config, "num_nextn_predict_layers", 0):
        return
    block, norm = type(layers[-1])(config, len(layers)), type(model.model.norm)
    block.enorm, block.hnorm = (norm(config.hidden_size, eps=config.rms_norm_eps) for _ in range(2))
    block.eh_proj = torch.nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
    block.shared_head = torch.nn.Module()
    block.shared_head.norm = norm(config.hidden_size, eps=config.rms_norm_eps)
    layers.append(block)


def add_copies(folder, model):
    """Published folders have the table of tokens and the head once more, beside the block."""
    if len(model.model.layers) == model.config.num_hidden_layers:
        return
    path, before = os.path.join(folder, "model.safetensors"), f"model.layers.{model.config.num_hidden_layers}."
    tensors = safetensors.numpy.load_file(path)
    tensors[before + "embed_tokens.weight"] = tensors["model.embed_tokens.weight"]
    tensors[before + "shared_head.head.weight"] = tensors["lm_head.weight"]
    safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})


def mtp_loss(model, rows, h):
    """The mean cross-entropy of the tokens after the next ones, of the positions that have one."""
    base = model.model
    block = base.layers[model.config.num_hidden_layers]
    x = block.eh_proj(torch.cat([block.enorm(base.embed_tokens(rows[:, 1:])), block.hnorm(h)], dim=-1))
    positions = torch.arange(LENGTH)[None]
    mask = torch.full((1, 1, LENGTH, LENGTH), torch.finfo(torch.float64).min, dtype=torch.float64).triu(1)
    x = block(x, attention_mask=mask, position_ids=positions, position_embeddings=base.rotary_emb(x, positions))
    logits = model.lm_head(block.shared_head.norm(x))[:, :-1]
    return F.cross_entropy(logits.reshape(-1, VOCABULARY), rows[:, 2:].reshape(-1))


def train(model, stream, over):
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(
        [{"params": [p for n, p in parameters.items() if decays(n, p)], "weight_decay": DECAY},
         {"params": [p for n, p in parameters.items() if not decays(n, p)], "weight_decay": 0.0}],
        lr=LR, betas=BETAS, eps=EPSILON)
    losses, router_losses, mtp_losses, norms, first = [], [], [], [], None
    behind = len(getattr(model.base_model, "layers", [])) > model.config.num_hidden_layers
    last = {}
    model.base_model.register_forward_hook(lambda module, given, made: last.update(h=made.last_hidden_state))
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = balance = second = 0.0
        for sample in range(step * GLOBAL_BATCH, (step + 1) * GLOBAL_BATCH, MICRO_BATCH):
            rows = torch.stack([stream[i * LENGTH:i * LENGTH + LENGTH + 1] for i in range(sample, sample + MICRO_BATCH)])
            output, share = model(input_ids=rows[:, :-1]), MICRO_BATCH / GLOBAL_BATCH
            part = F.cross_entropy(output.logits.reshape(-1, VOCABULARY), rows[:, 1:].reshape(-1)) * share
            loss += part.item()
            routers = router_loss(output, model.config, over)
            if routers is not None:
                balance += routers.item() * share
                part = part + routers * share
            if behind:
                more = mtp_loss(model, rows, last["h"])
                second += more.item() * share
                part = part + MTP_LOSS * more * share
            part.backward()
        if step == 0:
            first = {name: p.grad.clone() for name, p in parameters.items()}
        norm = math.sqrt(sum(p.grad.square().sum().item() for p in parameters.values()))
        for p in parameters.values():
            p.grad.mul_(min(1.0, CLIP / norm))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step + 1)
        optimizer.step()
        losses.append(loss)
        router_losses.append(balance)
        mtp_losses.append(second)
        norms.append(norm)
    return losses, router_losses, mtp_losses, norms, first


def make(name, kind, config, dtype, stream):
    folder = os.path.join(HERE, name)
    shutil.rmtree(folder, ignore_errors=True)
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    config._attn_implementation = config._experts_implementation = "eager"
    stored = SMALL if dtype == "fp32" else torch.bfloat16
    model = kind(config)
    add_block(model)
    model.to(torch.float64)
    randomize(model, generator, stored)
    model.to(stored)
    model.save_pretrained(folder)
    add_copies(folder, model)
    if os.path.exists(os.path.join(folder, "generation_config.json")):
        os.remove(os.path.join(folder, "generation_config.json"))
    model.to(torch.float64)
    rotary = getattr(model.base_model, "rotary_emb", None)
    if rotary is not None:  # a buffer computed when the model was made: again, in float64
        rotary.__init__(model.config)
    model.train()
    over = "sequence" if name == "qwen3-moe-balanced" else "pooled"
    with OnlyFloat64():
        with torch.no_grad():
            logits = model(input_ids=stream[None, :LENGTH]).logits[0, list(LOGIT_POSITIONS)]
        losses, router_losses, mtp_losses, norms, gradients = train(model, stream, over)
    save_file({k: v.to(SMALL).contiguous() for k, v in revert_weight_conversion(model, gradients).items()},
              os.path.join(folder, "gradients.safetensors"), metadata={"format": "pt"})
    balance = {"router_loss_over": over, "router_losses": [round(x, 12) for x in router_losses]} if any(router_losses) else {}
    second = {"mtp_losses": [round(x, 12) for x in mtp_losses]} if any(mtp_losses) else {}
    with open(os.path.join(folder, "expected.json"), "w") as f:
        f.write(json.dumps({"losses": [round(x, 12) for x in losses], **balance, **second,
                            "grad_norms": [round(x, 12) for x in norms],
                            "logit_positions": LOGIT_POSITIONS,
                            "logits": [[float(f"{x:.9g}") for x in row] for row in logits.tolist()]}) + "\n")
    print(f"{name}: loss {losses[0]:.6f} -> {losses[-1]:.6f}, norm {norms[0]:.4f} -> {norms[-1]:.4f}, "
          f"{sum(p.numel() for p in model.parameters())} parameters")


SMALL = torch.float32

if __name__ == "__main__":
    torch.set_num_threads(1)
    numbers, ends = make_tokens(numpy.random.default_rng(7))
    write_indexed(numbers, ends)
    table = models()
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    for name, (kind, config, dtype) in table.items():
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        make(name, kind, config, dtype, torch.tensor(numbers.astype("int64")))
