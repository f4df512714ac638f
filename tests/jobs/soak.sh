#!/bin/sh
# A long run under phalanx supervise, two ranks, of which one is killed every so often: what it holds must not grow.
#   tests/jobs/soak.sh build/phalanx [STEPS 50000] [KILL_EVERY 2500]
# Prints, at each kill, the step, resident memory (MiB), open files and threads of a rank and of the supervisor, and the
# files of the run's folder (flight records and checkpoints among them). Fails if, from the second kill to the last, one
# has grown by more than a tenth.
set -eu
phalanx=$1 steps=${2:-50000} every=${3:-2500}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat README.md engine/*/*.c | "$phalanx" tokenize --quiet --output "$folder/data" --tokenizer bytes - >/dev/null
cat >"$folder/run.yaml" <<EOY
model: {architecture: llama, layers: 2, hidden_size: 32, heads: 2, ffn_size: 64, vocab_size: 257}
data: {train: $folder/data}
train: {steps: $steps, sequence: 16, precision: fp32, device: cpu, threads: 1, micro_batch: 1, global_batch: 2}
checkpoint: {every: 100, keep: 2, memory_every: 20}
evaluate: {every: 1000, batches: 2}
run: {folder: $folder/run, log_every: 1000}
EOY
PHALANX_NODE=soak$$ "$phalanx" supervise --restarts 1000 -- mpirun --allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -np 2 \
    "$phalanx" train "$folder/run.yaml" >"$folder/log" 2>&1 &
supervisor=$!

ranks() { pgrep -f "^$phalanx train $folder/run.yaml" || :; }
resident() { awk '/VmRSS/ { printf "%.1f", $2 / 1024 }' "/proc/$1/status" 2>/dev/null || echo 0; }
threads() { ls "/proc/$1/task" 2>/dev/null | wc -l; }
opened() { ls "/proc/$1/fd" 2>/dev/null | wc -l; }
done_steps() { tail -n 1 "$folder/run/metrics.jsonl" 2>/dev/null | sed -n 's/^{"step": *\([0-9]*\).*/\1/p'; }

echo "step rank_MiB rank_files rank_threads supervisor_MiB supervisor_files supervisor_threads run_files" | tee "$folder/table"
next=$every
while kill -0 $supervisor 2>/dev/null; do
    sleep 0.2
    now=$(done_steps)
    [ "${now:-0}" -ge "$next" ] || continue
    next=$((now + every))
    one=$(ranks | tail -n 1)
    [ -n "$one" ] || continue
    echo "$now $(resident "$one") $(opened "$one") $(threads "$one") $(resident $supervisor) $(opened $supervisor) $(threads $supervisor) $(find "$folder/run" -type f | wc -l)" |
        tee -a "$folder/table"
    kill -9 "$one" 2>/dev/null || :
done
wait $supervisor || { tail -n 20 "$folder/log"; exit 1; }
! ls -d /dev/shm/phalanx-*.soak$$ 2>/dev/null || exit 1
awk 'NR == 1 { split($0, name, " "); next }
    NR == 3 { for (i = 2; i <= NF; i++) first[i] = $i }
    { for (i = 2; i <= NF; i++) last[i] = $i; n = NF }
    END { for (i = 2; i <= n; i++) if (first[i] > 0 && last[i] > 1.1 * first[i] + 1) {
              printf "%s has grown from %s to %s\n", name[i], first[i], last[i]; bad = 1 }
          print bad ? "grown" : "constant"; exit bad }' "$folder/table"
