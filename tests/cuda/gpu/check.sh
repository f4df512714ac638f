#!/bin/bash
# What can only be shown on a GPU: kernels and ops against float64, the CUDA losses against the CPU's and against
# PyTorch's from the same weights on the same data, evaluation, generation, resume bit for bit, device memory beyond
# the arena, NCCL between ranks that share the GPU, what the others do when one is killed, two hosts that are made up,
# probes of what the engine does not use yet, and a small step under compute-sanitizer.
# Usage: check.sh [BUILD] [--only REGEX]     (make check-gpu; common.sh says more)
# Parts, which REGEX chooses from: versions self-check kernels ops cudnn gpt2 llama latent sinks clip wide gpt2-ranks
# llama-ranks context latent-ranks four-ranks pytorch killed two-hosts probes memory sanitizer. Where the programs are
# linked with the stand-ins, sizes are small: that tries the scripts, and shows nothing of a GPU.
. "$(dirname "$0")/common.sh"
export OMP_NUM_THREADS=4
phalanx=$(program phalanx)

if [ $standins = yes ]; then
    layers=2 hidden=32 heads=4 ffn=64 wide=96 wide_heads=2 sequence=16 micro=1 batch=4 steps=4 small=1 large=3 words=2000
    latent="head_size: 24, kv_lora_rank: 16, rope_head_size: 8, v_head_size: 16"
    export OMP_NUM_THREADS=1
else
    layers=4 hidden=256 heads=4 ffn=1024 wide=12288 wide_heads=96 sequence=256 micro=2 batch=8 steps=20 small=2 large=24 words=60000
    latent="head_size: 192, kv_lora_rank: 128, rope_head_size: 64, v_head_size: 128" # the sizes of our flash kernels
fi
awk -v n=$words 'BEGIN { srand(1); for (i = 0; i < n; i++) printf "%c%c%s", 97 + int(26 * rand()), 97 + (i * 7) % 26, i % 9 ? " " : ".\n" }' >"$work/text"
"$phalanx" tokenize --output "$work/data" --tokenizer bytes "$work/text" >/dev/null || exit 1
config() { # NAME SHAPE
    cat >"$work/$1.yaml" <<END
model: {$2, vocab_size: 512, max_sequence: $sequence}
data: {train: $work/data}
train: {steps: $steps, sequence: $sequence, micro_batch: $micro, global_batch: $batch, precision: fp32, seed: 3, device: cuda}
optimizer: {lr: 1e-3, warmup: 2}
evaluate: {every: 0}
checkpoint: {every: 0, resume: never}
run: {tensorboard: false}
END
}
config gpt2 "architecture: gpt2, layers: $layers, hidden_size: $hidden, heads: $heads, ffn_size: $ffn"
config llama "architecture: llama, layers: $layers, hidden_size: $hidden, heads: $heads, kv_heads: $((heads / 2)), ffn_size: $ffn"
# latent attention, two of four experts a token and one for all, a block behind the last layer; sinks and biased
# experts; QK-clip where each head has a key of its own, with a threshold that scores reach
experts="experts: 4, experts_per_token: 2, expert_ffn_size: $ffn"
config latent "architecture: deepseek_v3, layers: $layers, hidden_size: $hidden, heads: $heads, ffn_size: $ffn, $latent, dense_layers: 1, mtp_layers: 1, shared_experts: 1, $experts"
config sinks "architecture: gpt_oss, layers: $layers, hidden_size: $hidden, heads: $heads, kv_heads: $((heads / 2)), sliding_window: 8, $experts"
config clip "architecture: llama, layers: $layers, hidden_size: $hidden, heads: $heads, kv_heads: $heads, ffn_size: $ffn"
sed -i 's/^optimizer: .*/optimizer: {name: muon, lr: 1e-3, muon_lr: 0.02, warmup: 2, qk_clip: 0.02}/' "$work/latent.yaml" "$work/clip.yaml"
config gpt2-wide "architecture: gpt2, layers: 1, hidden_size: $wide, heads: $wide_heads, ffn_size: $ffn"
config llama-wide "architecture: llama, layers: 1, hidden_size: $wide, heads: $wide_heads, kv_heads: 2, ffn_size: $ffn"

train() { # RANKS CONFIG FOLDER KEYS...
    local ranks=$1 config=$2 folder=$3 launch=()
    shift 3
    [ "$ranks" -gt 1 ] && launch=(mpirun --allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 --mca plm_rsh_agent sh # no ssh
        -x PHALANX_SHARE_GPU=1 -np "$ranks")
    within "$limit" ${launch[@]+"${launch[@]}"} "$phalanx" train "$work/$config.yaml" run.folder="$work/$folder" "$@" && trained "$folder"
}
losses() { # FOLDER
    sed -n 's/.*"loss": *\([-+0-9.eE]*\).*/\1/p' "$work/$1/metrics.jsonl"
}
trained() { # FOLDER: the last line of a run's log
    losses "$1" | awk 'NR == 1 { first = $1 } END { printf "%d steps, loss %s to %s\n", NR, first, $1; exit !NR }'
}
# the losses of two runs within a relative tolerance (0: bit for bit), and as many of them
compare() { # FOLDER FOLDER TOLERANCE
    paste <(losses "$1") <(losses "$2") | awk -v most="$3" '
        NF != 2 { bad++ }
        NF == 2 { d = ($1 - $2) / $2; d = d < 0 ? -d : d; worst = d > worst ? d : worst; n++ }
        END { printf "%d steps, worst %.3g of %s\n", n, worst, most; exit !(n > 0 && !bad && worst <= most + 0) }'
}
# a run whose table of choices says how attention is computed: own, or cuDNN
forced() { # WAY CONFIG FOLDER
    mkdir -p "$work/$3"
    awk -v way="$1" '/"key": / { attention = /"key": "attention/ } attention && /"value": / { sub(/"value": "[^"]*"/, "\"value\": \"" way "\"") } { print }' \
        "$work/$2-bf16/tuning.json" >"$work/$3/tuning.json"
    train 1 "$2" "$3" train.precision=bf16
}
# what timing chose for attention, and its microseconds
chosen() { # FOLDER
    awk '/"key": / { split($0, k, "\""); attention = k[4] ~ /^attention/ } attention && /"value": / { split($0, v, "\"") }
         attention && /"microseconds": / { sub(/,.*/, "", k[4]); printf "%s by %s in %.1f us; ", k[4], v[4], $2; n++ } END { print ""; exit !n }' "$work/$1/tuning.json"
}
number() { # NAME: of JSON
    sed -n 's/.*"'"$1"'": *\([-+0-9.eE]*\).*/\1/p'
}
# `eval` and `generate` of a run on both devices: the loss within 1e-5, the likeliest text letter by letter
evaluate() { # FOLDER
    local on
    for on in cpu cuda; do
        within "$limit" "$phalanx" eval --checkpoint "$work/$1" --data "$work/data" --limit $((sequence * 64)) --json --device $on >"$work/$on" || return 1
    done
    paste <(number loss <"$work/cuda") <(number loss <"$work/cpu") | awk '{ d = $1 - $2; printf "cuda %s, cpu %s\n", $1, $2; exit !(NF == 2 && d * d <= 1e-10 * $2 * $2) }'
}
generate() { # FOLDER
    local on
    printf '%s\n' one 'and two' 3 >"$work/prompts"
    for on in cpu cuda; do
        within "$limit" "$phalanx" generate --checkpoint "$work/$1" --prompts "$work/prompts" --tokenizer bytes --ignore-end \
            --temperature 0 --tokens $((sequence / 3)) --batch 2 --device $on >"$work/$on" || return 1
    done
    [ -s "$work/cpu" ] && cmp "$work/cpu" "$work/cuda" && echo "$(wc -c <"$work/cpu") bytes of $(wc -l <"$work/prompts") prompts are equal"
}

versions() {
    if [ $standins = no ]; then
        nvidia-smi --query-gpu=name,memory.total,driver_version,compute_cap --format=csv,noheader
        ldd "$bin/libphalanx_cuda.so" | grep -E 'cublasLt|nccl' || return 1
        ldd "$bin/libphalanx_cuda.so" | grep 'not found' && return 1
    fi
    uname -srm && "$phalanx" --version && mpirun --version | head -1
}
part versions && try "driver, libraries, mpirun" versions
# what only this machine can judge; its lines are in the log, the wrong ones here, too
self_check() {
    local result
    within "$part_limit" "$phalanx" bench --self-check train.device=cuda >"$work/self-check" 2>&1
    result=$?
    grep -v '^standin' "$work/self-check"
    [ $result = 0 ] || grep '^WRONG' "$work/self-check" | head -12
    return $result
}
part self-check && try "what only this machine can judge" self_check
if part kernels; then
    kernels=$(program test_cuda_kernels_gpu)
    if [ -x "$kernels" ]; then
        try "kernels against float64" within "$part_limit" "$kernels"
    else
        skip "kernels against float64" "built for a GPU only"
    fi
fi
ops=$(program device_ops)
# What the CPU computes beside the device takes longest: the cases are divided among several programs. On the stand-ins
# one share of OPS_SHARES is tried, 64 of all ops, 8 of one (1: all, minutes).
against_reference() { # [OP WAY]
    local share result=0 programs=() shares played
    if [ $standins = yes ]; then
        shares=${OPS_SHARES:-$(($# ? 8 : 64))} played=1
    else
        shares=$(nproc)
        shares=$((shares < 8 ? shares : 8)) played=$shares
    fi
    for ((share = 0; share < played; share++)); do
        DEVICE_OPS_SHARE=$share/$shares within "$part_limit" "$ops" "$@" >"$work/ops.$share" 2>&1 &
        programs+=($!)
    done
    for share in "${!programs[@]}"; do
        wait "${programs[$share]}" || { result=$? && echo "share $share of $shares: status $result"; }
        grep -v ' 0 cases' "$work/ops.$share"
    done
    [ $result != 124 ] || late=$part_limit
    sed -n 's/^device_ops: //p' "$work"/ops.* | awk -v of="$shares" '{ n++; cases += $3; bad += $5 }
        END { printf "%d cases (%d of %d shares), %d failed\n", cases, n, of, bad; exit !cases }' || [ $result != 0 ] || result=1
    return $result
}
part ops && try "ops of the table against float64" against_reference

# the gradient is cuDNN's on 9.0, and on 10.x from 9.18.1 on: kernels/cuda/cudnn_graph.c
cudnn=no
cudnn_found && cudnn=yes
hopper=yes
[ $standins = yes ] || nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | grep -Eq '^(9|10)\.' || hopper=no
if ! part cudnn; then
    :
elif [ $cudnn = yes ]; then
    try "attention by cuDNN against float64" against_reference attention cuDNN
    [ $hopper = no ] || try "its gradient by cuDNN against float64" against_reference attention_grad cuDNN
else
    skip "attention by cuDNN" "libcudnn.so.9 is not found"
fi

one_rank() { # MODEL [cuDNN: it is compared with our kernels, forwards and backwards]
    local model=$1 library=${2:-} half
    try "$model: cpu, fp32" train 1 $model $model-cpu train.device=cpu checkpoint.every=$steps
    for precision in fp32 bf16 fp16; do
        try "$model: cuda, $precision" train 1 $model $model-$precision train.precision=$precision
    done
    try "$model: fp32 losses equal the CPU's" compare $model-fp32 $model-cpu 1e-4
    try "$model: its loss is the CPU's" evaluate $model-cpu
    try "$model: its likeliest texts are the CPU's" generate $model-cpu
    try "$model: bf16 losses follow" compare $model-bf16 $model-cpu 2e-2
    try "$model: fp16 losses follow" compare $model-fp16 $model-cpu 2e-2
    try "$model: a rerun" train 1 $model $model-again train.precision=bf16
    try "$model: reruns are bitwise" compare $model-again $model-bf16 0
    if [ $cudnn = yes ] && [ "$library" = cuDNN ]; then
        try "$model: attention chosen" chosen $model-bf16
        try "$model: attention by our kernels" forced own $model $model-own
        try "$model: attention by cuDNN" forced cuDNN $model $model-cudnn
        try "$model: attention by cuDNN, a rerun" forced cuDNN $model $model-cudnn-again
        try "$model: cuDNN's losses follow ours" compare $model-cudnn $model-own 5e-3
        try "$model: cuDNN's reruns are bitwise" compare $model-cudnn-again $model-cudnn 0
    fi
    try "$model: a CUDA graph" train 1 $model $model-graph train.precision=bf16 train.cuda_graph=true
    try "$model: a CUDA graph changes nothing" compare $model-graph $model-bf16 0
    try "$model: offloaded state" train 1 $model $model-offload train.precision=bf16 memory.offload=optimizer memory.window=64KiB
    try "$model: offloading changes nothing" compare $model-offload $model-bf16 0
    try "$model: the first half" train 1 $model $model-half train.precision=bf16 checkpoint.every=$((steps / 2)) checkpoint.keep=0
    rm -rf "$work/$model-half/checkpoints/step-$(printf %08d $steps)"
    half=step-$(printf %08d $((steps / 2)))
    echo "$half" >"$work/$model-half/checkpoints/latest"
    try "$model: the second half" train 1 $model $model-half train.precision=bf16 checkpoint.resume=auto
    try "$model: resume is bitwise" compare $model-half $model-bf16 0
}
wide() { # MODEL: the widths of the largest models, which take all of a multiprocessor's shared memory
    try "$1, $wide wide: cpu" train 1 $1-wide $1-wide-cpu train.device=cpu train.steps=2
    try "$1, $wide wide: cuda" train 1 $1-wide $1-wide-cuda train.steps=2
    try "$1, $wide wide: equals the CPU" compare $1-wide-cuda $1-wide-cpu 1e-4
}
several_ranks() { # MODEL, and lines of ranks, name and keys
    local model=$1
    [ -d "$work/$model-fp32" ] || try "$model: cuda, fp32" train 1 $model $model-fp32
    while read -r ranks name keys; do
        try "$model: NCCL, $name" train "$ranks" $model $model-$name $keys
        try "$model: $name equals one rank" compare $model-$name $model-fp32 1e-4
        try "$model: NCCL in a graph, $name" train "$ranks" $model $model-$name-graph train.cuda_graph=true $keys
        try "$model: $name, the graph changes nothing" compare $model-$name-graph $model-$name 0
    done
}
part gpt2 && one_rank gpt2 cuDNN
part llama && one_rank llama cuDNN
part latent && one_rank latent
part sinks && one_rank sinks
part clip && one_rank clip
part wide && wide gpt2 && wide llama
for model in gpt2 llama; do
    part $model-ranks && several_ranks $model <<END
2 tensor2 parallel.tensor=2
2 pipeline2 parallel.pipeline=2
2 data2-zero1 parallel.zero=1
2 data2-zero3 parallel.zero=3
END
done
part context && for model in gpt2 llama; do
    several_ranks $model <<END
2 context2 parallel.context=2
2 context2-zero3-recompute parallel.context=2 parallel.zero=3 memory.recompute=full
END
done
part latent-ranks && several_ranks latent <<END
2 latent-tensor2 parallel.tensor=2
2 latent-expert2-zero3 parallel.expert=2 parallel.zero=3
END
part four-ranks && several_ranks llama <<END
4 tensor2-context2 parallel.tensor=2 parallel.context=2
4 tensor2-pipeline2 parallel.tensor=2 parallel.pipeline=2
4 tensor2-data2-zero3 parallel.tensor=2 parallel.zero=3
END

# GPT-2 124M in phalanx and in PyTorch: the same weights, data, order, schedule and clipping. fp32 for some steps shows
# that both compute the same, bf16 for 200 that they learn the same.
python=${PYTHON:-python3}
if [ $standins = yes ]; then
    peer_shape="2 32 2 16 512" peer_sequence=16 peer_batch=4 peer_micro=2 peer_short=4 peer_long=${PEER_STEPS:-6}
else
    peer_shape="12 768 12 1024 50257" peer_sequence=1024 peer_batch=16 peer_micro=8 peer_short=10 peer_long=${PEER_STEPS:-200}
fi
peer_bytes=$(((peer_long > peer_short ? peer_long : peer_short) * peer_batch * peer_sequence * 11 / 10 + 4000)) # a token each: none is read twice
# Words of a made-up language: one follows another with a preference, so that there is something to learn.
write_words() {
    awk -v bytes=$peer_bytes 'BEGIN { srand(7)
        for (w = 0; w < 2000; w++) { n = 2 + int(7 * rand()); for (c = 0; c < n; c++) word[w] = word[w] sprintf("%c", 97 + int(26 * rand() ^ 2)) }
        for (w = 0; written < bytes; w = next_word) {
            next_word = rand() < 0.6 ? (w * 31 + 7 + int(5 * rand())) % 2000 : int(2000 * rand() ^ 3)
            printf "%s%s", word[w], ++n % 12 ? " " : ".\n"; written += length(word[w]) + 1 } }' >"$work/words" &&
        "$phalanx" tokenize --output "$work/words" --tokenizer bytes "$work/words"
}
beside_peer() { # PRECISION STEPS FOLDER
    cat >"$work/beside.yaml" <<END
model: {from: $work/peer-start}
data: {train: $work/words, shuffle: false}
train: {steps: $2, sequence: $peer_sequence, micro_batch: $peer_micro, global_batch: $peer_batch, precision: $1, seed: 3, device: cuda}
optimizer: {lr: 6e-4, min_lr: 6e-5, warmup: 2, beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1, clip: 1.0}
evaluate: {every: 0}
checkpoint: {every: 0, resume: never}
run: {tensorboard: false}
END
    within $((3 * limit)) "$phalanx" train "$work/beside.yaml" run.folder="$work/$3" && trained "$3"
}
peer_trains() { # PRECISION STEPS FOLDER
    mkdir -p "$work/$3"
    within $((3 * limit)) "$python" "$here/losses_peer.py" train "$work/peer-start" "$work/words" "$work/$3/metrics.jsonl" "$1" "$2" \
        $peer_batch $peer_micro $peer_sequence 6e-4 6e-5 2
}
# both curves in the log, and by how much they differ on the whole
curves() { # FOLDER FOLDER TOLERANCE
    paste <(losses "$1") <(losses "$2") | tee "$logs/$part-$1.losses" |
        awk 'NR == 1 || NR % 20 == 0 { printf "step %d: %s, PyTorch %s\n", NR, $1, $2 }
             { sum += ($1 - $2) / $2 } END { if (NR) printf "mean difference %.3g\n", sum / NR }'
    compare "$1" "$2" "$3"
}
if part pytorch; then
    missing=$(torch_missing "$python")
    if [ -n "$missing" ]; then
        skip "GPT-2 beside PyTorch" "$missing"
    else
        try "words" write_words
        try "PyTorch: a GPT-2 to begin from" within $((2 * limit)) "$python" "$here/losses_peer.py" init "$work/peer-start" $peer_shape
        for kind in "fp32 $peer_short 1e-4" "bf16 $peer_long 2e-2"; do
            read -r precision count tolerance <<<"$kind"
            try "phalanx: $count steps in $precision" beside_peer "$precision" "$count" beside-$precision
            try "PyTorch: $count steps in $precision" peer_trains "$precision" "$count" peer-$precision
            try "the losses of $count steps in $precision are PyTorch's" curves beside-$precision peer-$precision "$tolerance"
        done
    fi
fi

# One of two ranks is killed in the middle of a step, and mpirun is told to end nobody: the other must say why it ends,
# and end. run.hang_seconds is what it waits at most, where its link says nothing.
killed() { # KEYS
    local began log=$work/killed.out ranks=$work/killed
    rm -rf "$work/killed" "$work/killed-run"
    mkdir -p "$work/killed"
    cat >"$work/rank.sh" <<END
#!/bin/bash
echo \$\$ >$ranks/pid.\$OMPI_COMM_WORLD_RANK
exec "$phalanx" train "$work/llama.yaml" run.folder="$work/killed-run" train.steps=1000000 run.hang_seconds=10 run.silent_seconds=10 $* \\
    >$ranks/out.\$OMPI_COMM_WORLD_RANK 2>$ranks/err.\$OMPI_COMM_WORLD_RANK
END
    chmod +x "$work/rank.sh"
    within "$limit" mpirun --allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 --mca plm_rsh_agent sh --enable-recovery \
        -x PHALANX_SHARE_GPU=1 -np 2 "$work/rank.sh" >"$log" 2>&1 &
    local launcher=$!
    for _ in $(seq $((10 * limit))); do
        [ "$(wc -l 2>/dev/null <"$work/killed-run/metrics.jsonl")" -ge 3 ] 2>/dev/null && break
        kill -0 $launcher 2>/dev/null || break
        sleep 0.1
    done
    [ "$(wc -l 2>/dev/null <"$work/killed-run/metrics.jsonl")" -ge 3 ] || { cat "$log" "$ranks"/err.*; echo "the ranks did not begin"; return 1; }
    kill -9 "$(cat "$ranks/pid.1")"
    began=$SECONDS
    while kill -0 "$(cat "$ranks/pid.0")" 2>/dev/null && [ $((SECONDS - began)) -lt 40 ]; do sleep 0.1; done
    local took=$((SECONDS - began)) alive=no
    kill -0 "$(cat "$ranks/pid.0")" 2>/dev/null && alive=yes && kill -9 "$(cat "$ranks/pid.0")"
    wait $launcher
    cat "$log" "$ranks/err.0"
    [ $alive = no ] || { echo "rank 0 has not ended in 40 s"; return 1; }
    grep -m1 -E '^phalanx: .*(rank 1|communication failed|no progress|does not answer)' "$ranks/err.0" >"$work/why" ||
        { echo "rank 0 has ended without a reason"; return 1; }
    echo "rank 0 ended after $took s: $(sed 's/^phalanx: //' "$work/why")"
}
if part killed; then
    try "a rank is killed: the other says why, and ends" killed parallel.zero=1
    try "a rank is killed, with a CUDA graph" killed parallel.zero=1 train.cuda_graph=true
fi

# mpirun believes in two hosts: what would go there by ssh starts here with an empty environment, as ssh would have it,
# so that programs, libraries and plugins must be found by what mpirun passes on.
two_hosts() {
    cat >"$work/agent" <<'END'
#!/bin/bash
shift
exec env -i HOME=/ PATH=/usr/bin:/bin bash -c "$*"
END
    chmod +x "$work/agent"
    within "$limit" mpirun --allow-run-as-root --bind-to none --host one:1,two:1 --map-by ppr:1:node --mca plm_rsh_agent "$work/agent" \
        --mca plm_rsh_no_tree_spawn 1 --mca btl self,tcp --mca mpi_yield_when_idle 1 -x PHALANX_SHARE_GPU=1 -x LD_LIBRARY_PATH -x PATH -np 2 \
        "$phalanx" train "$work/llama.yaml" run.folder="$work/two-hosts" parallel.zero=1 && trained two-hosts
}
if part two-hosts; then
    [ -d "$work/llama-fp32" ] || try "llama: cuda, fp32" train 1 llama llama-fp32
    try "two hosts: a rank each" two_hosts
    try "two hosts equal one rank" compare two-hosts llama-fp32 1e-4
fi

# figures of what the engine does not use, or only plans to
if part probes; then
    [ $standins = no ] || export PROBES_SMALL=1
    probes=$(program probes)
    for probe in fp8 grouped offset copies; do
        try "probe: $probe" within "$limit" "$probes" $probe
        sed 's/^/    /' "$logs/$(file_name "$part probe: $probe").log" | grep -v '^    standin\|^    probes: ' | tee -a "$logs/probes"
    done
fi

# Promise 1: what a process has of the device's memory beyond the arena is the same small constant for two models of
# different size: as it has measured itself, and as the driver says.
beside() { # LAYERS
    train 1 llama memory-$1 train.precision=bf16 model.layers="$1" >/dev/null 2>&1
    number bytes <"$work/memory-$1/tuning.json" | tail -1
}
same_beside() {
    local a b
    a=$(beside $small) b=$(beside $large)
    echo "$a and $b bytes"
    [ -n "$a" ] && [ -n "$b" ] && [ $((a - b)) -le $((4 << 20)) ] && [ $((b - a)) -le $((4 << 20)) ]
}
used() { # LAYERS: MiB beyond the arena, by the driver
    local most=0 now shell arena
    train 1 llama used-$1 train.precision=bf16 model.layers="$1" train.steps=400 >/dev/null 2>&1 &
    shell=$!
    while kill -0 $shell 2>/dev/null; do
        now=$(nvidia-smi --query-compute-apps=used_memory --format=csv,noheader,nounits | sort -n | tail -1)
        [ "${now:-0}" -gt "$most" ] 2>/dev/null && most=$now
        sleep 0.2
    done
    arena=$(number arena_bytes <"$work/used-$1/summary.json" | head -1)
    echo $((most - ${arena:-0} / 1048576))
}
same_used() {
    local a b
    a=$(used $small) b=$(used $large)
    echo "$a and $b MiB"
    [ $((a - b)) -le 4 ] && [ $((b - a)) -le 4 ]
}
if part memory; then
    try "memory beside the arena is constant" same_beside
    if [ $standins = no ]; then try "the driver says so, too" same_used; fi
fi

if ! part sanitizer; then
    :
elif [ $standins = no ] && command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck initcheck; do
        try "compute-sanitizer $tool" within "$limit" compute-sanitizer --tool $tool --error-exitcode 1 "$phalanx" train "$work/llama.yaml" \
            run.folder="$work/sanitizer" train.precision=bf16 train.steps=1 train.sequence=64 model.layers=1 train.global_batch=2
    done
else
    skip compute-sanitizer "it is not installed"
fi
table check-gpu
