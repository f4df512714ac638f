#!/bin/bash
# Tokens/s, TFLOP/s and MFU of training steps on this GPU, op by op beside each op's bound, the step that was planned,
# and PyTorch, eager and compiled, on the same shape and batch where PYTHON has it; what variants of a step take; then
# Nsight Compute's view of the six slowest kernels. Models that do not fit whole lose layers: the number is printed.
# Usage: bench.sh [BUILD] [--only REGEX]     (make bench-gpu; common.sh says more)
# Parts, which REGEX chooses from: machine gpt2-124m qwen-1.5b llama-1b llama-7b llama-8b gpt2-1558m variants ncu.
# PEERS=no leaves PyTorch out. A micro-batch has 4 sequences of 4,096 tokens, or 16 of 1,024; a step 8 or 16 of them.
. "$(dirname "$0")/common.sh"
phalanx=$(program phalanx) python=${PYTHON:-python3}
# sets no_peer: why PyTorch is left out, nothing where it is not; looked for once, and only where it is wanted
look_for_peer() {
    [ -z "${no_peer+set}" ] || return 0
    no_peer="asked for by PEERS=no"
    [ "${PEERS:-yes}" != yes ] || no_peer=$(torch_missing "$python")
}
steps=3 warmup=2
rm -f "$logs/speeds"
[ $standins = no ] || steps=2 warmup=2

config() { # FAMILY LAYERS HIDDEN HEADS KV FFN VOCABULARY SEQUENCE MICRO MICRO_BATCHES
    local extra=
    [ "$1" = gpt2 ] || extra="kv_heads: $5,"
    cat >"$work/config.yaml" <<END
model: {architecture: $1, layers: $2, hidden_size: $3, heads: $4, $extra ffn_size: $6, vocab_size: $7, max_sequence: $8}
train: {device: cuda, precision: bf16, sequence: $8, micro_batch: $9, global_batch: $(($9 * ${10}))}
END
}
write_config() {
    config "$family" "$layers" "$hidden" "$heads" "$kv" "$ffn" "$vocabulary" "$sequence" "$micro" "$count"
}
# the row of the device table, for a plan
device_word() {
    local word
    for word in h100 h200 b200 a100; do
        grep -qi "$word" <<<"$gpu" && echo "$word" && return
    done
    echo h100
}
# what the plan has promised for the same configuration: milliseconds of a step
planned() {
    "$phalanx" plan --json --device "$(device_word)" "$work/config.yaml" >"$logs/$part-$sequence.plan.json" 2>/dev/null
    sed -n 's/.*"step_seconds": *\([0-9.e+-]*\).*/\1/p' "$logs/$part-$sequence.plan.json" | head -1 | awk '{ printf "%.3f", 1e3 * $1 }'
}
# with as many layers as the GPU has memory for; tuning.json, the configuration, clocks and the plan are kept
measure() {
    local kept="$logs/$part-$sequence"
    while :; do
        write_config
        watch_clocks "$kept.clocks.csv"
        within "$limit" "$phalanx" bench --steps $steps --warmup $warmup --tuning "$kept.tuning.json" "$work/config.yaml" >"$work/out" 2>&1
        local result=$?
        clocks_seen "$kept.clocks.csv" >"$work/clocks"
        [ $result != 0 ] || break
        grep -q "GiB too little" "$work/out" || { cat "$work/out"; return 1; }
        layers=$((layers * 7 / 8))
        [ "$layers" -gt 0 ] || return 1
    done
    cp "$work/config.yaml" "$kept.yaml"
    cat "$work/out" "$work/clocks"
    awk -v planned="$(planned)" -v layers="$layers" '
        / steps: median / { sub(/.*median /, ""); step = $1 }
        / tokens\/s, / { sub(/^.*: /, ""); speed = $1 }
        / GFLOP\/s of the model/ { line = $0; sub(/ GFLOP\/s of the model.*/, "", line); sub(/.* /, "", line); flops = line
            line = $0; sub(/.*share /, "", line); share = line + 0; sub(/.*resident /, "", line); resident = line + 0 }
        END { printf "%d layers, %.0f tokens/s, %.3g TFLOP/s, %.1f%% MFU, a step %.2f ms, planned %.2f ms, %.2f GiB\n", layers, speed,
                  flops / 1e3, 100 * share, step, planned, resident
              exit !(speed > 0 && step > 0) }' "$work/out" | tee "$work/speed"
    return "${PIPESTATUS[0]}"
}
peer() { # with a cache of compiled code of its own: one that was cut off may leave halves in the machine's
    TORCHINDUCTOR_CACHE_DIR="$work/inductor" within $((4 * limit)) "$python" "$here/bench_peer.py" "$family" "$layers" "$hidden" "$heads" "$kv" "$ffn" "$vocabulary" "$sequence" "$micro" "$count" |
        tee "$work/peer"
    return "${PIPESTATUS[0]}"
}
# A row of the table of speeds: phalanx, and PyTorch compiled as soon as it is measured, too.
row() { # NAME
    {
        grep -v "^$1 " "$logs/speeds"
        paste -d '|' "$work/speed" <(tail -1 "$work/peer") | awk -F'|' -v name="$1" -v made_up="$standins" '$1 != "" {
            split($1, own, ", "); peer = $2; sub(/.*compiled /, "", peer)
            printf "%-20s %s%s%s%s\n", name, $1, (peer + 0 > 0 ? sprintf("; %.2f x PyTorch compiled", own[2] / peer) : ""),
                ($2 != "" ? "; " $2 : ""), (made_up == "yes" ? " (stand-ins: times are made up)" : "") }'
    } >"$work/speeds" 2>/dev/null
    cp "$work/speeds" "$logs/speeds"
}
# At sequences of 4096 and 1024, or of the one that is given.
bench() { # NAME MICRO_BATCHES FAMILY LAYERS HIDDEN HEADS KV FFN VOCABULARY [SEQUENCE]
    local name=$1 count=$2 family=$3 whole=$4 hidden=$5 heads=$6 kv=$7 ffn=$8 vocabulary=$9 sequence micro layers
    part "$name" || return 0
    for sequence in ${10:-4096 1024}; do
        micro=$((4 * 4096 / sequence)) layers=$whole
        [ $standins = no ] || layers=1 hidden=32 heads=2 kv=1 ffn=32 vocabulary=64 sequence=$((sequence / 256)) micro=1 count=2
        : >"$work/speed" && : >"$work/peer"
        try "$name at $sequence" measure
        row "$name at $sequence"
        look_for_peer
        if [ -z "$no_peer" ]; then
            try "$name at $sequence: PyTorch" peer
            row "$name at $sequence"
        else
            skip "$name at $sequence: PyTorch" "$no_peer"
        fi
    done
}
part machine && try "clocks, power, topology" machine
bench gpt2-124m 16 gpt2 12 768 12 12 3072 50257
bench qwen-1.5b 8 qwen2 28 1536 12 2 8960 151936
bench llama-1b 8 llama 16 2048 32 8 8192 128256
bench llama-7b 8 llama 32 4096 32 32 11008 32000 4096
bench llama-8b 8 llama 32 4096 32 8 14336 128256 8192
bench gpt2-1558m 8 gpt2 48 1600 25 25 6400 50257

# A step of a llama of eight layers, with keys or a table of choices of its own, as JSON; beside the first, in percent.
variant() { # TABLE KEYS...
    local table=$1 result
    shift
    watch_clocks "$work/clocks.csv"
    within "$limit" "$phalanx" bench --json --steps $steps --warmup 3 --tuning "$table" "$work/config.yaml" "$@" >"$work/out" 2>"$work/err"
    result=$?
    clocks_seen "$work/clocks.csv"
    cat "$work/err" "$work/out"
    [ $result = 0 ] || return 1
    sed -n 's/.*"tokens_per_second": *\([0-9.e+-]*\).*/\1/p' "$work/out" >"$work/speed"
    [ -s "$work/first" ] || cp "$work/speed" "$work/first"
    paste "$work/speed" "$work/first" | awk '{ printf "%.0f tokens/s, %+.2f%%\n", $1, 100 * ($1 / $2 - 1) }'
}
# The first one's choices, with attention as it is told.
forced_table() { # own|cuDNN
    awk -v way="$1" '/"key": / { attention = /"key": "attention/ } attention && /"value": / { n += sub(/"value": "[^"]*"/, "\"value\": \"" way "\"") } { print }
        END { exit !n }' "$logs/variants.tuning.json" >"$work/$1.json"
}
forced_variant() { # own|cuDNN
    forced_table "$1" || { echo "there was no choice of attention to force"; return 1; }
    variant "$work/$1.json"
    local result=$?
    cp "$work/$1.json" "$logs/variants-$1.tuning.json"
    return $result
}
if part variants; then
    if [ $standins = no ]; then config llama 8 2048 16 8 8192 128256 4096 4 8; else config llama 1 64 1 1 64 64 16 1 2; fi
    cp "$work/config.yaml" "$logs/variants.yaml"
    try "as it is by default" variant "$logs/variants.tuning.json"
    try "one CUDA graph" variant "$logs/variants.tuning.json" train.cuda_graph=true
    if cudnn_found; then
        try "attention by our kernels" forced_variant own
        try "attention by cuDNN" forced_variant cuDNN
    else
        skip "attention by cuDNN" "libcudnn.so.9 is not found"
    fi
    try "fp16" variant "$logs/variants-fp16.tuning.json" train.precision=fp16
    try "train.deterministic=false" variant "$logs/variants-varies.tuning.json" train.deterministic=false
    try "the default again" variant "$logs/variants.tuning.json"
fi

# Of one step of a small llama-1b: the time of each kernel, and all sections for the six that take most. What is chosen
# by timing is chosen before; ncu sees the launches of one step.
chosen() {
    within "$limit" "$phalanx" bench --tuning "$logs/ncu.tuning.json" --range --warmup 1 "$work/config.yaml"
}
under_ncu() { # LIMIT ARGUMENTS...
    local seconds=$1
    shift
    within "$seconds" ncu --profile-from-start off "$@" "$phalanx" bench --tuning "$logs/ncu.tuning.json" --range --warmup 1 "$work/config.yaml"
}
slowest() {
    under_ncu $((3 * limit)) --csv --page raw --print-units base --metrics gpu__time_duration.sum >"$work/kernels.csv" 2>"$work/ncu.err" || { cat "$work/ncu.err"; return 1; }
    awk -F'","' 'NR == 1 { next } $5 != "" { time = $NF; gsub(/[",]/, "", time); sum[$5] += time }
                 END { for (k in sum) printf "%.0f\t%s\n", sum[k], k }' < <(grep '^"' "$work/kernels.csv" | grep -v '^"","') |
        sort -rn | head -6 | tee "$work/slowest"
    [ -s "$work/slowest" ]
}
named_slowest() {
    cat "$work/ncu.err" "$work/slowest"
    awk -F'\t' '{ name = $2; sub(/[<(].*/, "", name); sub(/.*[ :]/, "", name)
                  printf "%s%s %.1f us", (NR > 1 ? ", " : ""), name, $1 / 1e3 } END { print ""; exit !NR }' "$work/slowest"
}
look_at() { # KERNEL
    under_ncu "$limit" --set full --kernel-name "$1" --launch-count 1
}
forbidden() {
    grep -qh ERR_NVGPUCTRPERM "$work/kernels.csv" "$work/ncu.err" 2>/dev/null
}
if part ncu; then
    if [ $standins = no ]; then config llama 2 2048 32 8 8192 128256 4096 4 2; else config llama 1 32 2 1 32 64 16 1 2; fi
    if ! command -v ncu >/dev/null; then
        skip "the slowest kernels" "ncu is not installed: the ops of bench are the times that there are"
    else
        try "what is chosen by timing" chosen
        slowest >"$logs/ncu_slowest.log" 2>&1
        if forbidden; then
            skip "the slowest kernels" "this machine forbids performance counters (ERR_NVGPUCTRPERM): the ops of bench are the times that there are"
        else
            try "the slowest kernels" named_slowest
            while IFS=$'\t' read -r _ kernel; do
                kernel=${kernel%%[\<\(]*} kernel=${kernel##*[ :]} # without type, arguments, and those of a template
                try "ncu: $kernel" look_at "$kernel"
            done < <(cat "$work/slowest" 2>/dev/null)
        fi
    fi
fi
cat "$logs/speeds" 2>/dev/null
table bench-gpu
