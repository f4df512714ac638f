#!/bin/bash
# How well does `phalanx plan` know how long a step takes on this machine? Measures a profile, then trains the demo's
# model and others of its kind in several layouts on 1, 2 and 4 ranks, and prints the measured time of a step beside the
# predicted one; of several ranks also the shares of a step that are bubble (with waiting for other stages) and exposed
# communication, of eight steps that were traced. The traced run is another one: clocks at each op take time.
#   tools/bench_predict.sh PHALANX [PROFILE.json]     with a PROFILE that exists nothing is measured anew
# Wants an idle machine.
set -eu
phalanx=$(realpath "$1")
profile=${2:-}
steps=${STEPS:-14}
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
cat README.md engine/*/*.c >"$top/text"
"$phalanx" tokenize --quiet --output "$top/data" --tokenizer bytes "$top/text" >/dev/null
common="data.tokenizer=null data.train=$top/data data.validation=[]"
job() { # RANKS COMMAND...
    local ranks=$1
    shift
    if [ "$ranks" -eq 1 ]; then "$@"; else
        mpirun --allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -np "$ranks" "$@"
    fi
}
if [ -z "$profile" ] || [ ! -f "$profile" ]; then
    profile=${profile:-$top/profile.json}
    for ranks in 1 2 4; do
        job $ranks "$phalanx" bench --profile "$profile" | tail -n 1
    done
fi
median() { sort -g | awk '{v[NR] = $1} END {print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'; }
wide="model.hidden_size=512 model.heads=8 model.kv_heads=4 model.ffn_size=1408"
rows="1|the demo|
1|micro-batches of 4|train.micro_batch=4
1|recompute|memory.recompute=full
1|bf16|train.precision=bf16
1|wider|$wide train.micro_batch=8
1|gpt2|model.architecture=gpt2 model.kv_heads=4 model.ffn_size=1024
2|tensor 2|parallel.tensor=2
2|tensor 2, wider|parallel.tensor=2 $wide train.micro_batch=4
2|data 2, ZeRO 0|parallel.data=2 parallel.zero=0 train.micro_batch=8
2|data 2, ZeRO 1|parallel.data=2 parallel.zero=1 train.micro_batch=8
2|pipeline 2|parallel.pipeline=2 train.micro_batch=2
2|pipeline 2, zb-h1|parallel.pipeline=2 parallel.schedule=zb-h1 train.micro_batch=2
4|tensor 2 x pipeline 2|parallel.tensor=2 parallel.pipeline=2 train.micro_batch=4
4|data 4, ZeRO 1|parallel.data=4 parallel.zero=1 train.micro_batch=4
2|tensor 2, order none|parallel.tensor=2 parallel.order=none
2|data 2, ZeRO 1, order none|parallel.data=2 parallel.zero=1 train.micro_batch=8 parallel.order=none"

# From lines of `phalanx timeline`: the medians of bubble + pipeline, and of what else is waited for, in percent
shares() { # NAME
    grep "^$1" | sed 's/.*bubble/bubble/' | awk '{
        b = e = 0
        for (i = 1; i <= NF; i++) {
            v = $(i + 1) + 0
            if ($i == "bubble" || $i == "pipeline" || $i == "activation" || $i == "cotangent") b += v
            if ($i == "tensor" || $i == "data" || $i == "world" || $i == "context") e += v
        }
        print b, e }' >"$top/shares"
    echo "$(cut -d' ' -f1 "$top/shares" | median)|$(cut -d' ' -f2 "$top/shares" | median)"
}
train() { # RUN, then ranks, keys
    local run=$1 ranks=$2
    shift 2
    rm -rf "$run"
    # shellcheck disable=SC2086
    job "$ranks" "$phalanx" train models/configs/demo.yaml $common "$@" "run.folder=$run" "train.steps=$steps" checkpoint.every=0 \
        evaluate.every=0 run.resource_seconds=0 run.tensorboard=false >"$top/log" 2>&1 </dev/null || { cat "$top/log"; exit 1; }
}
printf '%-5s %-28s %12s %12s %8s   %s\n' ranks configuration 'measured ms' 'predicted ms' error 'bubble, exposed: measured / predicted'
echo "$rows" | while IFS='|' read -r ranks name keys; do
    # shellcheck disable=SC2086
    train "$top/run" "$ranks" $keys
    measured=$(sed -n 's/.*"step_seconds": *\([0-9.e-]*\).*/\1/p' "$top/run/metrics.jsonl" | tail -n +5 | median)
    # shellcheck disable=SC2086
    predicted=$("$phalanx" plan models/configs/demo.yaml $common $keys --ranks "$ranks" --device "$profile" --json |
        sed -n 's/.*"step_seconds": *\([0-9.e-]*\).*/\1/p' | head -n 1)
    seen='|' said='|'
    if [ "$ranks" -gt 1 ]; then
        # shellcheck disable=SC2086
        train "$top/traced" "$ranks" $keys "run.trace=[$((steps - 7)), $steps]"
        for step in $(seq $((steps - 7)) "$steps"); do
            "$phalanx" timeline "$top/traced" --step "$step" --device "$profile"
        done >"$top/lines"
        seen=$(shares measured <"$top/lines") said=$(shares predicted <"$top/lines")
    fi
    echo "$ranks|$name|$measured|$predicted|$seen|$said"
done | tee "$top/table" | awk -F'|' '{
    printf "%-5s %-28s %12.1f %12.1f %+7.1f%%", $1, $2, 1e3 * $3, 1e3 * $4, 100 * ($4 / $3 - 1)
    if ($5 != "") printf "   %5.1f%% / %.1f%%, %5.1f%% / %.1f%%", $5, $7, $6, $8
    print "" }'
awk -F'|' '{e = $4 / $3 - 1; print e < 0 ? -e : e}' "$top/table" | sort -g |
    awk '{v[NR] = $1} END {printf "median error %.1f%%, worst %.1f%%, of %d\n", 100 * (NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2), 100 * v[NR], NR}'
