# Sourced by the scripts that stop a job, start it again and compare it with one that nobody stopped. They set $work, a
# folder of their own, and $phalanx, the program.
number=0

check() { # WHAT COMMAND...: one test
    local what=$1
    shift
    number=$((number + 1))
    if "$@" >"$work/check" 2>&1; then
        echo "ok $number - $what"
    else
        echo "not ok $number - $what"
        cat "$work"/*.log "$work/log" "$work/check" 2>/dev/null | tail -n 12 | sed 's/^/# /'
    fi
}

skip_all() { # COUNT WHY: all tests, and the end
    local i
    for i in $(seq "$1"); do echo "ok $i - number $i # SKIP $2"; done
    exit
}

write_run() { # [YAML]: a small model, $work/run.yaml, with more steps than anybody waits for
    seq 1 60000 | "$phalanx" tokenize --output "$work/data" --tokenizer bytes - >/dev/null
    cat >"$work/run.yaml" <<END
model: {architecture: llama, layers: 2, hidden_size: 64, heads: 4, kv_heads: 2, ffn_size: 128, vocab_size: 257, max_sequence: 64}
data: {train: $work/data}
train: {steps: 1000000, sequence: 64, micro_batch: 2, global_batch: 8, precision: fp32, device: cpu, threads: 1}
optimizer: {schedule: constant}
checkpoint: {every: 0}
run: {folder: $work/run, hang_seconds: 120}
${1:-}
END
}

losses() { # FOLDER: step and loss, a line a step
    sed -E 's/.*"step": *([0-9]+).*"loss": *([^,}]+).*/\1 \2/' "$1/metrics.jsonl"
}

same_losses() { # of $work/run and $work/whole, to the last digit
    diff <(losses "$work/run") <(losses "$work/whole")
}
