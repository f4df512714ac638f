#!/bin/bash
# Tokens/s, TFLOP/s and MFU of training steps on this GPU, op by op beside each op's bound, and PyTorch, eager and
# compiled, on the same shape and batch where PYTHON has it; then Nsight Compute's view of the six slowest kernels.
# Models that do not fit whole lose layers: the number is printed.
# Usage: bench.sh [BUILD] [--only REGEX]     (make bench-gpu; common.sh says more)
# Parts, which REGEX chooses from: gpt2-124m gpt2-1558m llama-1b qwen-1.5b llama-7b ncu.
. "$(dirname "$0")/common.sh"
phalanx=$(program phalanx) python=${PYTHON:-python3}
peers=$("$python" -c 'import torch, transformers' 2>/dev/null && echo yes || echo no)
steps=8 warmup=4
[ $standins = no ] || steps=2 warmup=1

config() { # FAMILY LAYERS HIDDEN HEADS KV FFN VOCABULARY SEQUENCE MICRO
    local extra=
    [ "$1" = gpt2 ] || extra="kv_heads: $5,"
    cat >"$work/config.yaml" <<END
model: {architecture: $1, layers: $2, hidden_size: $3, heads: $4, $extra ffn_size: $6, vocab_size: $7, max_sequence: $8}
train: {device: cuda, precision: bf16, sequence: $8, micro_batch: $9, global_batch: $(($9 * 4))}
END
}
# with as many layers as the GPU has memory for
measure() {
    while :; do
        config "$family" "$layers" "$hidden" "$heads" "$kv" "$ffn" "$vocabulary" "$sequence" "$micro"
        timeout "$limit" "$phalanx" bench --steps $steps --warmup $warmup "$work/config.yaml" >"$work/out" 2>&1 && break
        grep -q "GiB too little" "$work/out" || { cat "$work/out"; return 1; }
        layers=$((layers * 7 / 8))
        [ "$layers" -gt 0 ] || return 1
    done
    cat "$work/out"
    echo "$layers layers: $(grep -m1 -E 'tokens/s' "$work/out")"
}
peer() {
    timeout $((4 * limit)) "$python" "$here/bench_peer.py" "$family" "$layers" "$hidden" "$heads" "$kv" "$ffn" "$vocabulary" "$sequence" "$micro" 4
}
bench() { # NAME FAMILY LAYERS HIDDEN HEADS KV FFN VOCABULARY MICRO(at a sequence of 4096)
    local name=$1 family=$2 layers=$3 hidden=$4 heads=$5 kv=$6 ffn=$7 vocabulary=$8 sequence micro
    part "$name" || return 0
    for sequence in 4096 1024; do
        micro=$(($9 * 4096 / sequence))
        [ $standins = no ] || layers=1 hidden=32 heads=2 kv=1 ffn=32 vocabulary=64 sequence=$((sequence / 256)) micro=1
        try "$name at $sequence" measure
        if [ $peers = yes ]; then
            try "$name at $sequence: PyTorch" peer
        else
            skip "$name at $sequence: PyTorch" "$python has no torch and transformers"
        fi
    done
}
bench llama-1b llama 16 2048 32 8 8192 128256 1
bench qwen-1.5b qwen2 28 1536 12 2 8960 151936 1
bench llama-7b llama 32 4096 32 32 11008 32000 1
bench gpt2-124m gpt2 12 768 12 12 3072 50257 4
bench gpt2-1558m gpt2 48 1600 25 25 6400 50257 1

# Of one step of a small llama-1b: the time of each kernel, and all sections for the six that take most.
slowest() {
    if [ $standins = no ]; then config llama 2 2048 32 8 8192 128256 4096 1; else config llama 1 32 2 1 32 64 16 1; fi
    timeout $((3 * limit)) ncu --csv --page raw --metrics gpu__time_duration.sum --launch-count 2000 \
        "$phalanx" bench --steps 1 --warmup 1 "$work/config.yaml" >"$work/kernels.csv" || return 1
    awk -F'","' 'NR == 1 { next } $5 != "" { time = $NF; gsub(/[",]/, "", time); sum[$5] += time }
                 END { for (k in sum) printf "%.0f\t%s\n", sum[k], k }' < <(grep '^"' "$work/kernels.csv" | grep -v '^"","') |
        sort -rn | head -6 | tee "$work/slowest"
    [ -s "$work/slowest" ]
}
look_at() { # KERNEL
    timeout "$limit" ncu --set full --kernel-name "$1" --launch-count 1 "$phalanx" bench --steps 1 --warmup 1 "$work/config.yaml"
}
if part ncu; then
    if command -v ncu >/dev/null; then
        try "the slowest kernels" slowest
        while IFS=$'\t' read -r _ kernel; do
            kernel=${kernel%%[\<\(]*} # without arguments, and those of a template
            try "ncu: $kernel" look_at "${kernel##*[ :]}"
        done < <(cat "$work/slowest" 2>/dev/null)
    else
        skip "the slowest kernels" "ncu is not installed"
    fi
fi
table bench-gpu
