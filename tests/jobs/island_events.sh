#!/bin/bash
# Islands under random events: killed, frozen, told to stop, started again; etcd away for a while. At the end every island must have
# ended well, the sequence of merges must have no gap, and the final model must be no more than 5% worse than that of the same
# islands undisturbed. The same seed draws the same events.
#
#     EVENTS=200 SEED=1 tests/jobs/island_events.sh [build/phalanx]
set -u
phalanx=$(realpath "${1:-build/phalanx}") events=${EVENTS:-20} islands=${ISLANDS:-6} steps=${STEPS:-4000} RANDOM=${SEED:-1}
top=$(mktemp -d /tmp/phalanx-island-events-XXXXXX)
port=$((20000 + $$ % 20000)) etcd=
declare -A pid
trap 'kill -9 $etcd "${pid[@]}" 2>/dev/null; wait 2>/dev/null; rm -rf "$top"' EXIT

start_etcd() {
    "$phalanx" islands --embedded --port $port --folder "$top/etcd" >>"$top/etcd.log" 2>&1 &
    etcd=$!
}

# run, island
start() {
    "$phalanx" train "$top/run.yaml" run.folder="$top/$1-$2" outer.run="$1" outer.slot="$2" >>"$top/$1-$2.log" 2>&1 &
    pid[$2]=$!
}

# until all have ended: 0, or say which did not
finish() {
    local until=$((SECONDS + ${LIMIT:-1800})) i
    for i in $(seq 0 $((islands - 1))); do
        while kill -0 "${pid[$i]}" 2>/dev/null; do
            [ $SECONDS -lt $until ] || { echo "island $i of $1 has not ended"; tail -n 3 "$top/$1-$i.log"; exit 1; }
            sleep 0.2
        done
        wait "${pid[$i]}"
        local status=$?
        [ $status -eq 0 ] || { echo "island $i of $1 ended with $status"; tail -n 5 "$top/$1-$i.log"; exit 1; }
    done
}

loss() {
    sed -n 's/.*"eval_loss": \([0-9.]*\).*/\1/p' "$top/$1-0/metrics.jsonl" | tail -n 1
}

# away, then back
event() {
    local i kind=$((RANDOM % 5))
    for i in $(seq 0 $((islands - 1))); do # one that comes back when the others have ended finds nobody to take the model from
        kill -0 "${pid[$i]}" 2>/dev/null || { echo "no more events: island $i has ended; raise STEPS"; return; }
    done
    i=$((RANDOM % islands))
    case $kind in
    0 | 1) echo "island $i killed"; kill -9 "${pid[$i]}"; wait "${pid[$i]}" 2>/dev/null; sleep $((RANDOM % 4)); start disturbed $i ;;
    2) echo "island $i frozen"; kill -STOP "${pid[$i]}"; sleep $((1 + RANDOM % 8)); kill -CONT "${pid[$i]}" ;;
    3) echo "island $i stopped"; kill -TERM "${pid[$i]}"; wait "${pid[$i]}"; sleep $((RANDOM % 4)); start disturbed $i ;;
    4) echo "etcd killed"; kill -9 $etcd; wait $etcd 2>/dev/null; sleep $((RANDOM % 6)); start_etcd ;;
    esac
}

"$phalanx" keys "$top/keys" >/dev/null && cat README.md engine/README.md engine/*.c >"$top/text" &&
    "$phalanx" tokenize --output "$top/data" --tokenizer bytes "$top/text" >/dev/null || exit 1
cat >"$top/run.yaml" <<YAML
model: {architecture: llama, layers: 2, hidden_size: 48, heads: 4, ffn_size: 96, vocab_size: 257}
data: {train: $top/data, validation: $top/data}
train: {steps: $steps, sequence: 64, precision: fp32, device: cpu, threads: 1, micro_batch: 2, global_batch: 2}
optimizer: {lr: 3e-3, warmup: 50, schedule: constant}
checkpoint: {every: 200, keep: 1}
evaluate: {every: $steps, batches: 100}
run: {tensorboard: false, log_every: 1000000}
outer: {every: 50, slots: $islands, min_islands: 1, timeout: 10, compress: int8, rendezvous: ["http://127.0.0.1:$port"],
        keys: $top/keys, address: 127.0.0.1}
YAML
start_etcd
sleep 2
for run in undisturbed disturbed; do
    for i in $(seq 0 $((islands - 1))); do start $run $i; done
    if [ $run = disturbed ]; then
        sleep 3
        for e in $(seq "$events"); do
            event
            sleep $((1 + RANDOM % 3))
        done
    fi
    finish $run
done
merges=$("$phalanx" islands "http://127.0.0.1:$port" | sed -n 's|^phalanx/disturbed/merges/0*\([0-9][0-9]*\) .*|\1|p')
gap=$(echo "$merges" | awk 'NR > 1 && $1 != last + 1 { print last; exit } { last = $1 }')
echo "$(echo "$merges" | wc -l) merges; loss $(loss undisturbed) undisturbed, $(loss disturbed) after $events events"
[ -z "$gap" ] || { echo "no merge after $gap"; exit 1; }
awk -v a="$(loss undisturbed)" -v b="$(loss disturbed)" 'BEGIN { exit !(a > 0 && b > 0 && b <= 1.05 * a) }' ||
    { echo "more than 5% worse"; exit 1; }
