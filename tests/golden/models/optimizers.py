#!/usr/bin/env python3
"""What other optimizers than AdamW make of the tiny models: the expectations of tests/jobs/test_optimizers.c.

    python3 tests/golden/models/optimizers.py      (as make.py, after it; rewrites gpt2/ and llama/optimizers.json)

Each variant is STEPS steps from the weights in the model's folder, in float64: the losses, by name. Muon and SGD are
torch.optim's own, Muon with its conversion to bfloat16 made one to float64; Lion is written from the paper's algorithm
(2302.06675). Muon takes the matrices of the blocks as the model has them, AdamW the rest.
"""
import json
import math
import os

import numpy
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import make

STEPS, LR, MIN_LR, MUON_LR, WARMUP, DECAY, CLIP = 20, 4e-3, 4e-4, 2e-2, 3, 0.1, 1.0
LION_LR, SGD_LR = 1e-3, 0.1


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of the paper: c = beta1 m + (1 - beta1) g; w -= lr (sign(c) + decay w); m = beta2 m + (1 - beta2) g."""

    def __init__(self, groups, betas):
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0})
        self.betas = betas

    @torch.no_grad()
    def step(self):
        beta1, beta2 = self.betas
        for group in self.param_groups:
            for w in group["params"]:
                m = self.state[w].setdefault("m", torch.zeros_like(w))
                c = beta1 * m + (1 - beta1) * w.grad
                w -= group["lr"] * (torch.sign(c) + group["weight_decay"] * w)
                m.copy_(beta2 * m + (1 - beta2) * w.grad)


def divided(parameters):
    """Weight decay on matrices and embeddings only."""
    return [{"params": [p for p in parameters.values() if p.dim() > 1], "weight_decay": DECAY},
            {"params": [p for p in parameters.values() if p.dim() == 1], "weight_decay": 0.0}]


def lion(parameters):
    return [(Lion(divided(parameters), (0.9, 0.99)), LION_LR)]


def sgd(nesterov, momentum):
    def build(parameters):
        return [(torch.optim.SGD(parameters.values(), lr=SGD_LR, momentum=momentum, nesterov=nesterov), SGD_LR)]
    return build


def muon(nesterov, adjust):
    def build(parameters):
        blocks = {n: p for n, p in parameters.items() if p.dim() == 2 and (".h." in n or ".layers." in n)}
        rest = {n: p for n, p in parameters.items() if n not in blocks}
        return [(torch.optim.Muon(blocks.values(), lr=MUON_LR, weight_decay=DECAY, momentum=0.95, nesterov=nesterov,
                                  adjust_lr_fn=adjust), MUON_LR),
                (torch.optim.AdamW(divided(rest), lr=LR, betas=(0.9, 0.95), eps=1e-8), LR)]
    return build


VARIANTS = {"lion": lion, "sgd": sgd(True, 0.9), "sgd-plain": sgd(False, 0.9),
            "muon": muon(True, "original"), "muon-plain": muon(False, "match_rms_adamw")}


def share(t):
    """Of the peak rate: a warm-up, then a cosine to MIN_LR / LR."""
    if t <= WARMUP:
        return t / WARMUP
    floor = MIN_LR / LR
    return floor + (1 - floor) * (1 + math.cos(math.pi * (t - WARMUP) / (STEPS - WARMUP))) / 2


def train(model, stream, build):
    parameters = dict(model.named_parameters())
    optimizers, losses = build(parameters), []
    for step in range(STEPS):
        model.zero_grad()
        rows = torch.stack([stream[i * make.LENGTH:i * make.LENGTH + make.LENGTH + 1]
                            for i in range(step * make.GLOBAL_BATCH, (step + 1) * make.GLOBAL_BATCH)])
        logits = model(input_ids=rows[:, :-1]).logits
        loss = F.cross_entropy(logits.reshape(-1, make.VOCABULARY), rows[:, 1:].reshape(-1))
        loss.backward()
        norm = math.sqrt(sum(p.grad.square().sum().item() for p in parameters.values()))
        for p in parameters.values():
            p.grad.mul_(min(1.0, CLIP / norm))
        for optimizer, peak in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = peak * share(step + 1)
            optimizer.step()
        losses.append(loss.item())
    return losses


def fresh(weights, kind, config):
    config._attn_implementation = "eager"
    model = kind(config).to(torch.float64)
    missing = model.load_state_dict({k: v.to(torch.float64) for k, v in weights.items()}, strict=False)
    assert all("lm_head" in k for k in missing.missing_keys) and not missing.unexpected_keys, missing
    rotary = getattr(model.base_model, "rotary_emb", None)
    if rotary is not None:
        rotary.__init__(model.config)
    return model.train()


if __name__ == "__main__":
    torch.set_num_threads(1)
    tokens = numpy.fromfile(os.path.join(make.HERE, "train.bin"), dtype="<u2").astype("int64")
    table, names = make.models(), ("gpt2", "llama")
    stored = {name: load_file(os.path.join(make.HERE, name, "model.safetensors")) for name in names}
    torch.float32 = torch.float = torch.bfloat16 = torch.float64
    torch.Tensor.float = torch.Tensor.double
    for name in names:
        kind, config, _ = table[name]
        expected = {}
        for variant, build in VARIANTS.items():
            model = fresh(stored[name], kind, config)
            with make.OnlyFloat64():
                losses = train(model, torch.tensor(tokens), build)
            expected[variant] = [round(x, 12) for x in losses]
            print(f"{name} {variant}: {losses[0]:.6f} -> {losses[-1]:.6f}")
        with open(os.path.join(make.HERE, name, "optimizers.json"), "w") as f:
            f.write(json.dumps(expected) + "\n")
