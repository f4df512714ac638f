#!/usr/bin/env python3
"""phalanx and transformers, side by side; run by hand from the top folder:

    $PYTHON tests/jobs/interop_models.py [NAME... | --seven [LAYERS]]

Every model of configurations(), or those named, random, goes from transformers to a checkpoint and back: every tensor
bitwise, loading without a warning, the logits as before, loss and gradients of a first step as transformers computes
them in fp32; after some training: export, `phalanx eval`'s loss and `phalanx generate`'s greedy text as transformers'.
All of them take minutes. --seven converts a 7B-shaped folder, or a few layers of one, and measures memory and time
beside cp (32 layers need 41 GB in $TMPDIR).
"""
import io
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time

import numpy
import torch
import torch.nn.functional as F
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers.core_model_loading import revert_weight_conversion

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "models"))
PHALANX = os.environ.get("PHALANX", "build/phalanx")
VOCABULARY, LENGTH, MICRO_BATCH = 257, 64, 2


def run(*arguments, **keywords):
    done = subprocess.run([PHALANX, *map(str, arguments)], capture_output=True, text=True, **keywords)
    assert done.returncode == 0, f"phalanx {' '.join(map(str, arguments))}: {done.stderr}"
    return done.stdout


def configurations():
    t = transformers
    sizes = dict(vocab_size=VOCABULARY, hidden_size=96, intermediate_size=160, num_hidden_layers=3, num_attention_heads=6,
                 num_key_value_heads=2, max_position_embeddings=1024, bos_token_id=256, eos_token_id=256)
    llama3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=128)
    longrope = dict(rope_type="longrope", rope_theta=1e4, partial_rotary_factor=0.5, short_factor=[1.0, 1.1, 1.2, 1.3],
                    long_factor=[1.0, 2.0, 4.0, 8.0])
    return {
        "gpt2": t.GPT2Config(vocab_size=VOCABULARY, n_embd=96, n_layer=3, n_head=6, n_positions=128, attn_pdrop=0.0,
                             embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=256, eos_token_id=256),
        "llama": t.LlamaConfig(**sizes, rope_parameters=llama3),
        "llama-tied": t.LlamaConfig(**sizes, tie_word_embeddings=True),
        "granite-moe": t.GraniteMoeConfig(**sizes, embedding_multiplier=12.0, residual_multiplier=0.22,
                                          attention_multiplier=0.0625, logits_scaling=8.0, tie_word_embeddings=True,
                                          num_local_experts=7, num_experts_per_tok=3),
        "mixtral": t.MixtralConfig(**sizes, sliding_window=16, num_local_experts=5, num_experts_per_tok=2),
        "mixtral-balanced": t.MixtralConfig(**sizes, num_local_experts=5, num_experts_per_tok=2, output_router_logits=True,
                                            router_aux_loss_coef=0.05),
        "olmoe": t.OlmoeConfig(**sizes, num_experts=9, num_experts_per_tok=4, pad_token_id=None),
        "qwen3-moe": t.Qwen3MoeConfig(**sizes, head_dim=32, num_experts=7, num_experts_per_tok=3,
                                      moe_intermediate_size=40, norm_topk_prob=True, mlp_only_layers=[0]),
        "mistral": t.MistralConfig(**sizes, sliding_window=16),
        "qwen2": t.Qwen2Config(**sizes, tie_word_embeddings=True),
        "qwen2-window": t.Qwen2Config(**sizes, use_sliding_window=True, sliding_window=16, max_window_layers=0),
        "qwen2-layers": t.Qwen2Config(**sizes, use_sliding_window=True, sliding_window=16, max_window_layers=1),
        "qwen3": t.Qwen3Config(**sizes, head_dim=32),
        "granite": t.GraniteConfig(**sizes, embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.0625,
                                   logits_scaling=8.0, tie_word_embeddings=True),
        "gemma2": t.Gemma2Config(**sizes, head_dim=32, sliding_window=16, query_pre_attn_scalar=40,
                                 attn_logit_softcapping=2.0, final_logit_softcapping=3.0, pad_token_id=None,
                                 attn_implementation="eager"),
        "gemma3": t.Gemma3TextConfig(**sizes, head_dim=32, sliding_window=16, query_pre_attn_scalar=40,
                                     layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                                     pad_token_id=None),
        "glm4": t.Glm4Config(**sizes, head_dim=32, pad_token_id=None),
        "glm4-moe": t.Glm4MoeConfig(**sizes, head_dim=32, attention_bias=True, n_routed_experts=7, num_experts_per_tok=3,
                                    moe_intermediate_size=40, n_shared_experts=1, routed_scaling_factor=2.5,
                                    num_nextn_predict_layers=0, pad_token_id=None),
        "deepseek-v2": t.DeepseekV2Config(
            **{**sizes, "num_key_value_heads": sizes["num_attention_heads"]}, q_lora_rank=None, kv_lora_rank=40,
            qk_nope_head_dim=20, qk_rope_head_dim=12, v_head_dim=24, n_routed_experts=8, num_experts_per_tok=3,
            moe_intermediate_size=40, n_shared_experts=2, first_k_dense_replace=1, topk_method="greedy",
            pad_token_id=None, rope_parameters=dict(
                rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=256, beta_fast=32.0,
                beta_slow=1.0, mscale=0.707, mscale_all_dim=0.707)),
        "deepseek-v3": t.DeepseekV3Config(
            **{**sizes, "num_key_value_heads": sizes["num_attention_heads"]}, q_lora_rank=56, kv_lora_rank=40,
            qk_nope_head_dim=20, qk_rope_head_dim=12, v_head_dim=24, n_routed_experts=8, num_experts_per_tok=3,
            moe_intermediate_size=40, n_shared_experts=1, first_k_dense_replace=1, n_group=4, topk_group=2,
            routed_scaling_factor=2.5, num_nextn_predict_layers=0, pad_token_id=None),
        "deepseek-v2-biased": t.DeepseekV2Config(
            **{**sizes, "num_key_value_heads": sizes["num_attention_heads"]}, q_lora_rank=None, kv_lora_rank=40,
            qk_nope_head_dim=20, qk_rope_head_dim=12, v_head_dim=24, n_routed_experts=8, num_experts_per_tok=3,
            moe_intermediate_size=40, n_shared_experts=2, first_k_dense_replace=1, topk_method="greedy",
            attention_bias=True, pad_token_id=None),
        "deepseek-v3-biased": t.DeepseekV3Config(
            **{**sizes, "num_key_value_heads": sizes["num_attention_heads"]}, q_lora_rank=56, kv_lora_rank=40,
            qk_nope_head_dim=20, qk_rope_head_dim=12, v_head_dim=24, n_routed_experts=8, num_experts_per_tok=3,
            moe_intermediate_size=40, n_shared_experts=1, first_k_dense_replace=1, n_group=4, topk_group=2,
            routed_scaling_factor=2.5, num_nextn_predict_layers=0, attention_bias=True, pad_token_id=None),
        "gpt-oss": t.GptOssConfig(**sizes, head_dim=32, num_local_experts=7, num_experts_per_tok=3, sliding_window=16,
                                  swiglu_limit=0.5, pad_token_id=None, rope_parameters=dict(
                                      rope_type="yarn", rope_theta=150000.0, factor=8.0, truncate=False,
                                      original_max_position_embeddings=128)),
        "neox": t.GPTNeoXConfig(vocab_size=VOCABULARY, hidden_size=96, intermediate_size=160, num_hidden_layers=3,
                                num_attention_heads=6, max_position_embeddings=1024, bos_token_id=256,
                                eos_token_id=256),
        "olmo2": t.Olmo2Config(**sizes, pad_token_id=None),
        "olmo3": t.Olmo3Config(**sizes, sliding_window=16, pad_token_id=None,
                               layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
        "olmo3-yarn": t.Olmo3Config(**sizes, sliding_window=16, pad_token_id=None, rope_parameters={
            "full_attention": dict(rope_type="yarn", rope_theta=1e5, factor=8.0, original_max_position_embeddings=128),
            "sliding_attention": dict(rope_type="default", rope_theta=1e4)}),
        "phi3": t.Phi3Config(**sizes, sliding_window=16, pad_token_id=None, rope_parameters=dict(
            rope_type="default", rope_theta=1e4, partial_rotary_factor=0.75)),
        "phi3-short": t.Phi3Config(**sizes, pad_token_id=None, original_max_position_embeddings=256, rope_parameters=longrope),
        "phi3-long": t.Phi3Config(**sizes, pad_token_id=None, original_max_position_embeddings=8, rope_parameters=longrope),
        "smollm3": t.SmolLM3Config(**sizes, no_rope_layer_interval=2, pad_token_id=None,
                                   rope_parameters=dict(rope_type="default", rope_theta=5e6)),
        "llama-yarn": t.LlamaConfig(**sizes, rope_parameters=dict(rope_type="yarn", rope_theta=1e4, factor=8.0,
                                                                  original_max_position_embeddings=128)),
        "llama-linear": t.LlamaConfig(**sizes, rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=2.0)),
        "llama-dynamic": t.LlamaConfig(**sizes, rope_parameters=dict(rope_type="dynamic", rope_theta=1e4, factor=2.0)),
        "starcoder2": t.Starcoder2Config(**sizes, sliding_window=16, residual_dropout=0.0, embedding_dropout=0.0),
    }


def load_silently(folder, **keywords):
    """The model, and a failure if anything was said about it."""
    heard = io.StringIO()
    handler = logging.StreamHandler(heard)
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **keywords)
    logger.removeHandler(handler)
    assert not heard.getvalue(), f"{folder}: transformers says: {heard.getvalue()}"
    assert not any(info.values()), f"{folder}: {info}"
    return model


def tensors_equal(a, b):
    x, y = load_file(f"{a}/model.safetensors"), load_file(f"{b}/model.safetensors")
    assert x.keys() == y.keys(), x.keys() ^ y.keys()
    for name in x:
        assert x[name].dtype == y[name].dtype and torch.equal(x[name].view(torch.uint8), y[name].view(torch.uint8)), name


def write_data(prefix, tokens):
    import struct
    tokens.astype("<u2").tofile(prefix + ".bin")
    with open(prefix + ".idx", "wb") as f:
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2) + struct.pack("<iq", len(tokens), 0) + struct.pack("<qq", 0, 1))


def reference_step(model, rows):
    """The loss without that of routers, and gradients with it, which transformers takes of a micro-batch."""
    losses = []
    model.zero_grad()
    for part in rows.split(MICRO_BATCH):
        output = model(input_ids=part[:, :-1])
        losses.append(F.cross_entropy(output.logits.reshape(-1, VOCABULARY), part[:, 1:].reshape(-1)))
        balance = model.config.router_aux_loss_coef * output.aux_loss if getattr(output, "aux_loss", None) is not None else 0
        ((losses[-1] + balance) * len(part) / len(rows)).backward()
    gradients = revert_weight_conversion(model, {name: p.grad.clone() for name, p in model.named_parameters()})
    return sum(losses).item() / len(losses), gradients


def relative(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30)).item()


def put_tokenizer(original, data, work):
    """The 256 bytes and an end: what `phalanx tokenize` leaves beside its data."""
    with open(f"{work}/some.txt", "w") as f:
        f.write("some text\n")
    run("tokenize", "--force", "--output", f"{work}/some", "--tokenizer", "bytes", f"{work}/some.txt")
    shutil.copy(f"{work}/some.tokenizer.bytes", f"{original}/tokenizer.bytes")
    shutil.copy(f"{work}/some.tokenizer.bytes", f"{data}.tokenizer.bytes")


def check_text(model, checkpoint):
    """Greedy text of the trained model, as long as every choice is clear of rounding."""
    prompt, count = "The quick brown fox jumps over the lazy dog", 32
    ids = torch.tensor([list(prompt.encode())])
    with torch.no_grad():
        out = model.generate(ids, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=256)[0]
        best = model(out[None]).logits[0, ids.shape[1] - 1:-1].topk(2).values
    assert (best[:, 0] - best[:, 1]).min() > 1e-4, "a tie: choose another seed"
    expected = bytes(i for i in out[ids.shape[1]:].tolist() if i < 256).decode("utf-8", errors="replace")
    said = run("generate", "--checkpoint", checkpoint, "--prompt", prompt, "--tokens", count, "--temperature", 0, "--only-new",
               "--ignore-end", "--precision", "fp32")
    assert said.rstrip("\n") == expected.rstrip("\n"), f"greedy text differs:\n{said!r}\n{expected!r}"


def check_eval(model, checkpoint, data, tokens):
    windows = [tokens[i:i + LENGTH + 1] for i in range(0, len(tokens) - 1, LENGTH)]
    with torch.no_grad():
        logits = model(torch.tensor(numpy.array([w[:-1] for w in windows]))).logits
    loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), torch.tensor(numpy.array([w[1:] for w in windows])).reshape(-1)).item()
    said = json.loads(run("eval", "--checkpoint", checkpoint, "--data", data, "--sequence", LENGTH, "--precision", "fp32", "--json"))
    assert abs(said["loss"] - loss) <= 1e-5 * loss, (said, loss)


def check(name, configuration, work):
    torch.manual_seed(5)
    original, there, back = (os.path.join(work, name + end) for end in ("", "-checkpoint", "-back"))
    model = transformers.AutoModelForCausalLM.from_config(configuration)
    with torch.no_grad():
        for key, p in model.named_parameters():  # large enough that what is wrong shows
            p.copy_(torch.randn_like(p) * (0.08 if p.dim() > 1 else 0.1) + (1.0 if p.dim() == 1 and "bias" not in key else 0.0))
    model.save_pretrained(original)
    data, folder = os.path.join(work, "data"), os.path.join(work, name + "-run")
    put_tokenizer(original, data, work)
    run("convert", "--from", original, "--to", there)
    run("convert", "--from", there, "--to", back)
    tensors_equal(original, back)
    if hasattr(configuration, "num_experts_per_tok"):  # experts under the names of transformers' own modules
        modules, there_too, back_too = (os.path.join(work, name + end) for end in ("-modules", "-modules-there", "-modules-back"))
        model.save_pretrained(modules, save_original_format=False)
        run("convert", "--from", modules, "--to", there_too)
        run("convert", "--from", there_too, "--to", back_too)
        tensors_equal(original, back_too)
    model, again = load_silently(original), load_silently(back)
    tokens = numpy.random.default_rng(3).integers(0, VOCABULARY, 20 * 4 * LENGTH + 1)
    stream = torch.tensor(tokens)
    rows = torch.stack([stream[i * LENGTH:i * LENGTH + LENGTH + 1] for i in range(4)])
    with torch.no_grad():
        assert torch.equal(model(rows).logits, again(rows).logits), "logits after the way there and back"
    loss, gradients = reference_step(model, rows)
    write_data(data, tokens)
    configuration_file = os.path.join(work, "run.yaml")
    with open(configuration_file, "w") as f:
        f.write(f"model: {{from: {there}, router_loss_over: pooled}}\ndata: {{train: {data}, shuffle: false}}\n"
                f"train: {{steps: 20, sequence: {LENGTH}, micro_batch: {MICRO_BATCH}, global_batch: 4, precision: fp32, device: cpu}}\n"
                f"optimizer: {{lr: 3e-3, schedule: constant}}\ncheckpoint: {{every: 0, resume: never}}\n"
                f"run: {{folder: {folder}, tensorboard: false}}\ndebug: {{gradients: {folder}}}\n")
    run("train", configuration_file)
    steps = [json.loads(line) for line in open(f"{folder}/metrics.jsonl")]
    dump = load_file(f"{folder}/gradients.safetensors")
    assert dump.keys() == gradients.keys(), dump.keys() ^ gradients.keys()
    worst = max(relative(dump[k], gradients[k]) for k in dump if gradients[k].norm() > 1e-6)
    assert abs(steps[0]["loss"] - loss) <= 1e-4 * loss, (steps[0]["loss"], loss)
    assert worst <= 1e-4, worst
    trained = os.path.join(work, name + "-trained")
    run("convert", "--from", folder, "--to", trained)
    exported = load_silently(trained)
    nudged, _ = reference_step(exported, rows)
    assert nudged < loss, "training did not lower the loss of what it saw"
    check_text(exported, folder)
    check_eval(exported, folder, data, tokens)
    check_eval(model, back, data, tokens)
    print(f"{name}: bitwise there and back; loss {loss:.6f}, off by {abs(steps[0]['loss'] - loss) / loss:.1e}; "
          f"gradients off by at most {worst:.1e}; trained, exported and loaded: {nudged:.4f}")


def forget(folder):
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as f:
            os.fsync(f.fileno())
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def timed(arguments, source):
    """Seconds, and the peak of resident memory in GiB: not of wait4, which counts what this process had before exec."""
    forget(source)
    begin, peak = time.monotonic(), 0
    child = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    while child.poll() is None:
        try:
            with open(f"/proc/{child.pid}/status") as f:
                lines = [line for line in f if line.startswith("VmHWM")]
        except OSError:
            lines = []
        if lines:
            peak = int(lines[0].split()[1]) / 2**20
        time.sleep(0.02)
    assert child.returncode == 0, arguments
    return time.monotonic() - begin, peak


def make_seven(folder, layers):
    """Llama 2 7B's shapes in bf16 (or fewer layers of it), one file for each part, of bytes that do not repeat within it."""
    c = transformers.LlamaConfig(vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=layers,
                                 num_attention_heads=32, num_key_value_heads=32, max_position_embeddings=4096, dtype="bfloat16",
                                 architectures=["LlamaForCausalLM"])
    c.save_pretrained(folder)
    with torch.device("meta"):
        shapes = {k: v.shape for k, v in transformers.AutoModelForCausalLM.from_config(c).state_dict().items()}
    parts = {}
    for name in shapes:
        words = name.split(".")
        parts.setdefault(int(words[2]) // 8 if words[1] == "layers" else -1, []).append(name)
    index, random = {}, numpy.random.default_rng(1)
    for number, names in enumerate(parts.values()):
        numbers = random.integers(0, 2**16, sum(shapes[n].numel() for n in names), dtype=numpy.uint16)
        block, at, tensors = torch.from_numpy(numbers).view(torch.bfloat16), 0, {}
        for name in names:
            tensors[name] = block[at:at + shapes[name].numel()].view(shapes[name])
            at += shapes[name].numel()
            index[name] = f"part-{number}.safetensors"
        save_file(tensors, f"{folder}/part-{number}.safetensors", metadata={"format": "pt"})
    with open(f"{folder}/model.safetensors.index.json", "w") as f:
        json.dump({"metadata": {}, "weight_map": index}, f)


def seven(work, layers):
    source, there, back = (os.path.join(work, name) for name in ("seven", "seven-checkpoint", "seven-back"))
    make_seven(source, layers)
    size = sum(os.path.getsize(os.path.join(source, name)) for name in os.listdir(source)) / 1e9
    for arguments, at, to in ((["cp", "-r", source, there], source, there),
                              (["sh", "-c", f"cp -r {source} {there} && sync {there}/*"], source, there),
                              ([PHALANX, "convert", "--from", source, "--to", there], source, there),
                              ([PHALANX, "convert", "--from", there, "--to", back], there, back)):
        if at == source:
            shutil.rmtree(there, ignore_errors=True)
        seconds, peak = timed(arguments, at)
        print(f"{size:.1f} GB: {arguments[0]} {arguments[1]} {os.path.basename(at)}: {seconds:.1f} s, {size / seconds:.2f} GB/s, "
              f"peak {peak:.3f} GiB", flush=True)
        if arguments[0] == PHALANX:
            assert peak < 2, peak
        if at == there:
            shutil.rmtree(there)
    handle = {}
    for folder in (source, back):
        for name in sorted(os.listdir(folder)):
            if name.endswith(".safetensors"):
                with safe_open(os.path.join(folder, name), "pt") as f:
                    for key in f.keys():
                        tensor = f.get_tensor(key)
                        digest = hash(tensor.view(torch.uint8).numpy().tobytes())
                        assert handle.setdefault(key, digest) == digest, key
    print(f"{len(handle)} tensors are the same")


if __name__ == "__main__":
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        if "--seven" in sys.argv:
            seven(folder, int((sys.argv[sys.argv.index("--seven") + 1:] or [32])[0]))
        else:
            for key, value in configurations().items():
                if key in sys.argv[1:] or not sys.argv[1:]:
                    check(key, value, folder)
