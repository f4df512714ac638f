#!/bin/bash
# What islands lose and send: the same model and tokens in one job, on islands that never merge, and on islands with
# each method. A line each: validation loss, how much worse than one job, and bytes that an island sent. The tiny model
# takes minutes; CONFIG=models/configs/demo.yaml BATCH=16 STEPS=2000, hours.
#
#     STEPS=2000 tests/jobs/island_losses.sh [build/phalanx] [WORD IN THE LINE'S NAME]
set -u
phalanx=$(realpath "${1:-build/phalanx}") word=${2:-} steps=${STEPS:-2000} batch=${BATCH:-4}
top=$(mktemp -d /tmp/phalanx-island-losses-XXXXXX)
port=$((20000 + $$ % 12000)) etcd=
trap 'kill -9 $etcd $(jobs -p) 2>/dev/null; wait 2>/dev/null; rm -rf "$top"' EXIT

"$phalanx" keys "$top/keys" >/dev/null || exit 1
config=${CONFIG:-$top/run.yaml}
if [ -z "${CONFIG:-}" ]; then
    cat README.md */README.md engine/*/*.c kernels/*.c >"$top/text"
    cat parallel/*/*.c memory/*.c >"$top/held"
    "$phalanx" tokenize --output "$top/data" --tokenizer bytes "$top/text" >/dev/null &&
        "$phalanx" tokenize --output "$top/validation" --tokenizer bytes "$top/held" >/dev/null || exit 1
    cat >"$config" <<YAML
model: {architecture: llama, layers: 2, hidden_size: 64, heads: 4, ffn_size: 128, vocab_size: 257}
data: {train: $top/data, validation: $top/validation}
train: {sequence: 64, precision: fp32, device: cpu, threads: 1, micro_batch: $batch}
optimizer: {lr: 4e-3, min_lr: 4e-4, warmup: 100}
run: {tensorboard: false}
YAML
fi
"$phalanx" islands --embedded --port $port --folder "$top/etcd" >"$top/etcd.log" 2>&1 &
etcd=$!
sleep 2

number() {
    sed -n "s/.*\"$2\": \([0-9.]*\).*/\1/p" "$1" | tail -n 1
}

# name, islands, keys...: every island reads the batch of 1 / islands of one job's, rounded up
line() {
    local name=$1 islands=$2 i run server=
    shift 2
    case $name in *"$word"*) ;; *) return ;; esac
    run=$top/${name//[^a-zA-Z0-9]/-}
    case " $* " in *topology=server*)
        "$phalanx" server "$config" train.steps="$steps" checkpoint.every=0 run.folder="$run-server" \
            train.micro_batch="$batch" train.global_batch="$batch" "$@" \
            outer.slots=$islands outer.run="${run##*/}" outer.rendezvous=http://127.0.0.1:$port outer.keys="$top/keys" \
            outer.min_islands=$islands outer.timeout=600 outer.address=127.0.0.1 >"$run-server.log" 2>&1 &
        server=$!
        sleep 5
        kill -0 $server 2>/dev/null || { echo "$name: the server did not start"; tail -n 3 "$run-server.log"; return; } ;;
    esac
    for i in $(seq 0 $((islands - 1))); do
        "$phalanx" train "$config" train.steps="$steps" evaluate.every="$steps" evaluate.batches=100 checkpoint.every=0 \
            run.log_every=1000000 run.folder="$run-$i" train.micro_batch=$(((batch + islands - 1) / islands)) \
            train.global_batch=$(((batch + islands - 1) / islands)) "$@" \
            ${1:+outer.slots=$islands outer.slot=$i outer.run="${run##*/}" outer.min_islands=$islands outer.timeout=600} \
            ${1:+outer.rendezvous=http://127.0.0.1:$port outer.keys="$top/keys" outer.address=127.0.0.1} \
            >"$run-$i.log" 2>&1 &
        eval "job$i=$!"
    done
    for i in $(seq 0 $((islands - 1))); do
        eval "wait \$job$i" || { echo "$name: failed"; tail -n 3 "$run-$i.log"; return; }
    done
    [ -n "$server" ] && kill "$server" && wait "$server"
    local loss sent=
    loss=$(number "$run-0/metrics.jsonl" eval_loss)
    [ -f "$run-0/summary.json" ] && sent=$(sed -n '/"islands"/,/}/p' "$run-0/summary.json" | sed -n 's/.*"bytes_sent": \([0-9]*\).*/\1/p')
    [ "$name" = "one job" ] && one=$loss
    awk -v n="$name" -v l="$loss" -v o="${one:-$loss}" -v s="${sent:-0}" \
        'BEGIN { printf "%-34s loss %.4f  %+6.2f%%  sent %.1f MB\n", n, l, 100 * (l / o - 1), s / 1e6 }'
}

line "one job" 1
line "two, never merged" 2 outer.every=$((steps * 10)) outer.optimizer=average outer.private_data=false
for h in 5 20 40 100; do
    line "two, DiLoCo, H $h" 2 outer.every=$h outer.optimizer=nesterov outer.momentum=0.5 outer.compress=none
done
line "two, DiLoCo as for H 500, H 20" 2 outer.every=20 outer.optimizer=nesterov outer.momentum=0.9 outer.compress=none
for c in int8 int4; do
    line "two, DiLoCo $c, H 20" 2 outer.every=20 outer.optimizer=nesterov outer.momentum=0.5 outer.compress=$c
done
line "two, DCT, H 20" 2 outer.every=20 outer.optimizer=average outer.compress=dct
line "two, SparseLoCo, H 20" 2 outer.every=20 outer.optimizer=average outer.compress=topk
line "two, SparseLoCo at 0.04, H 5" 2 outer.every=5 outer.optimizer=average outer.compress=topk outer.density=0.04
line "two, average, H 20" 2 outer.every=20 outer.optimizer=average outer.compress=none
line "three, server, H 20" 3 outer.every=20 outer.topology=server
line "four, gossip, H 20" 4 outer.every=20 outer.topology=gossip outer.optimizer=nesterov
