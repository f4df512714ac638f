"""A model in PyTorch on this GPU: fp32 parameters, bf16 autocast, SDPA, fused AdamW, clipping; eager and compiled. One JSON
line each, medians: what `make bench-gpu` prints beside phalanx for the same shape and batch.

    python tests/cuda/gpu/bench_peer.py gpt2|llama LAYERS HIDDEN HEADS KV_HEADS FFN VOCABULARY SEQUENCE MICRO_BATCH MICRO_BATCHES
"""
import json
import statistics
import sys
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

family = sys.argv[1]
layers, hidden, heads, kv_heads, ffn, vocabulary, length, micro, count = map(int, sys.argv[2:11])
torch.manual_seed(1)
torch.set_float32_matmul_precision("high")
if family == "gpt2":
    config = GPT2Config(n_layer=layers, n_embd=hidden, n_head=heads, n_inner=ffn, vocab_size=vocabulary,
                        n_positions=length, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0)
    kind = GPT2LMHeadModel
else:
    config = LlamaConfig(num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads,
                         num_key_value_heads=kv_heads, intermediate_size=ffn, vocab_size=vocabulary,
                         max_position_embeddings=length)
    kind = LlamaForCausalLM
config._attn_implementation = "sdpa"
tokens = torch.randint(0, vocabulary, (count, micro, length), device="cuda")
for mode in ("eager", "compiled"):
    try:
        model = kind(config).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        run = torch.compile(model) if mode == "compiled" else model

        def step():
            for batch in tokens:
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = run(batch, labels=batch, use_cache=False).loss / count
                loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        for _ in range(4):
            step()
        torch.cuda.synchronize()
        seconds = []
        for _ in range(8):
            begun = time.perf_counter()
            step()
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begun)
        each = statistics.median(seconds)
        print(json.dumps({"peer": f"torch {torch.__version__} {mode}", "tokens_per_second": round(tokens.numel() / each),
                          "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2)}), flush=True)
    except torch.cuda.OutOfMemoryError:
        print(json.dumps({"peer": f"torch {torch.__version__} {mode}", "out_of_memory": True}), flush=True)
    model = optimizer = run = None
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
