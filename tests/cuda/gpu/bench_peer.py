"""A model in PyTorch on this GPU (without one, on the CPU, to try the script): fp32 parameters, bf16 autocast, SDPA, fused AdamW, clipping; eager and compiled. One JSON
line each, medians, and a last line of both: what `make bench-gpu` prints beside phalanx for the same shape and batch.

    python tests/cuda/gpu/bench_peer.py gpt2|llama|qwen2 LAYERS HIDDEN HEADS KV_HEADS FFN VOCABULARY SEQUENCE MICRO_BATCH MICRO_BATCHES
"""
import json
import statistics
import sys
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

family = sys.argv[1]
layers, hidden, heads, kv_heads, ffn, vocabulary, length, micro, count = map(int, sys.argv[2:11])
torch.manual_seed(1)
device = "cuda" if torch.cuda.is_available() else "cpu"
synchronise = torch.cuda.synchronize if device == "cuda" else lambda: None
torch.set_float32_matmul_precision("high")
if family == "gpt2":
    config = GPT2Config(n_layer=layers, n_embd=hidden, n_head=heads, n_inner=ffn, vocab_size=vocabulary,
                        n_positions=length, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0)
    kind = GPT2LMHeadModel
else:
    kind, shape = (Qwen2ForCausalLM, Qwen2Config) if family == "qwen2" else (LlamaForCausalLM, LlamaConfig)
    config = shape(num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads,
                   num_key_value_heads=kv_heads, intermediate_size=ffn, vocab_size=vocabulary,
                   max_position_embeddings=length)
config._attn_implementation = "sdpa"
tokens = torch.randint(0, vocabulary, (count, micro, length), device=device)
failed = False
speeds = []
for mode in ("eager", "compiled"):
    try:
        model = kind(config).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=device == "cuda")
        run = torch.compile(model) if mode == "compiled" else model

        def step():
            for batch in tokens:
                with torch.autocast(device, dtype=torch.bfloat16):
                    loss = run(batch, labels=batch, use_cache=False).loss / count
                loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        for _ in range(2):
            step()
        synchronise()
        seconds = []
        for _ in range(4):
            begun = time.perf_counter()
            step()
            synchronise()
            seconds.append(time.perf_counter() - begun)
        each = statistics.median(seconds)
        speeds.append(f"{mode} {tokens.numel() / each:.0f} tokens/s")
        print(json.dumps({"peer": f"torch {torch.__version__} {mode}", "tokens_per_second": round(tokens.numel() / each),
                          "device": device,
                          "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if device == "cuda" else None}), flush=True)
    except torch.cuda.OutOfMemoryError:
        speeds.append(f"{mode} out of memory")
        print(json.dumps({"peer": f"torch {torch.__version__} {mode}", "out_of_memory": True}), flush=True)
    except Exception as error:  # such as no C compiler: told, and the case fails
        failed = True
        speeds.append(f"{mode} failed")
        print(json.dumps({"peer": f"torch {torch.__version__} {mode}", "failed": " ".join(str(error).split())[:200]}), flush=True)
    model = optimizer = run = None
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
print(f"torch {torch.__version__} on {device}: " + ", ".join(speeds))
sys.exit(failed)
