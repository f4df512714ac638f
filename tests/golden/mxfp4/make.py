#!/usr/bin/env python3
"""A tiny GPT-OSS whose experts are mxfp4, as the published folders are, and what transformers makes of its blocks.

    python3 tests/golden/mxfp4/make.py (torch, transformers, safetensors, numpy; rewrites the files beside it)

config.json and model.safetensors are the model: random blocks with every value of 4 bits, scales from 2^-12 to 2^3.
expected.safetensors has each expert's weight as transformers dequantises it, bf16 [experts, in, out].
"""
import json
import os

import numpy
import torch
from safetensors.torch import save_file
from transformers.integrations.mxfp4 import _convert_moe_packed_tensors as dequantise

HERE = os.path.dirname(os.path.abspath(__file__))
HIDDEN, FFN, EXPERTS, HEADS, KV, HEAD, VOCABULARY = 64, 32, 3, 2, 1, 16, 33


def packed(rng, out, columns):
    blocks = rng.integers(0, 256, (EXPERTS, out, columns // 32, 16), dtype=numpy.uint8)
    scales = rng.integers(115, 131, (EXPERTS, out, columns // 32), dtype=numpy.uint8)
    return torch.from_numpy(blocks), torch.from_numpy(scales)


if __name__ == "__main__":
    rng = numpy.random.default_rng(11)
    layer = "model.layers.0."
    shapes = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "lm_head.weight": (VOCABULARY, HIDDEN),
              "model.norm.weight": (HIDDEN,), layer + "input_layernorm.weight": (HIDDEN,),
              layer + "post_attention_layernorm.weight": (HIDDEN,), layer + "self_attn.sinks": (HEADS,),
              layer + "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD), layer + "self_attn.o_proj.bias": (HIDDEN,),
              layer + "mlp.router.weight": (EXPERTS, HIDDEN), layer + "mlp.router.bias": (EXPERTS,),
              layer + "mlp.experts.gate_up_proj_bias": (EXPERTS, 2 * FFN),
              layer + "mlp.experts.down_proj_bias": (EXPERTS, HIDDEN)}
    for name, heads in (("q", HEADS), ("k", KV), ("v", KV)):
        shapes[f"{layer}self_attn.{name}_proj.weight"] = (heads * HEAD, HIDDEN)
        shapes[f"{layer}self_attn.{name}_proj.bias"] = (heads * HEAD,)
    tensors = {name: torch.from_numpy(rng.standard_normal(shape)).to(torch.bfloat16) for name, shape in shapes.items()}
    expected = {}
    for name, out, columns in (("gate_up_proj", 2 * FFN, HIDDEN), ("down_proj", HIDDEN, FFN)):
        blocks, scales = packed(rng, out, columns)
        tensors[f"{layer}mlp.experts.{name}_blocks"] = blocks
        tensors[f"{layer}mlp.experts.{name}_scales"] = scales
        expected[f"{layer}mlp.experts.{name}"] = dequantise(blocks, scales, dtype=torch.bfloat16).contiguous()
        assert expected[f"{layer}mlp.experts.{name}"].shape == (EXPERTS, columns, out)
    save_file(tensors, os.path.join(HERE, "model.safetensors"), metadata={"format": "pt"})
    save_file(expected, os.path.join(HERE, "expected.safetensors"), metadata={"format": "pt"})
    config = {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": True,
              "experts_per_token": 2, "head_dim": HEAD, "hidden_act": "silu", "hidden_size": HIDDEN,
              "initial_context_length": 4096, "intermediate_size": FFN, "layer_types": ["sliding_attention"],
              "max_position_embeddings": 128, "num_attention_heads": HEADS, "num_experts_per_tok": 2,
              "num_hidden_layers": 1, "num_key_value_heads": KV, "num_local_experts": EXPERTS,
              "output_router_logits": False, "quantization_config": {
                  "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                             "model.embed_tokens", "lm_head"], "quant_method": "mxfp4"},
              "rms_norm_eps": 1e-5, "rope_scaling": {
                  "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
                  "rope_type": "yarn", "truncate": False},
              "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
              "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": VOCABULARY}
    with open(os.path.join(HERE, "config.json"), "w") as f:
        json.dump(config, f, indent=2)
        f.write("\n")
