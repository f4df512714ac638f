"""GPT-2 124M in PyTorch, 4 x 1024, saved once in 10 steps by torch.distributed.checkpoint.async_save: what tools/bench_alive.sh prints
beside phalanx's own saves. The state is that of phalanx's checkpoints: weights in bf16, and master, exp_avg and exp_avg_sq in fp32.

    python tests/jobs/bench_dcp.py ROUNDS FOLDER
"""
import os
import shutil
import statistics
import sys
import time

import torch
import torch.distributed.checkpoint as dcp
from transformers import GPT2Config, GPT2LMHeadModel

rounds, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(os.cpu_count())
torch.manual_seed(1)
config = GPT2Config(attn_pdrop=0, embd_pdrop=0, resid_pdrop=0)
config._attn_implementation = "sdpa"
tokens = torch.randint(0, config.vocab_size, (4, 1024))
model = GPT2LMHeadModel(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)


def step():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(tokens, labels=tokens).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def save(name):
    """Begins a save, and returns what waits for its end."""
    state = {f"master.{n}": p.data for n, p in model.named_parameters()}
    state |= {f"model.{n}": p.data.bfloat16() for n, p in model.named_parameters()}
    for n, p in model.named_parameters():
        state |= {f"{k}.{n}": optimizer.state[p][k] for k in ("exp_avg", "exp_avg_sq")}
    return dcp.async_save(state, checkpoint_id=f"{folder}/{name}")


def ten(saves):
    """The times of ten steps, each with what it waited for a save that begins after the fifth, and that wait."""
    times, stall, pending = [], 0.0, None
    for i in range(10):
        begun = time.perf_counter()
        step()
        if saves and i == 4:
            called = time.perf_counter()
            pending = save("one")
            stall = time.perf_counter() - called
        times.append(time.perf_counter() - begun)
    if pending:
        pending.result()
        shutil.rmtree(f"{folder}/one")
    return times, stall


torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:29511", rank=0, world_size=1)
step()
save("first").result()  # the first one makes what later ones keep
none, saved, stalls = [], [], []
for _ in range(rounds):
    none.append(ten(False)[0])
    times, stall = ten(True)
    saved.append(times)
    stalls.append(stall)
seconds, plain = (sum(statistics.median(column) for column in zip(*rows)) for rows in (saved, none))
print(f"saves: torch {torch.__version__}, async DCP: ten steps in {seconds:.1f} s, {seconds / plain:.4f} x none; "
      f"stall {100 * statistics.mean(stalls) / (seconds / 10):.2f} % of a step at each save")
