"""A GPT-2 that PyTorch trains on the data of a phalanx run in the same order, from the same weights, with the same
optimizer; losses, a JSON line a step.

    losses_peer.py init FOLDER LAYERS HIDDEN HEADS SEQUENCE VOCABULARY        random weights as a Hugging Face folder
    losses_peer.py train FOLDER DATA OUT fp32|bf16 STEPS GLOBAL_BATCH MICRO_BATCH SEQUENCE LR MIN_LR WARMUP

FOLDER: where init has written; DATA: prefix of .bin and .idx. Sample i is tokens i*L .. i*L+L, step s takes samples
s*G .. s*G+G-1 (data.shuffle=false); the learning rate rises for WARMUP steps and falls along a cosine; weight decay 0.1
is of matrices and embeddings, the gradient's norm is clipped to 1. On a GPU attention is SDPA's and products in fp32
are not rounded; without one everything runs on the CPU.
"""
import json
import math
import struct
import sys

import numpy
import torch
from transformers import GPT2Config, GPT2LMHeadModel


def initialise(folder, layers, hidden, heads, sequence, vocabulary):
    torch.manual_seed(1)
    config = GPT2Config(n_layer=layers, n_embd=hidden, n_head=heads, vocab_size=vocabulary, n_positions=sequence,
                        attn_pdrop=0, embd_pdrop=0, resid_pdrop=0)
    model = GPT2LMHeadModel(config)
    model.save_pretrained(folder)
    print(f"torch {torch.__version__}: {sum(p.numel() for p in model.parameters())} parameters")


def read_tokens(prefix):
    """All tokens of a data set, one document after the other: the type is in the index's header."""
    with open(prefix + ".idx", "rb") as file:
        head = file.read(18)
    assert head[:9] == b"MMIDIDX\x00\x00", f"{prefix}.idx is no index"
    kind = {1: numpy.uint8, 2: numpy.int8, 3: numpy.int16, 4: numpy.int32, 5: numpy.int64, 8: numpy.uint16}[struct.unpack("<B", head[17:18])[0]]
    return numpy.memmap(prefix + ".bin", dtype=kind, mode="r")


def rate(step, steps, lr, least, warmup):
    if step <= warmup:
        return lr * step / warmup
    return least + (lr - least) * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2


def train(folder, data, out, precision, steps, batch, micro, length, lr, least, warmup):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("highest")
    model = GPT2LMHeadModel.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32).to(device).train()
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                                  lr=lr, betas=(0.9, 0.95), eps=1e-8)
    tokens = read_tokens(data)
    with open(out, "w") as file:
        for step in range(1, steps + 1):
            for group in optimizer.param_groups:
                group["lr"] = rate(step, steps, lr, least, warmup)
            total = 0.0
            for first in range((step - 1) * batch, step * batch, micro):
                rows = [tokens[i * length:i * length + length + 1].astype(numpy.int64) for i in range(first, first + micro)]
                batch_ids = torch.from_numpy(numpy.stack(rows)).to(device)
                with torch.autocast(device, dtype=torch.bfloat16, enabled=precision == "bf16"):
                    logits = model(batch_ids[:, :-1], use_cache=False).logits
                loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), batch_ids[:, 1:].flatten()) * micro / batch
                loss.backward()
                total += loss.item()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            file.write(json.dumps({"step": step, "loss": total, "grad_norm": float(norm)}) + "\n")
            file.flush()
    print(f"torch {torch.__version__} on {device}: {steps} steps, last loss {total:.6f}")


if sys.argv[1] == "init":
    initialise(sys.argv[2], *map(int, sys.argv[3:8]))
else:
    train(*sys.argv[2:6], *map(int, sys.argv[6:10]), *map(float, sys.argv[10:12]), int(sys.argv[12]))
