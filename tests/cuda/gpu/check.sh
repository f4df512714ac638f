#!/bin/bash
# What can only be shown on a GPU: kernels and ops against float64, the CUDA losses against the CPU's, resume bit for bit,
# device memory beyond the arena, NCCL between ranks that share the GPU, and a small step under compute-sanitizer.
# Usage: tests/cuda/gpu/check.sh BUILD [--only REGEX]     (make check-gpu)
# Parts, which REGEX chooses from: kernels ops cudnn gpt2 llama gpt2-ranks llama-ranks memory sanitizer. A line for each case as
# it ends, a table of parts last. With OUT=FOLDER in the environment each case's log stays there. A case has 60 seconds
# (CASE_SECONDS).
set -u
build=$(cd "$1" && pwd)
only=.
[ "${2:-}" != --only ] || only=${3:?--only REGEX}
limit=${CASE_SECONDS:-60}
command -v nvidia-smi >/dev/null && nvidia-smi -L | grep -q GPU || { echo "check-gpu: no GPU here: nothing was shown"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=4
passed=0 failed=0 skipped=0 part=
logs=${OUT:-$work/logs}
mkdir -p "$logs"
part() { # NAME: is it asked for?
    part=$1
    grep -qE "$only" <<<"$part"
}
try() { # NAME COMMAND...
    local name=$1 log began=$SECONDS verdict
    shift
    log=$logs/$(printf '%s' "$part $name" | tr -c 'A-Za-z0-9.=-' _).log
    if "$@" >"$log" 2>&1 </dev/null; then # mpirun would read the list of layouts
        passed=$((passed + 1)) verdict=OK
        echo "[  OK  ] $name: $(tail -1 "$log")"
    else
        failed=$((failed + 1)) verdict=FAILED
        echo "[FAILED] $name"
        tail -15 "$log"
    fi
    echo "$part $verdict $((SECONDS - began))" >>"$work/table"
}
skip() { # CASES
    skipped=$((skipped + $1))
    echo "$part skipped 0" >>"$work/table"
}

python3 - "$work" <<'END'
import random, struct, sys
random.seed(1)
n = 200000
tokens = [random.choice((t, (t * 7 + 3) % 512, 11)) for t in (random.randrange(512) for _ in range(n))]
open(sys.argv[1] + "/data.bin", "wb").write(struct.pack(f"<{n}H", *tokens))
open(sys.argv[1] + "/data.idx", "wb").write(b"MMIDIDX\0\0" + struct.pack("<QBQQiqqq", 1, 8, 1, 2, n, 0, 0, 1))
END
config() { # NAME, SHAPE
    cat >"$work/$1.yaml" <<END
model: {$2, vocab_size: 512, max_sequence: 256}
data: {train: $work/data}
train: {steps: 20, sequence: 256, micro_batch: 2, global_batch: 8, precision: fp32, seed: 3}
optimizer: {lr: 1e-3, warmup: 5}
evaluate: {every: 0}
checkpoint: {every: 0, resume: never}
run: {tensorboard: false}
END
}
config gpt2 "architecture: gpt2, layers: 4, hidden_size: 256, heads: 4, ffn_size: 1024"
config llama "architecture: llama, layers: 4, hidden_size: 256, heads: 4, kv_heads: 2, ffn_size: 768"

train() { # RANKS CONFIG FOLDER KEYS...
    local ranks=$1 config=$2 folder=$3
    shift 3
    local launch=()
    [ "$ranks" -gt 1 ] && launch=(mpirun --allow-run-as-root --oversubscribe --bind-to none -x PHALANX_SHARE_GPU=1 -np "$ranks")
    timeout "$limit" "${launch[@]}" "$build/phalanx" train "$work/$config.yaml" run.folder="$work/$folder" "$@"
}
# the losses of two runs within a relative tolerance (0: bit for bit), and as many of them
compare() { # FOLDER FOLDER TOLERANCE
    python3 - "$work/$1/metrics.jsonl" "$work/$2/metrics.jsonl" "$3" <<'END'
import json, sys
a, b = ([json.loads(l)["loss"] for l in open(p) if '"loss"' in l] for p in sys.argv[1:3])
worst = max(abs(x - y) / abs(y) for x, y in zip(a, b))
print(f"{len(a)} steps, worst {worst:.3g} of {sys.argv[3]}")
sys.exit(not (len(a) == len(b) > 0 and worst <= float(sys.argv[3])))
END
}

# a run whose table of choices says how attention is computed: own, or cuDNN
forced() { # WAY CONFIG FOLDER
    mkdir -p "$work/$3"
    python3 - "$work/$2-bf16/tuning.json" "$work/$3/tuning.json" "$1" <<'END'
import json, sys
table = json.load(open(sys.argv[1]))
for c in table["choices"]:
    if c["key"].startswith("attention"):
        c["value"] = sys.argv[3]
json.dump(table, open(sys.argv[2], "w"))
END
    train 1 "$2" "$3" train.device=cuda train.precision=bf16
}
# what timing chose for attention, and its microseconds
chosen() { # FOLDER
    python3 - "$work/$1/tuning.json" <<'END'
import json, sys
print("; ".join(f'{c["key"].split(",")[0]}: {c["value"]}, {c["microseconds"]:.1f} us'
                for c in json.load(open(sys.argv[1]))["choices"] if c["key"].startswith("attention")) or sys.exit("no choice"))
END
}

ln -sf "$build/libphalanx_cuda.so" "$build/tests/libphalanx_cuda.so"
part kernels && try "kernels against float64" timeout 480 "$build/tests/test_cuda_kernels_gpu"
part ops && try "ops of the table against float64" timeout 480 "$build/device_ops"

# `eval` and `generate` of a run on both devices: the loss within 1e-5, the likeliest text letter by letter
evaluate() { # FOLDER
    for device in cpu cuda; do
        "$build/phalanx" eval --checkpoint "$work/$1" --data "$work/data" --limit 20000 --json --device $device >"$work/$device" || return 1
    done
    python3 -c "
import json
a, b = (json.load(open('$work/' + device))['loss'] for device in ('cuda', 'cpu'))
print(a, b)
exit(abs(a - b) > 1e-5 * b)"
}
generate() { # FOLDER
    printf '%s\n' one 'and two' 3 >"$work/prompts"
    for device in cpu cuda; do
        "$build/phalanx" generate --checkpoint "$work/$1" --prompts "$work/prompts" --tokenizer bytes --ignore-end --temperature 0 \
            --tokens 100 --batch 2 --device $device >"$work/$device" || return 1
    done
    wc -c <"$work/cpu" && cmp "$work/cpu" "$work/cuda"
}
# the gradient is cuDNN's on Hopper only: kernels/cuda/cudnn.c
cudnn=no
ldconfig -p | grep -q 'libcudnn\.so\.9' && cudnn=yes
hopper=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | grep -q '^9\.' && echo yes || echo no)
if ! part cudnn; then
    :
elif [ $cudnn = yes ]; then
    try "attention by cuDNN against float64" "$build/device_ops" attention cuDNN
    [ "$hopper" = no ] || try "its gradient by cuDNN against float64" "$build/device_ops" attention_grad cuDNN
else
    skip 1
fi

one_rank() { # MODEL
    local model=$1
    try "$model: cpu, fp32" train 1 $model $model-cpu train.device=cpu checkpoint.every=20
    for precision in fp32 bf16 fp16; do
        try "$model: cuda, $precision" train 1 $model $model-$precision train.device=cuda train.precision=$precision
    done
    try "$model: fp32 losses equal the CPU's" compare $model-fp32 $model-cpu 1e-4
    try "$model: its loss is the CPU's" evaluate $model-cpu
    try "$model: its likeliest texts are the CPU's" generate $model-cpu
    try "$model: bf16 losses follow" compare $model-bf16 $model-cpu 2e-2
    try "$model: fp16 losses follow" compare $model-fp16 $model-cpu 2e-2
    try "$model: a rerun" train 1 $model $model-again train.device=cuda train.precision=bf16
    try "$model: reruns are bitwise" compare $model-again $model-bf16 0
    if [ $cudnn = yes ]; then
        try "$model: attention chosen" chosen $model-bf16
        try "$model: attention by our kernels" forced own $model $model-own
        try "$model: attention by cuDNN" forced cuDNN $model $model-cudnn
        try "$model: attention by cuDNN, a rerun" forced cuDNN $model $model-cudnn-again
        try "$model: cuDNN's losses follow ours" compare $model-cudnn $model-own 5e-3
        try "$model: cuDNN's reruns are bitwise" compare $model-cudnn-again $model-cudnn 0
    fi
    try "$model: a CUDA graph" train 1 $model $model-graph train.device=cuda train.precision=bf16 train.cuda_graph=true
    try "$model: a CUDA graph changes nothing" compare $model-graph $model-bf16 0
    try "$model: the first half" train 1 $model $model-half train.device=cuda train.precision=bf16 checkpoint.every=10 checkpoint.keep=0
    rm -rf "$work/$model-half/checkpoints/step-00000020"
    echo step-00000010 >"$work/$model-half/checkpoints/latest"
    try "$model: the second half" train 1 $model $model-half train.device=cuda train.precision=bf16 checkpoint.resume=auto
    try "$model: resume is bitwise" compare $model-half $model-bf16 0
}
several_ranks() { # MODEL
    local model=$1
    [ -d "$work/$model-fp32" ] || try "$model: cuda, fp32" train 1 $model $model-fp32 train.device=cuda train.precision=fp32
    while read -r ranks name keys; do
        try "$model: NCCL, $name" train "$ranks" $model $model-$name train.device=cuda $keys
        try "$model: $name equals one rank" compare $model-$name $model-fp32 1e-4
        try "$model: NCCL in a graph, $name" train "$ranks" $model $model-$name-graph train.device=cuda train.cuda_graph=true $keys
        try "$model: $name, the graph changes nothing" compare $model-$name-graph $model-$name 0
    done <<END
2 tensor2 parallel.tensor=2
2 pipeline2 parallel.pipeline=2
2 data2-zero0 parallel.zero=0
2 data2-zero1 parallel.zero=1
2 data2-zero3 parallel.zero=3
4 tensor2-pipeline2 parallel.tensor=2 parallel.pipeline=2
4 tensor2-data2-zero3 parallel.tensor=2 parallel.zero=3
END
}
for model in gpt2 llama; do
    part $model && one_rank $model
    part $model-ranks && several_ranks $model
done

# Promise 1: device memory of the process beyond the arena is the same small constant for two models of different size.
beyond() { # LAYERS
    local folder=memory-$1 most=0 used
    train 1 llama $folder train.device=cuda train.precision=bf16 model.layers="$1" train.steps=400 >/dev/null 2>&1 &
    local shell=$!
    while kill -0 $shell 2>/dev/null; do
        used=$(nvidia-smi --query-compute-apps=used_memory --format=csv,noheader,nounits | sort -n | tail -1)
        [ "${used:-0}" -gt "$most" ] 2>/dev/null && most=$used
        sleep 0.2
    done
    python3 -c "
import json
s = json.load(open('$work/$folder/summary.json'))
print($most - s['ranks'][0]['arena_bytes'] // 2**20)"
}
part memory && small=$(beyond 2) large=$(beyond 24) &&
    try "device memory beyond the arena is constant ($small and $large MiB)" test $((large - small)) -le 4 -a $((small - large)) -le 4

if ! part sanitizer; then
    :
elif command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck initcheck; do
        try "compute-sanitizer $tool" compute-sanitizer --tool $tool --error-exitcode 1 "$build/phalanx" train "$work/llama.yaml" \
            run.folder="$work/sanitizer" train.device=cuda train.precision=bf16 train.steps=1 train.sequence=64 model.layers=1 train.global_batch=2
    done
else
    skip 3
fi
awk '{ ok[$1] += $2 == "OK"; bad[$1] += $2 == "FAILED"; s[$1] += $3; if (!seen[$1]++) name[++n] = $1 }
     END { for (i = 1; i <= n; i++) printf "%-12s %3d passed %3d failed %4d s\n", name[i], ok[name[i]], bad[name[i]], s[name[i]] }' \
    "$work/table" 2>/dev/null
echo "check-gpu: $passed passed, $failed failed, $skipped skipped ($(nvidia-smi --query-gpu=name --format=csv,noheader | head -1))"
[ $failed -eq 0 ]
