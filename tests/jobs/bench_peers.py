"""GPT-2 124M in PyTorch on this machine: one training step of 4 x LENGTH tokens, eager and compiled, bf16 autocast over fp32
parameters, fused AdamW: what `make bench-peers` prints beside phalanx. Medians, random tokens and weights.

    python tests/jobs/bench_peers.py LENGTH
"""
import json
import os
import statistics
import sys
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

length = int(sys.argv[1])
torch.set_num_threads(os.cpu_count())
torch.manual_seed(1)
config = GPT2Config(attn_pdrop=0, embd_pdrop=0, resid_pdrop=0)
config._attn_implementation = "sdpa"
for mode in ("eager", "compiled"):
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    step_model = torch.compile(model) if mode == "compiled" else model
    tokens = torch.randint(0, config.vocab_size, (4, length))

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = step_model(tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(2):
        step()
    seconds = []
    for _ in range(3):
        begun = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begun)
    print(json.dumps({"peer": f"torch {torch.__version__} {mode}", "sequences": 4, "sequence": length,
                      "tokens_per_second": round(4 * length / statistics.median(seconds), 1)}), flush=True)
