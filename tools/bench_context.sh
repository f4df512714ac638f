#!/bin/sh
# A long sample divided over context ranks, beside one rank with both cores: a Llama of LAYERS layers (default 4) of
# hidden size HIDDEN (default 512), bf16, one sample a step. ROUNDS times (default 3) one, two and four ranks train in
# turn, STEPS steps each (default 1) after a first that does not count; medians of the rounds' tokens a second, and of
# each round's ratios to its one rank. Four ranks have the same two cores. With a corpus of documents (`make demo`
# leaves one) also what balancing them does at 8,192 tokens.
#   tools/bench_context.sh build/phalanx "8192 16384 32768" [DOCUMENTS]     DOCUMENTS: a prefix, as data.train has it
set -eu
phalanx=$1
lengths=$2
documents=${3:-}
steps=${STEPS:-1}
rounds=${ROUNDS:-3}
layers=${LAYERS:-4}
hidden=${HIDDEN:-512}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
yes 'The quick brown fox jumps over the lazy dog; every step is a program that is written down first.' | head -c 400000 >"$folder/text"
"$phalanx" tokenize --quiet --output "$folder/data" --tokenizer bytes "$folder/text" >/dev/null
cat >"$folder/run.yaml" <<END
model: {architecture: llama, layers: $layers, hidden_size: $hidden, heads: $((hidden / 64)), kv_heads: $((hidden / 128)),
        ffn_size: $((3 * hidden)), vocab_size: 8192, max_sequence: 131072}
train: {device: cpu, precision: bf16, micro_batch: 1, global_batch: 1}
data: {validation: []}
optimizer: {warmup: 0}
evaluate: {every: 0}
checkpoint: {every: 0, resume: never}
run: {tensorboard: false}
END
# NAME RANKS KEY=VALUE...: trains; the median of all steps' tokens a second but the first's
speed() {
    name=$1 ranks=$2
    shift 2
    launch='' threads=''
    [ "$ranks" = 1 ] || {
        launch="mpirun --allow-run-as-root --oversubscribe --mca mpi_yield_when_idle 1 -np $ranks"
        threads=train.threads=1
    }
    # shellcheck disable=SC2086
    $launch "$phalanx" train "$folder/run.yaml" run.folder="$folder/$name" train.steps=$((steps + 1)) $threads \
        parallel.context="$ranks" "$@" >"$folder/$name.log" 2>&1 || { cat "$folder/$name.log" >&2; exit 1; }
    values "$name" tokens_per_second | sed 1d | sort -n | sed -n "$(((steps + 1) / 2))p"
}
values() { # NAME FIGURE: of each step
    sed -n "s/.*\"$2\": *\([0-9.]*\).*/\1/p" "$folder/$1/metrics.jsonl"
}
median() { # RANKS COLUMN: of all rounds
    cut -d' ' -f "$2" "$folder/rounds-$1" | sort -n | sed -n "$(((rounds + 1) / 2))p"
}
echo "tokens a second, and beside one rank with both cores:"
for length in $lengths; do
    rm -f "$folder"/rounds-*
    for round in $(seq "$rounds"); do
        for ranks in 1 2 4; do
            many=$(speed "$ranks-$length-$round" $ranks train.sequence="$length" data.train="$folder/data")
            [ $ranks != 1 ] || one=$many
            awk -v m="$many" -v o="$one" 'BEGIN {printf "%.1f %.3f\n", m, m / o}' >>"$folder/rounds-$ranks"
        done
    done
    line=$(printf '%7d tokens   1 rank %7.1f' "$length" "$(median 1 1)")
    for ranks in 2 4; do
        line="$line$(printf '   %d ranks %7.1f (%.3f)' $ranks "$(median $ranks 1)" "$(median $ranks 2)")"
    done
    echo "$line"
done
[ -n "$documents" ] || exit 0
echo "documents at 8192 tokens: the busiest rank's attention over the mean (of halves, as dealt), tokens a second:"
for ranks in 2 4; do
    for balance in halves documents; do
        name=$balance-$ranks
        many=$(speed "$name" $ranks train.sequence=8192 data.train="$documents" data.document_mask=true \
            parallel.context_balance=$balance)
        mean() { values "$name" "$1" | awk '{s += $1} END {printf "%.3f", NR ? s / NR : 0}'; }
        printf '  %d ranks, %-9s   %s   %s   %.1f\n' $ranks $balance "$(mean context_imbalance_of_halves)" \
            "$(mean context_imbalance)" "$many"
    done
done
