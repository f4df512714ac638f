#!/bin/sh
# A model with experts beside a dense one of equal active size, on the demo's text: what the experts gain. Each of
# SEEDS="1 2 3" is trained for STEPS=1120 steps in both ways; on two cores that is hours. `make demo-moe` runs it;
# everything lands in corpus/ and runs/demo-moe-SEED and runs/demo-dense-SEED, and a second call goes on where the first
# ended. Two ranks divide the experts, so that steps are played again where a rank's tokens are too many.
set -eu
cd "$(dirname "$0")/.."
phalanx=build/phalanx
seeds=${SEEDS:-1 2 3} steps=${STEPS:-1120}
# shellcheck disable=SC1091,SC2154
. tools/demo_corpus.sh
# the demo's model of 7.5 M parameters instead of 5.5 M: as many as compute a token with 3 of 16 experts
dense="model.architecture=llama model.experts=0 model.experts_per_token=0 model.expert_ffn_size=0 model.ffn_size=1152
       model.router_loss=0"
two="train.micro_batch=8 train.threads=1"
[ "$(id -u)" != 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

train() # folder, and the keys that differ
{
    folder=$1
    shift
    # shellcheck disable=SC2086
    mpirun --oversubscribe -np 2 $phalanx train models/configs/demo-moe.yaml train.steps="$steps" \
        optimizer.warmup=$((steps / 8)) evaluate.every=$((steps / 8)) checkpoint.every=$((steps / 2)) run.log_every=40 \
        $two run.folder="$folder" "$@"
}

number() # folder, and the name of a number of its last step that has it
{
    sed -n 's/.*"'"$2"'": *\([0-9.]*\).*/\1/p' "$1/metrics.jsonl" | tail -n 1
}

for seed in $seeds; do
    train "runs/demo-moe-$seed" train.seed="$seed" parallel.expert=2
    # shellcheck disable=SC2086
    train "runs/demo-dense-$seed" train.seed="$seed" $dense
done
echo
# shellcheck disable=SC2154
echo "validation loss in nats a token, entropy of the tokens' frequencies $entropy:"
for seed in $seeds; do
    moe=runs/demo-moe-$seed
    replays=$(awk -F'"replays": *' 'NF > 1 {split($2, a, /[,}]/); n += a[1]} END {print n + 0}' "$moe/metrics.jsonl")
    load=$(number "$moe" expert_load_max)
    echo "  seed $seed: experts $(number "$moe" eval_loss), dense $(number "runs/demo-dense-$seed" eval_loss);" \
        "$replays of $steps steps played again${load:+, busiest expert $load x the mean}"
done
