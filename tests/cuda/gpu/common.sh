# What check.sh and bench.sh share, with their arguments: where the programs are, which parts are asked for, a line a
# case as it ends, a table of parts last. Sourced.
#
#     SCRIPT [BUILD] [--only REGEX]     BUILD: of the project; without, the programs of this kit (make gpu-kit)
#
# A case has 60 seconds (CASE_SECONDS), a part 8 minutes (PART_SECONDS): what comes later is skipped. Logs, clocks,
# plans and tuning.json are kept where OUT says, and so is a line a case as it ends (OUT/lines): who is cut loses no
# more than the case that was under way.
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
# Within the script's own group of processes, so that whoever ends the script ends the program, too.
late= # seconds of what has not ended in time
within() { # SECONDS COMMAND...
    timeout --foreground --kill-after=10 "$@"
    local result=$?
    [ $result != 124 ] && [ $result != 137 ] || late=$1
    return $result
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
trap '[ -z "${watcher:-}" ] || kill $watcher 2>/dev/null; rm -rf "$work"' EXIT
logs=${OUT:-$work/logs}
mkdir -p "$logs"
file_name() { # WORDS
    printf '%s' "$1" | tr -c 'A-Za-z0-9.-' _
}
say() { # LINE
    echo "$1"
    echo "$(date +%T) ${0##*/} $part: $1" >>"$logs/lines"
}
# ---- the machine
torch_missing() { # PYTHON: why it is not used; nothing where it is
    command -v "$1" >/dev/null || { echo "there is no $1"; return; }
    "$1" -c 'import torch, transformers' 2>/dev/null || echo "$1 has no torch and transformers"
}
cudnn_found() {
    local folder
    ldconfig -p 2>/dev/null | grep -q libcudnn.so.9 && return 0
    for folder in ${LD_LIBRARY_PATH//:/ }; do [ ! -e "$folder/libcudnn.so.9" ] || return 0; done
    return 1
}
# Clocks, power, temperature and why clocks are held down, from now until clocks_seen, five times a second.
watcher=
watch_clocks() { # FILE
    local reasons=clocks_event_reasons.active fields=clocks.sm,clocks.mem,power.draw,power.limit,temperature.gpu
    : >"$1"
    command -v nvidia-smi >/dev/null || return 0
    nvidia-smi --query-gpu=$reasons --format=csv,noheader >/dev/null 2>&1 || reasons=clocks_throttle_reasons.active
    nvidia-smi --query-gpu=$fields,$reasons --format=csv,noheader,nounits --loop-ms=200 >"$1" 2>/dev/null &
    watcher=$!
}
clocks_seen() { # FILE: one line
    [ -z "$watcher" ] || { kill $watcher; wait $watcher; } 2>/dev/null
    watcher=
    awk -F', *' 'NF >= 6 { n++; if (n == 1 || $1 + 0 < low) low = $1 + 0; if ($1 + 0 > high) high = $1 + 0; if ($3 + 0 > most) most = $3 + 0; cap = $4
                   if ($5 + 0 > hot) hot = $5 + 0; why[$6]++ }
        END { if (!n) { print "clocks: nvidia-smi says nothing"; exit }
              printf "clocks: %d to %d MHz, at most %.0f of %.0f W, %d C, %d looks; held down by (bits of nvidia-smi)", low, high, most, cap, hot, n
              for (w in why) printf " %s x %d", w, why[w]; print "" }' "$1"
}
machine() {
    command -v nvidia-smi >/dev/null || { echo "there is no nvidia-smi"; return 1; }
    nvidia-smi -q -d CLOCK,POWER,PERFORMANCE,TEMPERATURE,ECC
    nvidia-smi topo -m
    uname -srm
    nproc
    nvidia-smi --query-gpu=name,memory.total,driver_version,power.limit --format=csv,noheader
}
: >"$work/table"
trap 'exit 143' TERM
part= part_began=0
part() { # NAME: is it asked for?
    part=$1 part_began=$SECONDS
    grep -qE -- "$only" <<<"$part"
}
note() { # VERDICT SECONDS
    echo "$part $1 $2" >>"$work/table"
}
skip() { # WHAT WHY
    say "[ SKIP ] $1: $2"
    note skipped 0
}
try() { # NAME COMMAND...: a function of the script's, or a program within a time limit of its own
    local name=$1 log result began=$SECONDS
    shift
    if [ $((SECONDS - part_began)) -gt "$part_limit" ]; then
        skip "$name" "the part has had its $part_limit s"
        return
    fi
    log=$logs/$(file_name "$part $name").log late=
    echo "$part: $name" >"$logs/under_way"
    "$@" >"$log" 2>&1 </dev/null
    result=$?
    rm -f "$logs/under_way"
    if [ $result = 0 ]; then
        note OK $((SECONDS - began))
        say "[  OK  ] $name: $(tail -1 "$log" | cut -c1-160)"
    else
        note FAILED $((SECONDS - began))
        say "[FAILED] $name: ${late:+not done in $late s; }status $result; $(tail -1 "$log" | cut -c1-160)"
        tail -15 "$log"
    fi
}
table() { # WHO: a line a part, and the exit status
    awk '{ ok[$1] += $2 == "OK"; bad[$1] += $2 == "FAILED"; no[$1] += $2 == "skipped"; s[$1] += $3; if (!seen[$1]++) name[++n] = $1 }
         END { for (i = 1; i <= n; i++) printf "%-14s %3d passed %3d failed %3d skipped %4d s\n", name[i], ok[name[i]], bad[name[i]], no[name[i]], s[name[i]] }' \
        "$work/table"
    echo "$1: $(grep -c ' OK ' "$work/table") passed, $(grep -c ' FAILED ' "$work/table") failed, $(grep -c ' skipped ' "$work/table") skipped ($gpu)"
    [ $standins = no ] || echo "The stand-ins' sizes are small and their times made up: the scripts work, and nothing of a GPU was shown."
    ! grep -q ' FAILED ' "$work/table"
}
