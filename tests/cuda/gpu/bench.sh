#!/bin/bash
# Tokens/s, TFLOP/s and MFU of training steps on this GPU, op by op beside each op's bound, and PyTorch on the same shape and
# batch where PYTHON has it. Models that do not fit whole lose layers: the number is printed. Usage: tests/cuda/gpu/bench.sh BUILD
set -u
build=$1 python=${PYTHON:-python3}
command -v nvidia-smi >/dev/null && nvidia-smi -L | grep -q GPU || { echo "bench-gpu: no GPU here"; exit 77; }
nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
peers=$("$python" -c 'import torch, transformers' 2>/dev/null && echo yes || echo no)

# NAME FAMILY LAYERS HIDDEN HEADS KV FFN VOCABULARY; sequence and micro-batches are the caller's
bench() {
    local name=$1 family=$2 layers=$3 hidden=$4 heads=$5 kv=$6 ffn=$7 vocabulary=$8 sequence=$9 micro=${10}
    local extra=
    [ "$family" = llama ] && extra="kv_heads: $kv,"
    while :; do
        cat >"$work/config.yaml" <<END
model: {architecture: $family, layers: $layers, hidden_size: $hidden, heads: $heads, $extra ffn_size: $ffn, vocab_size: $vocabulary, max_sequence: $sequence}
train: {device: cuda, precision: bf16, sequence: $sequence, micro_batch: $micro, global_batch: $((micro * 4))}
END
        "$build/phalanx" bench --steps 8 --warmup 4 "$work/config.yaml" >"$work/out" 2>&1 && break
        grep -q "GiB too little" "$work/out" || break
        layers=$((layers * 7 / 8))
        [ "$layers" -gt 0 ] || break
    done
    echo "== $name: $layers layers, sequence $sequence, micro-batch $micro x 4"
    cat "$work/out"
    [ "$peers" = no ] || "$python" tests/cuda/gpu/bench_peer.py "$family" "$layers" "$hidden" "$heads" "$kv" "$ffn" "$vocabulary" \
        "$sequence" "$micro" 4 2>/dev/null
}

for sequence in 1024 4096; do
    scale=$((4096 / sequence))
    bench gpt2-124m gpt2 12 768 12 12 3072 50257 $sequence $((4 * scale))
    bench gpt2-1558m gpt2 48 1600 25 25 6400 50257 $sequence $((1 * scale))
    bench llama-1b llama 16 2048 32 8 8192 128256 $sequence $((1 * scale))
    bench llama-7b llama 32 4096 32 32 11008 32000 $sequence $((1 * scale))
done
