#!/usr/bin/env python3
"""How near transformers' own bf16 comes: the measure of tests/jobs/test_golden.c for what phalanx computes in bf16.

    python3 tests/golden/models/bf16.py (after make.py, with the same packages; rewrites bf16.json)

bf16.json has, of each model that make.py has made, the float64 logits of its weights as bf16 rounds them, at make.py's
positions of the first sample, and the root mean square of what transformers' bf16 logits differ from them.
"""
import json
import os

import numpy
import torch

import make


def logits_of(model, stream, dtype):
    model.to(dtype)
    rotary = getattr(model.base_model, "rotary_emb", None)
    if rotary is not None:  # frequencies are fp32 in transformers, whatever the weights are; in float64 they are float64
        rotary.__init__(model.config)
    with torch.no_grad():
        logits = model(input_ids=stream[None, :make.LENGTH]).logits[0, list(make.LOGIT_POSITIONS)]
    assert logits.dtype == dtype
    return logits.to(torch.float64)


if __name__ == "__main__":
    torch.set_num_threads(1)
    numbers, _ = make.make_tokens(numpy.random.default_rng(7))
    tokens = torch.tensor(numbers.astype("int64"))
    table = make.models()
    models = {name: row[0].from_pretrained(os.path.join(make.HERE, name), dtype=torch.bfloat16, attn_implementation="eager",
                                        experts_implementation="batched_mm")
              for name, row in make.models().items()}
    narrow = {name: logits_of(model, tokens, torch.bfloat16) for name, model in models.items()}
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    wide = {name: logits_of(model, tokens, torch.float64) for name, model in models.items()}
    rows = []
    for name in sorted(models):
        error = (narrow[name] - wide[name]).square().mean().sqrt().item()
        logits = [[float(f"{x:.9g}") for x in row] for row in wide[name].tolist()]
        rows.append(f'"{name}": ' + json.dumps({"error": float(f"{error:.6g}"), "logits": logits}))
        print(f"{name}: {error:.3g} of {wide[name].square().mean().sqrt().item():.3g}")
    with open(os.path.join(make.HERE, "bf16.json"), "w") as f:
        f.write("{" + ",\n".join(rows) + "}\n")
