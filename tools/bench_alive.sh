#!/bin/sh
# What staying alive costs, as ratios:
#   restart  a killed rank: seconds to the next step of the demo's model on two ranks, and where they go
#   saves    a checkpoint every 10 steps of GPT-2 124M, 4 x 1024: beside training, while it waits, none (ROUNDS, 5)
#   verify   run.verify_every=5 at 16 micro-batches on two ranks, beside none (VERIFY_STEPS, 30)
#   tools/bench_alive.sh build/phalanx [restart] [saves] [verify]
# With PYTHON, which must have torch, the same state is saved by PyTorch's asynchronous DCP, too. The folder for
# checkpoints: TMPDIR.
set -eu
phalanx=$1
shift
[ $# -gt 0 ] || set -- restart saves verify
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat README.md engine/*/*.c > "$folder/text"
"$phalanx" tokenize --quiet --output "$folder/data" --tokenizer bytes "$folder/text" >/dev/null
mpi="mpirun --allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -np 2"
data="data.tokenizer=null data.train=$folder/data data.validation=[] evaluate.every=0 run.tensorboard=false"

values() { # KEY FILE: a column of metrics.jsonl
    sed -n "s/.*\"$1\": *\([0-9.e+-]*\).*/\1/p" "$2"
}

train() { # NAME then the command
    name=$1
    shift
    "$@" run.folder="$folder/$name" >"$folder/$name.log" 2>&1 || { cat "$folder/$name.log"; exit 1; }
}

restart() {
    steps=24
    "$phalanx" supervise -- $mpi "$phalanx" train models/configs/demo.yaml $data train.steps=$steps train.micro_batch=8 \
        checkpoint.every=2 run.folder="$folder/restart" >"$folder/restart.log" 2>&1 &
    until grep -q '"step": 8,' "$folder/restart/metrics.jsonl" 2>/dev/null; do
        kill -0 $! 2>/dev/null || { cat "$folder/restart.log"; exit 1; }
        sleep 0.05
    done
    # The command names the folder; of its two ranks the younger is killed.
    victim=$(pgrep -f "^$phalanx train .*run.folder=$folder/restart" | tail -n 1)
    killed=$(date +%s.%N)
    kill -9 "$victim"
    wait $! || { cat "$folder/restart.log"; exit 1; }
    after=$(sed -n 's/.*step [0-9]* is done, \([0-9.]*\) s after the incident.*/\1/p' "$folder/restart.log" | head -n 1)
    seen=$(values time "$folder/restart/incidents.jsonl" | head -n 1)
    begun=$(values start_to_first_step_seconds "$folder/restart/summary.json")
    awk -v after="$after" -v begun="$begun" -v seen="$seen" -v killed="$killed" 'BEGIN {
        printf "restart: the next new step is done %.2f s after a rank was killed (aim 5):\n", seen - killed + after
        printf "  %.2f s until an incident was written, %.2f s from the start of the new ranks to their first step, %.2f s the rest\n",
            seen - killed, begun, after - begun
        printf "  (the end of the old job, mpirun, and steps that had been done before)\n" }'
}

# Ten steps, the first uncounted one aside, with a save after the fifth. The modes take turns, since the machine's speed
# drifts: what ten steps take is the sum of each step's median over the rounds, with what a step could not begin for a
# save.
saves() {
    rounds=${ROUNDS:-5}
    gpt2="models/configs/gpt2-124m.yaml train.device=cpu $data train.steps=11 train.sequence=1024 train.micro_batch=4
        train.global_batch=4 checkpoint.keep=1"
    for round in $(seq "$rounds"); do
        order="none beside waits"
        [ $((round % 2)) -eq 1 ] || order="waits beside none"
        for name in $order; do
            case $name in
            none) keys="checkpoint.every=0" ;;
            beside) keys="checkpoint.every=6" ;;
            waits) keys="checkpoint.every=6 checkpoint.asynchronous=false" ;;
            esac
            train $name "$phalanx" train $gpt2 $keys
            values step_seconds "$folder/$name/metrics.jsonl" >"$folder/$name.steps"
            values checkpoint_seconds "$folder/$name/metrics.jsonl" >"$folder/$name.stalls"
            paste "$folder/$name.steps" "$folder/$name.stalls" | awk -v name=$name -v round="$round" \
                '{ print name, NR, $1, $2 } NR > 1 { sum += $1 + $2 } END { printf "saves: round %d, %s: %.1f s\n", round, name, sum > "/dev/stderr" }'
            rm -rf "${folder:?}/$name"
        done
    done >"$folder/saves"
    sort -k1,1 -k2,2n -k3,3n "$folder/saves" | awk -v rounds="$rounds" '
        { n++; time[n] = $3 + $4; stall[$1] += $4 }
        n == rounds { middle = (time[int((n + 1) / 2)] + time[int(n / 2) + 1]) / 2; if ($2 > 1) ten[$1] += middle; n = 0 }
        END {
            split("none beside waits", names)
            for (i = 1; i <= 3; i++) {
                x = names[i]
                printf "saves: %-7s ten steps in %.1f s, %.4f x none; stall %.2f %% of a step at each save\n",
                    x, ten[x], ten[x] / ten["none"], 100 * stall[x] / rounds / (ten[x] / 10)
            }
        }'
    if [ -n "${PYTHON:-}" ]; then
        "$PYTHON" tests/jobs/bench_dcp.py "$rounds" "$folder/dcp"
    fi
}

verify() {
    steps=${VERIFY_STEPS:-30}
    demo="models/configs/demo.yaml $data train.steps=$steps train.micro_batch=2 train.global_batch=64 checkpoint.every=0"
    train plain $mpi "$phalanx" train $demo run.verify_every=0
    train verified $mpi "$phalanx" train $demo run.verify_every=5
    for name in plain verified; do
        values step_seconds "$folder/$name/metrics.jsonl" | awk -v name=$name 'NR > 1 { s += $1 } END { print name, s }'
    done | awk -v own="$(values verify_seconds "$folder/verified/summary.json")" '
        $1 == "plain" { plain = $2 }
        $1 == "verified" { printf "verify: every 5 steps at 16 micro-batches: %.4f x the time; %.2f %% by its own clock (aim 2 %%)\n",
            $2 / plain, 100 * own / $2 }'
}

for part in "$@"; do "$part"; done
