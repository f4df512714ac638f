#!/bin/bash
# Do two builds train alike, bit for bit? Both train some layouts for a few steps on the same bytes; losses, norms and
# the checkpoints' tensors must be equal. Names and versions of files do not count.
#
#     tests/jobs/same_bits.sh OLD_PHALANX NEW_PHALANX [WORD IN THE LAYOUT'S NAME]
set -u
[ $# -ge 2 ] || { echo "usage: $0 OLD_PHALANX NEW_PHALANX [WORD]" >&2; exit 2; }
old=$(realpath "$1") new=$(realpath "$2") word=${3:-}
top=$(mktemp -d /tmp/phalanx-same-bits-XXXXXX)
trap 'rm -rf "$top"' EXIT

gpt2="architecture: gpt2, layers: 6, hidden_size: 48, heads: 12"
grouped="architecture: llama, layers: 8, hidden_size: 48, heads: 12, head_size: 8, kv_heads: 2, ffn_size: 100, tied_embeddings: false"
tied="architecture: llama, layers: 6, hidden_size: 48, heads: 12, head_size: 8, kv_heads: 3, ffn_size: 100, tied_embeddings: true"
qwen3="architecture: qwen3, layers: 6, hidden_size: 48, heads: 12, head_size: 8, kv_heads: 6, ffn_size: 100"
each="parallel.zero_gather=micro_batch parallel.zero_reduce=micro_batch"
p() { echo "parallel.tensor=$1 parallel.pipeline=$2 parallel.zero=$4 parallel.schedule=$5"; }

# name | ranks | model | overrides | overrides of a second run that resumes the first (or nothing)
layouts="gpt2-alone|1|$gpt2|train.dropout=0.1|
gpt2-zero0|2|$gpt2|$(p 1 1 2 0 1f1b)|
gpt2-gpipe|4|$gpt2|$(p 2 2 1 0 gpipe) memory.recompute=full|
gpt2-dropout-interleaved|2|$gpt2|$(p 1 2 1 1 interleaved) parallel.virtual_stages=3 train.dropout=0.1|
gpt2-bf16-zb|4|$gpt2|$(p 2 2 1 1 zb-h1) train.precision=bf16|
gpt2-zero3-each|3|$gpt2|$(p 1 1 3 3 1f1b) $each|
gpt2-budget|2|$gpt2|$(p 1 2 1 1 1f1b) memory.budget=BUDGET|
grouped-copies|4|$grouped|$(p 4 1 1 1 1f1b) parallel.sequence=false memory.recompute=selective|
grouped-zero2|4|$grouped|$(p 2 1 2 2 1f1b) parallel.zero_reduce=micro_batch|
grouped-bf16-zero3|2|$grouped|$(p 1 1 2 3 1f1b) train.precision=bf16|
grouped-three-axes|8|$grouped|$(p 2 2 2 3 interleaved) parallel.virtual_stages=2 $each|
grouped-copies-zero2|8|$grouped|$(p 4 1 2 2 1f1b) $each|
tied-pipeline|4|$tied|$(p 1 2 2 1 zb-h1)|
tied-zero3|6|$tied|$(p 3 1 2 3 1f1b) parallel.zero_gather=micro_batch|
qwen3-norms|4|$qwen3|$(p 2 1 2 0 1f1b) memory.recompute=full|
gpt2-zb-h2|2|$gpt2|$(p 1 2 1 0 zb-h2)
grouped-zb-v|4|$grouped|$(p 2 2 1 1 zb-v) parallel.virtual_stages=2
grouped-v-half|2|$grouped|$(p 1 2 1 1 v-half) parallel.virtual_stages=2
tied-v-min|3|$tied|$(p 1 3 1 1 v-min) parallel.virtual_stages=2 train.precision=bf16
tied-vocabulary|6|$tied|$(p 3 2 1 0 1f1b) parallel.vocabulary=stages
grouped-vocabulary-zb|4|$grouped|$(p 1 2 2 1 zb-h1) parallel.vocabulary=stages memory.recompute=full
gpt2-auto|2|$gpt2|$(p 1 2 1 1 auto)
grouped-parts|2|$grouped|$(p 2 1 1 1 1f1b) parallel.order=parts
grouped-int8|4|$grouped|$(p 2 1 2 1 1f1b) parallel.compress=int8
tied-topk|2|$tied|$(p 1 1 2 0 1f1b) parallel.compress=topk parallel.density=0.1
qwen3-muon|4|$qwen3|$(p 2 1 2 1 1f1b) optimizer.name=muon optimizer.muon_lr=0.01
gpt2-lion-narrow|2|$gpt2|$(p 1 1 2 2 1f1b) optimizer.name=lion optimizer.state=bf16 optimizer.master=bf16 train.precision=bf16
documents-ramp|2|$grouped|$(p 1 2 1 1 1f1b) data.document_mask=true train.batch_ramp=[[0,12],[1,24]]
resumed-elsewhere|4|$grouped|$(p 2 1 2 1 1f1b) train.precision=bf16|$(p 1 2 2 3 gpipe) train.precision=bf16"

for i in $(seq 400); do echo "the $i. line of a text whose words repeat, and repeat $((i * i))"; done > "$top/text.txt"
"$old" tokenize --output "$top/data" --tokenizer bytes "$top/text.txt" > "$top/log" 2>&1 || { cat "$top/log"; exit 1; }
export OMP_NUM_THREADS=1
ranks_of() { echo "mpirun --oversubscribe --allow-run-as-root --bind-to none --mca mpi_yield_when_idle 1 -np $1"; }

configuration() { # MODEL -> FILE
    cat > "$2" << END
model: {$1, vocab_size: 259, max_sequence: 32}
data: {train: $top/data}
train: {steps: 3, sequence: 32, micro_batch: 2, global_batch: 24, precision: fp32, device: cpu, threads: 1, seed: 7}
optimizer: {lr: 3e-3, schedule: constant}
checkpoint: {every: 3, resume: auto}
evaluate: {every: 0}
run: {tensorboard: false, hang_seconds: 120}
END
}

# half of what recomputing everything would save
budget() { # CONFIG RANKS OVERRIDES
    local some=()
    for how in none full; do
        # shellcheck disable=SC2086
        some+=("$("$old" plan "$1" --json parallel.data=1 $3 memory.recompute=$how |
            grep -o '"arena_bytes": *[0-9]*' | grep -o '[0-9]*$' | sort -n | tail -1)")
    done
    echo $(((some[0] + some[1]) / 2))
}

train() { # BINARY FOLDER RANKS CONFIG OVERRIDES
    # shellcheck disable=SC2086
    $(ranks_of "$3") "$1" train "$4" run.folder="$2" $5 < /dev/null > "$2.log" 2>&1 || { tail -5 "$2.log" >&2; return 1; }
}

# A shard's header without the run's id, and its bytes.
tensors() { # FILE
    local header
    header=$(od -An -tu8 -N8 "$1" | tr -d ' ')
    tail -c +9 "$1" | head -c "$header" | sed -E 's/"__metadata__": ?\{[^}]*\},? ?//; s/ *$//'
    tail -c +$((header + 9)) "$1"
}

facts() { # FOLDER: what must be equal
    grep -oE '"(step|loss|grad_norm)": *[^,}]*' "$1/metrics.jsonl"
    find "$1/checkpoints" -name '*.safetensors' | while read -r file; do tensors "$file" | sha256sum; done | cut -d' ' -f1 | sort
}

count=0 wrong=0
while IFS='|' read -r name ranks model keys again; do
    case $name in *"$word"*) ;; *) continue ;; esac
    configuration "$model" "$top/$name.yaml"
    case $keys in
    *BUDGET*)
        keys=${keys/memory.budget=BUDGET/}
        keys="$keys memory.budget=$(budget "$top/$name.yaml" "$ranks" "$keys")"
        ;;
    esac
    ok=yes
    for build in old new; do
        folder=$top/$name-$build
        train "${!build}" "$folder" "$ranks" "$top/$name.yaml" "$keys" || ok=no
        [ -z "$again" ] || train "${!build}" "$folder" "$ranks" "$top/$name.yaml" "$again train.steps=6 checkpoint.every=6" || ok=no
        facts "$folder" > "$folder.facts" 2>&1
    done
    count=$((count + 1))
    lines=$(wc -l < "$top/$name-old.facts")
    if [ $ok = yes ] && [ "$lines" -gt 9 ] && cmp -s "$top/$name-old.facts" "$top/$name-new.facts"; then
        echo "same       $name ($lines facts)"
    else
        echo "DIFFERENT  $name"
        diff "$top/$name-old.facts" "$top/$name-new.facts" | head -5
        wrong=$((wrong + 1))
    fi
done <<< "$layouts"
echo "$count layouts, $wrong differ"
[ $wrong = 0 ] && [ $count -gt 0 ]
