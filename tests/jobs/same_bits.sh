#!/bin/bash
# Do two builds train alike, bit for bit? Both train the layouts of same_layouts.sh for a few steps on the same bytes;
# losses, norms, what else a step counts, and the checkpoints' tensors must be equal. Names and versions of files do not
# count.
#
#     [FACTS=FOLDER] tests/jobs/same_bits.sh OLD_PHALANX NEW_PHALANX [WORD IN THE LAYOUT'S NAME]
#
# FACTS keeps the facts of the old build: a later call reads them there, and trains the new build only. Such a folder
# belongs to one old build. Layouts on train.device=cuda run on the stand-ins beside a build (make
# build/tests/phalanx_standin), and islands meet in etcd; a layout is skipped where what it needs is missing.
set -u
[ $# -ge 2 ] || { echo "usage: [FACTS=FOLDER] $0 OLD_PHALANX NEW_PHALANX [WORD]" >&2; exit 2; }
old=$(realpath "$1") new=$(realpath "$2") word=${3:-} here=$(dirname "$0")
top=$(mktemp -d /tmp/phalanx-same-bits-XXXXXX)
kept=${FACTS:-$top/kept} etcd=
mkdir -p "$kept" || exit 2
trap '[ -z "$etcd" ] || { kill "$etcd" && wait "$etcd"; } 2> /dev/null; rm -rf "$top"' EXIT
# shellcheck source=tests/jobs/same_layouts.sh
. "$here/same_layouts.sh"
# shellcheck source=tests/ports.sh
. "$here/../ports.sh"

# A document is a line of 6 to 80 bytes: a sample may hold several.
awk 'BEGIN { for (i = 1; i <= 800; i++) { s = "line " i; for (k = i % 7; k; k--) s = s " repeat " k * i; print s } }' |
    "$old" tokenize --output "$top/data" --tokenizer bytes --format text --separator '\n' - > "$top/log" 2>&1 ||
    { cat "$top/log"; exit 1; }
export OMP_NUM_THREADS=1
ranks_of() { echo "mpirun --oversubscribe --allow-run-as-root --bind-to none --mca mpi_yield_when_idle 1 -np $1"; }

# Each job has a session folder of its own: Open MPI's common one may vanish with another job while this one begins.
train() { # PROGRAM FOLDER RANKS CONFIG OVERRIDES
    local session
    session=$(mktemp -d "$top/mXXXXXX") || return 1
    # shellcheck disable=SC2086
    OMPI_MCA_orte_tmpdir_base=$session PRTE_MCA_prte_tmpdir_base=$session \
        $(ranks_of "$3") "$1" train "$4" run.folder="$2" $5 < /dev/null > "$2.log" 2>&1 && return
    { grep -m 3 "^phalanx:" "$2.log" || tail -5 "$2.log"; } >&2
    return 1
}

meet() { # starts etcd before the first layout of islands
    [ -z "$etcd" ] || return 0
    port=$(free_port) && "$old" keys "$top/keys" > "$top/log" || return 1
    "$old" islands --embedded --port "$port" --folder "$top/etcd" > "$top/etcd.log" 2>&1 &
    etcd=$!
    for _ in $(seq 100); do
        "$old" islands "http://127.0.0.1:$port" > "$top/log" 2>&1 && return 0
        sleep 0.1
    done
    return 1
}

# Two islands are two jobs of the same layout, whose samples differ.
islands() { # PROGRAM FOLDER RANKS CONFIG OVERRIDES
    local keys="$5 outer.rendezvous=http://127.0.0.1:$port outer.keys=$top/keys outer.address=127.0.0.1" other ended
    keys="$keys outer.run=${2##*/} outer.min_islands=2 outer.timeout=120"
    mkdir -p "$2"
    train "$1" "$2/0" "$3" "$4" "$keys outer.slot=0" &
    other=$!
    train "$1" "$2/1" "$3" "$4" "$keys outer.slot=1"
    ended=$?
    wait $other && return $ended
}

# A shard's header without the run's id, and its bytes.
tensors() { # FILE
    local header
    header=$(od -An -tu8 -N8 "$1" | tr -d ' ')
    tail -c +9 "$1" | head -c "$header" | sed -E 's/"__metadata__": ?\{[^}]*\},? ?//; s/ *$//'
    tail -c +$((header + 9)) "$1"
}

facts() { # FOLDER: what must be equal
    local counted='step|loss|grad_norm|mtp_loss|attention_logit_max|expert_entropy|dropped_share|rung|replays'
    find "$1" -name metrics.jsonl | sort | xargs grep -ohE "\"($counted|router_(z_)?loss)\": *[^,}]*"
    find "$1" -path '*/checkpoints/*' -name '*.safetensors' | while read -r file; do tensors "$file" | sha256sum; done |
        cut -d' ' -f1 | sort
}

# Prints the facts of a build, below the row that they are of.
play() { # BUILD
    local program=${!1} folder=$top/$name-$1 how=train
    case $keys in
    *train.device=cuda*) program=$(dirname "$program")/tests/phalanx_standin ;;
    *outer.every*) how=islands ;;
    esac
    echo "$ranks ranks, {$model}, $keys, then $again"
    $how "$program" "$folder" "$ranks" "$top/$name.yaml" "$keys" || return 1
    [ -z "$again" ] ||
        train "$program" "$folder" "$ranks" "$top/$name.yaml" "$again train.steps=6 checkpoint.every=6" || return 1
    facts "$folder"
    rm -rf "$folder"
}

missing() { # BUILD: what it lacks for the layout, if it lacks something
    case $keys in
    *train.device=cuda*)
        [ -x "$(dirname "${!1}")/tests/phalanx_standin" ] || echo "no tests/phalanx_standin beside ${!1}" ;;
    *outer.every*) command -v etcd > /dev/null || echo "no etcd (Debian's package is etcd-server)" ;;
    esac
}

count=0 wrong=0 skipped=0
while IFS='|' read -r name ranks model keys again; do
    case $name in *"$word"*) ;; *) continue ;; esac
    configuration "$model" "$top/$name.yaml"
    keys=$(with_budget "$top/$name.yaml" "$keys")
    was=$kept/$name.facts is=$top/$name.facts builds="old new" ok=yes
    [ ! -s "$was" ] || builds=new
    lack=$(for build in $builds; do missing "$build"; done | head -1)
    [ -z "$lack" ] || { echo "skipped    $name: $lack"; skipped=$((skipped + 1)); continue; }
    case $keys in *outer.every*) meet || { echo "etcd does not answer"; ok=no; } ;; esac
    for build in $builds; do
        play "$build" > "$is" || { ok=no && break; }
        [ "$build" = new ] || mv "$is" "$was"
    done
    case $name in
    *replayed*) grep -q '"replays": *[1-9]' "$is" || { echo "no step was played again" && ok=no; } ;;
    esac
    count=$((count + 1))
    lines=$(wc -l < "$is")
    if [ $ok = yes ] && [ "$lines" -gt 9 ] && cmp -s "$was" "$is"; then
        echo "same       $name ($lines facts)"
    else
        echo "DIFFERENT  $name"
        [ $ok = no ] || diff "$was" "$is" | head -5
        wrong=$((wrong + 1))
    fi
done <<< "$layouts"
echo "$count layouts, $wrong differ, $skipped skipped"
[ $wrong = 0 ] && [ $count -gt 0 ]
