#!/bin/sh
# GPT-2 124M on two ranks beside one rank with the same two cores: data, tensor and pipeline parallelism, as ratios of
# tokens a second, medians of three steps. With pipeline stages the bubble is taken into account.
#   tools/bench_ranks.sh build/phalanx
set -eu
phalanx=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
yes 'The quick brown fox jumps over the lazy dog; every step is a program that is written down first.' | head -c 400000 > "$folder/text"
"$phalanx" tokenize --quiet --output "$folder/data" --tokenizer bytes "$folder/text" >/dev/null
common="models/configs/gpt2-124m.yaml train.device=cpu data.train=$folder/data data.validation=[] evaluate.every=0 checkpoint.every=0
train.steps=5 optimizer.warmup=0 train.sequence=256 train.global_batch=8 run.tensorboard=false checkpoint.resume=never"
mpi="mpirun --allow-run-as-root --oversubscribe --mca mpi_yield_when_idle 1 -np 2"
speed() { # NAME then the command: the median of the last three steps' tokens a second
    name=$1
    shift
    "$@" run.folder="$folder/$name" >"$folder/$name.log" 2>&1 || { cat "$folder/$name.log"; exit 1; }
    sed -n 's/.*"tokens_per_second": *\([0-9.]*\).*/\1/p' "$folder/$name/metrics.jsonl" | tail -n 3 | sort -n | sed -n 2p
}
one=$(speed one "$phalanx" train $common train.micro_batch=4)
small=$(speed small "$phalanx" train $common train.micro_batch=1)
dp=$(speed dp $mpi "$phalanx" train $common train.threads=1 train.micro_batch=4 parallel.zero=1)
tp=$(speed tp $mpi "$phalanx" train $common train.threads=1 train.micro_batch=4 parallel.tensor=2)
pp=$(speed pp $mpi "$phalanx" train $common train.threads=1 train.micro_batch=1 parallel.pipeline=2)
awk -v one="$one" -v small="$small" -v dp="$dp" -v tp="$tp" -v pp="$pp" 'BEGIN {
    printf "two ranks beside one (%.1f tokens/s; %.1f in micro-batches of one):\n", one, small
    printf "  data 2      %.1f tokens/s, ratio %.3f (aim 0.95)\n", dp, dp / one
    printf "  tensor 2    %.1f tokens/s, ratio %.3f (aim 0.8)\n", tp, tp / one
    printf "  pipeline 2  %.1f tokens/s, ratio %.3f of (1 - bubble 1/9) (aim 0.85)\n", pp, pp / small / (8 / 9) }'
