#!/bin/bash
# How much of the time do islands compute that merge over a slow link, whole models at once or in fragments while they
# train? Two islands train GPT-2 124M at 4 x 64 on one thread each, in network namespaces of their own, with 100 Mbit/s
# (tc's tbf) and 50 ms (slow_relay.py) each way between them, and exchange fp32: 498 MB a merge. Beside what the runs
# measured is what phalanx plan says.
#
#     MERGES=4 tests/jobs/slow_link.sh [build/phalanx] [MODE...]        as root; modes: whole streaming
#
# EVERY: steps between merges, else as many as take 2.2 times as long as a transfer, by a few steps without merges.
# PROFILE: of phalanx bench --profile, for the plan (else its cpu). RATE in Mbit/s, DELAY in seconds, WORDS: keys for
# another model. Fails where streaming computes less than 90% of the time, or whole models do not cost more than a
# quarter of it.
set -u
cd "$(dirname "$0")/../.."
phalanx=$(realpath "${1:-build/phalanx}")
shift
modes=${*:-whole streaming}
every=${EVERY:-} merges=${MERGES:-4} rate=${RATE:-100} delay=${DELAY:-0.05} profile=${PROFILE:-cpu}
export PATH=$PATH:/usr/sbin:/sbin OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
top=$(mktemp -d /tmp/phalanx-slow-link-XXXXXX)
here=phx-here-$$ there=phx-there-$$ between=phx-between-$$ # namespaces
jobs=()
clean() {
    kill -9 "${jobs[@]}" 2>/dev/null
    wait 2>/dev/null
    ip netns del $here 2>/dev/null
    ip netns del $there 2>/dev/null
    ip netns del $between 2>/dev/null
    rm -rf "$top"
}
trap clean EXIT

# NAMESPACE ADDRESS INTERFACE: an end of the link; the other end of its cable is the relay's
lay_cable() {
    ip netns add "$1" && ip -n "$1" link set lo up &&
        ip link add "$3" netns "$1" type veth peer name "$3r" netns $between &&
        ip -n "$1" addr add "$2/24" dev "$3" && ip -n "$1" link set "$3" up && ip -n $between link set "$3r" up &&
        ip netns exec "$1" tc qdisc add dev "$3" root tbf rate "${rate}mbit" burst 128kb limit 1mb
}
ip netns add $between && lay_cable $here 10.77.32.1 phxh$$ && lay_cable $there 10.77.32.2 phxt$$ ||
    { echo "no network namespaces with tc's tbf on this machine, or not root"; exit 1; }
ip netns exec $between python3 tests/jobs/slow_relay.py phxh$$r phxt$$r "$delay" &
jobs+=($!)
ip netns exec $here "$phalanx" islands --embedded --listen 10.77.32.1 --folder "$top/etcd" >"$top/etcd.log" 2>&1 &
jobs+=($!)
"$phalanx" keys "$top/keys" >/dev/null && cat README.md */README.md engine/*/*.c >"$top/text" &&
    "$phalanx" tokenize --output "$top/data" --tokenizer bytes "$top/text" >/dev/null || exit 1
sleep 3

common=(train.device=cpu train.threads=1 train.precision=fp32 train.sequence=64 train.micro_batch=4 train.global_batch=4
    ${WORDS:-} data.train="$top/data" data.validation="$top/data" evaluate.every=0 checkpoint.every=0 run.tensorboard=false
    outer.rendezvous=http://10.77.32.1:2379 outer.keys="$top/keys" outer.slots=2 outer.min_islands=2 outer.timeout=1200)

# A number of a JSON file, found by a path of keys.
number() {
    python3 -c 'import json, sys
x = json.load(open(sys.argv[1]))
for key in sys.argv[2:]: x = x[key]
print(x)' "$@"
}
mean_step() {
    python3 -c 'import json, sys
s = [json.loads(l).get("step_seconds") for l in open(sys.argv[1])]
s = [x for x in s if x][2:]
print(sum(s) / len(s))' "$1"
}

percent() {
    awk -v s="$(number "$1" islands computing)" 'BEGIN { printf "%.1f%%", 100 * s }'
}

# keys...: plan.json
plan() {
    "$phalanx" plan models/configs/gpt2-124m.yaml "${common[@]}" "$@" --device "$profile" --island-bandwidth \
        "$(awk -v r="$rate" 'BEGIN { print r / 1000 }')" --json >"$top/plan.json" || exit 1
}
# RUN ISLAND keys...: its process is the last of `jobs`
start() {
    local run=$1 i=$2
    shift 2
    ip netns exec "$([ "$i" = 0 ] && echo $here || echo $there)" "$phalanx" train models/configs/gpt2-124m.yaml "${common[@]}" "$@" \
        run.folder="$top/$run-$i" outer.run="$run" outer.slot="$i" outer.address=10.77.32.$((i + 1)) >"$top/$run-$i.log" 2>&1 &
    jobs+=($!)
}
# RUN: of both islands
finish() {
    wait "${jobs[-2]}" && wait "${jobs[-1]}" || { echo "$1 failed"; tail -n 5 "$top/$1-"*.log; exit 1; }
    rm -rf "$top/$1-"?/checkpoints
}
# Both at once, as they will run.
find_every() {
    for i in 0 1; do start trial $i train.steps=6 outer.every=0; done
    finish trial
    plan outer.every=2
    every=$(awk -v s="$(mean_step "$top/trial-0/metrics.jsonl")" -v t="$(number "$top/plan.json" islands merge_seconds)" \
        'BEGIN { n = 2 * int(1.1 * t / s + 0.5); print n < 4 ? 4 : n }')
}

# MODE STEPS keys...: a line for each island. The second plan is for a machine as fast as this one was.
measure() {
    local mode=$1 steps=$2 i run step own
    shift 2
    for i in 0 1; do start "$mode" $i train.steps="$steps" "$@"; done
    finish "$mode"
    for i in 0 1; do
        run=$top/$mode-$i
        [ -n "${KEEP:-}" ] && mkdir -p "$KEEP" && cp "$run.log" "$KEEP/" && cp "$run/summary.json" "$KEEP/$mode-$i.json"
        step=$(mean_step "$run/metrics.jsonl")
        plan "$@"
        own=$(percent "$top/plan.json")
        plan "$@" $(python3 -c 'import json, sys
p = json.load(open(sys.argv[1]))
slower = p["step_seconds"] / float(sys.argv[2])
print("--flops", p["assumed"]["flops"] * slower / 1e12, "--bandwidth", p["assumed"]["memory_bandwidth"] * slower / 1e9)' \
            "$top/plan.json" "$step")
        printf '%-10s island %d: %2d merges, %.0f MB sent, steps of %.2f s: computes %s of the time (waits %.1f s, stands still %.1f s)\n' \
            "$mode" $i "$(number "$run/summary.json" islands merges)" \
            "$(awk -v b="$(number "$run/summary.json" islands bytes_sent)" 'BEGIN { print b / 1e6 }')" "$step" \
            "$(percent "$run/summary.json")" "$(number "$run/summary.json" islands wait_seconds)" \
            "$(number "$run/summary.json" islands stood_seconds)"
        printf '%-10s plan: %.1f s of transfer in %d steps; computes %s with its own steps, %s with steps of %.2f s\n' "" \
            "$(number "$top/plan.json" islands merge_seconds)" "$every" "$own" "$(percent "$top/plan.json")" \
            "$(number "$top/plan.json" step_seconds)"
        awk -v m="$mode" -v s="$(number "$run/summary.json" islands computing)" \
            'BEGIN { exit !(m == "whole" ? s < 0.75 : s >= 0.90) }' || failed=1
    done
}

failed=0
[ -n "$every" ] || find_every
echo "merges every $every steps"
common+=(outer.every="$every")
for mode in $modes; do
    case $mode in
    whole) measure whole $((every * merges)) ;;
    # a fragment travels for as long as there is until the next one, and all of the last round arrive
    streaming) measure streaming $((every * merges + every / 2 - 1)) outer.fragments=2 outer.delay=$((every / 2 - 1)) outer.mix=0.5 ;;
    *) echo "no mode $mode"; exit 1 ;;
    esac
done
exit $failed
