#!/usr/bin/env python3
"""What Muon with QK-clip makes of tiny models: the expectations of tests/jobs/test_qk_clip.c.

    python3 tests/golden/models/qk_clip.py      (as make.py, after it; rewrites qk_clip.json of the models below)

Each run is STEPS steps from the weights in the model's folder, in float64: the losses, and of each step the largest
score that attention has seen. Muon and AdamW are torch.optim's (optimizers.py); each expert's gate, up and down are
matrices of their own. QK-clip is written from its paper (2507.20534, algorithm 1): the scores are computed here beside
transformers' own, before its softmax, and a head whose largest exceeds the threshold has its weights scaled after the
update. Heads of queries that share a key take all of the factor, since the paper leaves shared keys as they are. The
block behind the last layer, where a model has one, is make.py's, and so is its loss.
"""
import json
import math
import os
import sys

import numpy
import torch
import torch.nn.functional as F

import make
import optimizers
from optimizers import CLIP, DECAY, LR, MUON_LR, share
from safetensors.torch import load_file

STEPS = 20
# below the largest scores that training without them reaches
THRESHOLDS = {"llama": 1.0, "llama-tied": 1.0, "deepseek-v2": 1.2, "deepseek-v3": 0.8, "deepseek-v3-mtp": 0.8}


class Peaks:
    """The largest scaled score of each head of each layer, since it was emptied."""

    def __init__(self, model):
        self.of = {}
        module = sys.modules[type(model).__module__]
        self.attend = module.eager_attention_forward
        module.eager_attention_forward = self

    def __call__(self, layer, query, key, value, mask, scaling, **more):
        keys = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        scores = (query @ keys.transpose(2, 3)).detach() * scaling
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        most = scores.masked_fill(hidden, -math.inf).amax(dim=(0, 2, 3))
        self.of[layer] = torch.maximum(self.of.get(layer, most), most)
        return self.attend(layer, query, key, value, mask, scaling=scaling, **more)


def matrices(model):
    """Views of the blocks' weights, each a matrix of Hugging Face's names, and the weight and index that each is of."""
    for name, p in model.named_parameters():
        if ".layers." not in name or p.dim() < 2:
            continue
        for expert in range(p.shape[0]) if p.dim() == 3 else [None]:
            of = lambda t, e=expert: t if e is None else t[e]
            half = p.shape[1] // 2 if "gate_up_proj" in name else None
            for part in [slice(None)] if half is None else [slice(half), slice(half, None)]:
                yield p, lambda t, of=of, part=part: of(t)[part]


def add_block(model, folder):
    """The block behind the last layer, with its weights: transformers leaves them out."""
    stored, prefix = load_file(os.path.join(folder, "model.safetensors")), f"model.layers.{model.config.num_hidden_layers}."
    make.add_block(model)
    for name, t in [*model.named_parameters(), *model.named_buffers()]:
        if not name.startswith(prefix):
            continue
        if name in stored:
            t.data.copy_(stored[name])
            continue
        experts, kind = name.rsplit(".", 1)  # one tensor of all
        kinds = ["gate_proj", "up_proj"] if kind == "gate_up_proj" else [kind]
        for expert in range(t.shape[0]):
            t.data[expert].copy_(torch.cat([stored[f"{experts}.{expert}.{k}.weight"] for k in kinds]))


def scale_heads(layer, gamma, threshold):
    """gamma: of each head of queries."""
    config = layer.config
    root = gamma.sqrt()
    if not hasattr(layer, "kv_b_proj"):
        shared = config.num_key_value_heads < config.num_attention_heads
        heads = lambda w: w.weight.data.view(-1, layer.head_dim, w.weight.shape[1])
        heads(layer.q_proj).mul_((gamma if shared else root)[:, None, None])
        if not shared:
            heads(layer.k_proj).mul_(root[:, None, None])
        return
    fixed, turning = layer.qk_nope_head_dim, layer.qk_rope_head_dim
    up = layer.q_proj if layer.q_lora_rank is None else layer.q_b_proj
    q = up.weight.data.view(-1, fixed + turning, up.weight.shape[1])
    q[:, :fixed].mul_(root[:, None, None])
    q[:, fixed:].mul_(gamma[:, None, None])
    kv = layer.kv_b_proj.weight.data.view(-1, fixed + layer.v_head_dim, layer.kv_b_proj.weight.shape[1])
    kv[:, :fixed].mul_(root[:, None, None])


def train(model, stream, threshold):
    parameters = dict(model.named_parameters())
    views = list(matrices(model))
    leaves = [view(p.data) for p, view in views]
    taken = {id(p) for p, _ in views}
    rest = {n: p for n, p in parameters.items() if id(p) not in taken}
    steps = [(torch.optim.Muon(leaves, lr=MUON_LR, weight_decay=DECAY, momentum=0.95, nesterov=True,
                               adjust_lr_fn="original"), MUON_LR),
             (torch.optim.AdamW(optimizers.divided(rest), lr=LR, betas=(0.9, 0.95), eps=1e-8), LR)]
    peaks, losses, largest, clipped = Peaks(model), [], [], 0
    behind, last = len(model.base_model.layers) > model.config.num_hidden_layers, {}
    model.base_model.register_forward_hook(lambda module, given, made: last.update(h=made.last_hidden_state))
    for step in range(STEPS):
        model.zero_grad()
        peaks.of = {}
        rows = torch.stack([stream[i * make.LENGTH:i * make.LENGTH + make.LENGTH + 1]
                            for i in range(step * make.GLOBAL_BATCH, (step + 1) * make.GLOBAL_BATCH)])
        logits = model(input_ids=rows[:, :-1]).logits
        loss = F.cross_entropy(logits.reshape(-1, make.VOCABULARY), rows[:, 1:].reshape(-1))
        (loss + make.MTP_LOSS * make.mtp_loss(model, rows, last["h"]) if behind else loss).backward()
        norm = math.sqrt(sum(p.grad.square().sum().item() for p in parameters.values()))
        for p in parameters.values():
            p.grad.mul_(min(1.0, CLIP / norm))
        for leaf, (p, view) in zip(leaves, views):
            leaf.grad = view(p.grad)
        for optimizer, peak in steps:
            for group in optimizer.param_groups:
                group["lr"] = peak * share(step + 1)
            optimizer.step()
        for layer, most in peaks.of.items():
            if threshold:
                gamma = (threshold / most).clamp(max=1.0)
                gamma[most <= threshold] = 1.0
                clipped += int((gamma < 1).sum())
                scale_heads(layer, gamma, threshold)
        losses.append(loss.item())
        largest.append(max(most.max().item() for most in peaks.of.values()))
    sys.modules[type(model).__module__].eager_attention_forward = peaks.attend
    return losses, largest, clipped


if __name__ == "__main__":
    torch.set_num_threads(1)
    tokens = numpy.fromfile(os.path.join(make.HERE, "train.bin"), dtype="<u2").astype("int64")
    table = make.models()
    models = {name: table[name][0].from_pretrained(os.path.join(make.HERE, name), dtype=torch.float32,
                                                   attn_implementation="eager", experts_implementation="eager")
              for name in THRESHOLDS}
    for name, model in models.items():
        add_block(model, os.path.join(make.HERE, name))
    torch.float32 = torch.float = torch.bfloat16 = torch.float64
    torch.Tensor.float = torch.Tensor.double
    for name, threshold in THRESHOLDS.items():
        model = models[name].to(torch.float64).train()
        model.base_model.rotary_emb.__init__(model.config)  # again, in float64
        with make.OnlyFloat64():
            losses, largest, clipped = train(model, torch.tensor(tokens), threshold)
        print(f"{name}: {losses[0]:.6f} -> {losses[-1]:.6f}, {clipped} heads scaled")
        print("  largest", " ".join(f"{x:.4f}" for x in largest))
        with open(os.path.join(make.HERE, name, "qk_clip.json"), "w") as f:
            f.write(json.dumps({"losses": [round(x, 12) for x in losses], "peaks": [round(x, 12) for x in largest]}) + "\n")
