"""GPT-2 124M in PyTorch, 4 x 1024, saved every 10 steps by torch.distributed.checkpoint.async_save: what tools/bench_alive.sh prints
beside phalanx's own saves. The state is that of phalanx's checkpoints: weights in bf16, and master, exp_avg and exp_avg_sq in fp32.

    python tests/jobs/bench_dcp.py STEPS FOLDER
"""
import os
import shutil
import sys
import time

import torch
import torch.distributed.checkpoint as dcp
from transformers import GPT2Config, GPT2LMHeadModel

steps, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(os.cpu_count())
torch.manual_seed(1)
config = GPT2Config(attn_pdrop=0, embd_pdrop=0, resid_pdrop=0)
config._attn_implementation = "sdpa"
tokens = torch.randint(0, config.vocab_size, (4, 1024))


def run(save):
    """The time of all steps but the first, and of the calls that save."""
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    pending, stall, begun = None, 0.0, None
    for step in range(1, steps + 1):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if save and step % 10 == 0:
            called = time.perf_counter()
            if pending:
                pending.result()
                shutil.rmtree(f"{folder}/{step - 10}", ignore_errors=True)
            state = {f"master.{n}": p.data for n, p in model.named_parameters()}
            state |= {f"model.{n}": p.data.bfloat16() for n, p in model.named_parameters()}
            for n, p in model.named_parameters():
                state |= {f"{k}.{n}": optimizer.state[p][k] for k in ("exp_avg", "exp_avg_sq")}
            pending = dcp.async_save(state, checkpoint_id=f"{folder}/{step}")
            stall += time.perf_counter() - called
        if step == 1:
            begun = time.perf_counter()
    seconds = time.perf_counter() - begun
    if pending:
        pending.result()
    return seconds, stall


torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:29511", rank=0, world_size=1)
none, _ = run(False)
seconds, stall = run(True)
print(f"saves: torch {torch.__version__}, async DCP: {steps - 1} steps after the first in {seconds:.1f} s, {seconds / none:.4f} x none; "
      f"stall {100 * stall / seconds:.2f} % of the time, {100 * (stall / (steps // 10)) / (seconds / (steps - 1)):.2f} % of a step "
      "at each save")
