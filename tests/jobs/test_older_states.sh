#!/bin/bash
# What an older version wrote still resumes, with the same bits: two islands' state, and a killed server's journal. TAP,
# for tests/run.sh.
#
#   tests/jobs/test_older_states.sh             holds build/phalanx to the fixtures in tests/golden/older
#   tests/jobs/test_older_states.sh make OLD    writes them with the binary OLD (they are of 679cd96): two islands that
#                                               have made four of eight steps, a server killed with four merges in its
#                                               journal, and the hashes of what OLD itself made of them
set -u
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.." || exit 1
. tests/ports.sh
golden=tests/golden/older
top=$(mktemp -d)
etcd=
trap 'kill $etcd ${server:-} 2>/dev/null; rm -rf "$top"' EXIT
export OMP_NUM_THREADS=1

cat >"$top/run.yaml" <<END
model: {architecture: llama, layers: 1, hidden_size: 16, heads: 4, kv_heads: 2, ffn_size: 24, vocab_size: 97}
data: {train: tests/golden/models/train}
train: {steps: 8, sequence: 32, micro_batch: 2, global_batch: 4, precision: fp32, device: cpu, threads: 1}
optimizer: {lr: 1e-2, schedule: constant}
checkpoint: {every: 0, keep: 0}
evaluate: {every: 0}
outer: {every: 2, min_islands: 2, slots: 2, timeout: 60, keys: $top/keys, address: 127.0.0.1}
run: {tensorboard: false}
END

begin_etcd() {
    port=$(free_port) || return 1
    etcd --name a --data-dir "$top/etcd" --listen-client-urls "http://127.0.0.1:$port" --advertise-client-urls "http://127.0.0.1:$port" \
        --listen-peer-urls "http://127.0.0.1:$((port + 1))" --initial-advertise-peer-urls "http://127.0.0.1:$((port + 1))" \
        --initial-cluster "a=http://127.0.0.1:$((port + 1))" >"$top/etcd.log" 2>&1 &
    etcd=$!
    for _ in $(seq 100); do
        curl -s "http://127.0.0.1:$port/health" 2>/dev/null | grep -q true && return 0
        sleep 0.1
    done
    return 1
}

# train or server: BINARY COMMAND FOLDER KEYS... The shell becomes the program: call it in a subshell or in the
# background.
job() {
    local binary=$1 command=$2 folder=$3
    shift 3
    exec "$binary" "$command" "$top/run.yaml" run.folder="$folder" outer.rendezvous="[http://127.0.0.1:$port]" "$@" \
        >>"$folder.log" 2>&1 </dev/null
}

islands() { # BINARY FOLDER STEPS: both, to their end
    job "$1" train "$2/east" outer.slot=0 train.steps="$3" outer.run=islands-"$4" &
    local east=$!
    (job "$1" train "$2/west" outer.slot=1 train.steps="$3" outer.run=islands-"$4") && wait $east
}

serve() { # BINARY FOLDER: in the background; waits until it has begun
    job "$1" server "$2" outer.topology=server outer.min_islands=1 outer.run=server-"$3" checkpoint.every=100 &
    server=$!
    for _ in $(seq 300); do
        grep -q "$4" "$2.log" 2>/dev/null && return 0
        kill -0 $server 2>/dev/null || return 1
        sleep 0.1
    done
    return 1
}

# A shard's header without the run's id, and its bytes.
tensors() {
    local header
    header=$(od -An -tu8 -N8 "$1" | tr -d ' ')
    tail -c +9 "$1" | head -c "$header" | sed -E 's/"__metadata__": ?\{[^}]*\},? ?//; s/ *$//'
    tail -c +$((header + 9)) "$1"
}

# Bits are the same on one instruction set; on another, sums of products have another order.
instructions() {
    local set
    for set in avx512f avx2; do
        ! grep -qw $set /proc/cpuinfo || { echo "instructions: $set"; return; }
    done
    echo "instructions: others"
}
# TWO FILES of facts made on different instruction sets: losses and norms within 1e-5, hashes aside.
nearly_equal() {
    paste "$1" "$2" | awk -F'\t' '
        split($1, a, ": ") != split($2, b, ": ") || a[1] != b[1] && $1 ~ /:/ { wrong = 1 }
        $1 ~ /"(loss|grad_norm|step)"/ { d = a[2] - b[2]; wrong = wrong || (d < 0 ? -d : d) > 1e-5 * a[2]; compared++ }
        END { exit wrong || compared < 4 }'
}

facts() { # FOLDER: losses, norms, and the bytes of the latest checkpoint
    grep -ohE '"(step|loss|grad_norm)": *[^,}]*' "$1/metrics.jsonl" 2>/dev/null
    local latest
    latest=$(cat "$1/checkpoints/latest")
    for file in "$1/checkpoints/$latest"/*.safetensors; do tensors "$file" | sha256sum; done | cut -d' ' -f1
}

continue_islands() { # BINARY NAME
    cp -r "$golden" "$top/$2" && chmod -R u+w "$top/$2"
    islands "$1" "$top/$2" 8 "$2" && { instructions; facts "$top/$2/east"; facts "$top/$2/west"; } >"$top/$2.islands"
}

continue_server() { # BINARY NAME
    cp -r "$golden" "$top/$2" && chmod -R u+w "$top/$2"
    serve "$1" "$top/$2/server" "$2" "after merge 4" || return 1
    sleep 2 # it listens to signals from its first turn on
    kill -TERM $server
    wait $server
    { instructions; facts "$top/$2/server"; } >"$top/$2.server"
}

make_fixtures() {
    rm -rf "$golden"
    mkdir -p "$golden"
    islands "$1" "$top" 4 islands-first || return 1
    serve "$1" "$top/server" first "holds the model" || return 1
    (job "$1" train "$top/pusher" outer.topology=server outer.slot=0 outer.run=server-first train.steps=8 outer.min_islands=1)
    kill -9 $server
    for folder in east west server; do
        cp -r "$top/$folder" "$golden/$folder"
    done
    find "$golden" \( -name 'hosts' -o -name '*.log' -o -name 'flight*' -o -name 'lock*' -o -name '*.lock' \) -prune -exec rm -rf {} +
    continue_islands "$1" islands-old && cp "$top/islands-old.islands" "$golden/islands.facts" || return 1
    continue_server "$1" server-old && cp "$top/server-old.server" "$golden/server.facts"
}

if ! command -v etcd >/dev/null || ! command -v curl >/dev/null; then
    echo "1..2"
    echo "not ok 1 - islands_of_an_older_version_resume # SKIP etcd is not installed"
    echo "not ok 2 - the_journal_of_an_older_server_is_replayed # SKIP etcd is not installed"
    exit 0
fi
begin_etcd || { echo "Bail out! etcd does not start"; exit 1; }
"${2:-build/phalanx}" keys "$top/keys" >/dev/null

if [ "${1:-}" = make ]; then
    make_fixtures "$2" || { tail -n 5 "$top"/*.log "$top"/*/*.log; exit 1; }
    du -sh "$golden"
    cat "$golden"/*.facts
    exit 0
fi

echo "1..2"
failed=0
verdict() { # NUMBER NAME KIND FOLDER
    local made=$golden/$3.facts now=$top/$4.$3
    if [ -s "$now" ] && [ "$(wc -l <"$made")" -gt 2 ] && cmp -s <(tail -n +2 "$now") <(tail -n +2 "$made"); then
        echo "ok $1 - $2"
    elif [ -s "$now" ] && [ "$(head -n 1 "$made")" != "$(instructions)" ] && nearly_equal <(tail -n +2 "$made") <(tail -n +2 "$now"); then
        echo "# the fixtures have $(head -n 1 "$made"), this machine $(instructions): numbers are within 1e-5"
        echo "ok $1 - $2"
    else
        echo "not ok $1 - $2"
        diff "$made" "$now" 2>&1 | head -n 20 | sed 's/^/# /'
        tail -n 5 "$top/$4"/*.log | sed 's/^/# /'
        failed=1
    fi
}
continue_islands build/phalanx islands-now
verdict 1 islands_of_an_older_version_resume islands islands-now
continue_server build/phalanx server-now
verdict 2 the_journal_of_an_older_server_is_replayed server server-now
exit $failed
