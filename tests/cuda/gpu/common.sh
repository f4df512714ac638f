# What check.sh and bench.sh share, with their arguments: where the programs are, which parts are asked for, a line a
# case as it ends, a table of parts last. Sourced.
#
#     SCRIPT [BUILD] [--only REGEX]     BUILD: of the project; without, the programs of this kit (make gpu-kit)
#
# A case has 60 seconds (CASE_SECONDS), a part 8 minutes (PART_SECONDS): what comes later is skipped. Logs are kept
# where OUT says.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=$here/bin only=.
if [ $# -gt 0 ] && [ "$1" != --only ]; then
    bin=$(cd "$1" && pwd) || exit 2
    shift
elif [ -f "$here/env.sh" ]; then
    . "$here/env.sh"
fi
[ "${1:-}" != --only ] || only=${2:?--only REGEX}
# a program of the build or the kit
program() {
    if [ -x "$bin/$1" ]; then echo "$bin/$1"; else echo "$bin/tests/$1"; fi
}
limit=${CASE_SECONDS:-60} part_limit=${PART_SECONDS:-480}
standins=no gpu="stand-ins"
if [ -f "$bin/standins" ]; then
    standins=yes
elif command -v nvidia-smi >/dev/null && nvidia-smi -L | grep -q GPU; then
    gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1)
else
    echo "${0##*/}: no GPU here: nothing was shown"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
logs=${OUT:-$work/logs}
mkdir -p "$logs"
: >"$work/table"
part= part_began=0
part() { # NAME: is it asked for?
    part=$1 part_began=$SECONDS
    grep -qE -- "$only" <<<"$part"
}
note() { # VERDICT SECONDS
    echo "$part $1 $2" >>"$work/table"
}
skip() { # WHAT WHY
    echo "[ SKIP ] $1: $2"
    note skipped 0
}
try() { # NAME COMMAND...: in a shell of its own, or within a time limit where the command is a program
    local name=$1 log began=$SECONDS
    shift
    if [ $((SECONDS - part_began)) -gt "$part_limit" ]; then
        skip "$name" "the part has had its $part_limit s"
        return
    fi
    log=$logs/$(printf '%s' "$part $name" | tr -c 'A-Za-z0-9.=-' _).log
    if "$@" >"$log" 2>&1 </dev/null; then
        note OK $((SECONDS - began))
        echo "[  OK  ] $name: $(tail -1 "$log" | cut -c1-160)"
    else
        note FAILED $((SECONDS - began))
        echo "[FAILED] $name"
        tail -15 "$log"
    fi
}
table() { # WHO: a line a part, and the exit status
    awk '{ ok[$1] += $2 == "OK"; bad[$1] += $2 == "FAILED"; no[$1] += $2 == "skipped"; s[$1] += $3; if (!seen[$1]++) name[++n] = $1 }
         END { for (i = 1; i <= n; i++) printf "%-14s %3d passed %3d failed %3d skipped %4d s\n", name[i], ok[name[i]], bad[name[i]], no[name[i]], s[name[i]] }' \
        "$work/table"
    echo "$1: $(grep -c ' OK ' "$work/table") passed, $(grep -c ' FAILED ' "$work/table") failed, $(grep -c ' skipped ' "$work/table") skipped ($gpu)"
    ! grep -q ' FAILED ' "$work/table"
}
