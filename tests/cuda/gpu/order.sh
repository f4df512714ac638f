#!/bin/bash
# The kit's parts in the order of what matters on a GPU that is lent for 15 minutes, ten at most a command: what is
# right, then what is fast, then what faults do, then the rest. Each step has a limit below 8 minutes; a call ends in
# time, and the next one goes on where it was cut. What was measured is kept as it comes; a table is last.
#
# Usage: order.sh [BUILD] [--seconds N] [--only REGEX] [--again] [--list]
#
# N: of this call (540). --only: steps one of whose parts REGEX chooses. --again: from the beginning. --list: the steps,
# played or not. OUT: where logs go (results beside
# this script); what earlier calls have left is in order-state beside this script, and in the table.
set -u
here=$(cd "$(dirname "$0")" && pwd)
seconds=540 only=. again=no list=no build=
while [ $# -gt 0 ]; do
    case $1 in
    --seconds) seconds=${2:?--seconds N} && shift 2 ;;
    --only) only=${2:?--only REGEX} && shift 2 ;;
    --again) again=yes && shift ;;
    --list) list=yes && shift ;;
    --*) echo "order.sh: unknown option $1" >&2 && exit 2 ;;
    *) build=$1 && shift ;;
    esac
done
state=${ORDER_STATE:-$here/order-state}
out=${OUT:-$here/results}
[ $again = no ] || rm -rf "$state"
mkdir -p "$state" "$out"
touch "$state/played" "$state/lines" "$state/cut"

# SECONDS SCRIPT PARTS [VARIABLE=VALUE], PARTS with commas between
steps() {
    awk -v only="$only" '{ n = split($3, part, ","); for (i = 1; i <= n; i++) if (part[i] ~ only) { print; break } }' <<END
90 check versions,self-check
60 check ops,cudnn
80 check gpt2
110 check pytorch
240 bench machine,qwen-1.5b
80 bench variants PEERS=no
60 bench ncu PEERS=no
60 check killed,two-hosts
45 check probes
60 check gpt2-ranks
60 bench gpt2-124m
90 bench llama-7b PEERS=no
90 check kernels
80 check llama,latent,sinks,clip
60 bench llama-8b PEERS=no
60 check memory
60 bench llama-1b,gpt2-1558m PEERS=no
60 check wide,llama-ranks,context,latent-ranks,four-ranks
60 check sanitizer
END
}
if [ $list = yes ]; then
    while read -r limit script parts rest; do
        printf '%-6s %4d s  %s.sh %s %s\n' "$(grep -qxF "$script $parts" "$state/played" && echo played || echo "-")" "$limit" "$script" "$parts" "$rest"
    done < <(steps)
    exit 0
fi

# a line a part over all calls, and how many steps are left
table() {
    awk '{ key = $2 " " $3; sub(/:$/, "", key); if (!seen[key]++) name[++n] = key
           ok[key] += / \[  OK  \] /; bad[key] += / \[FAILED\] /; no[key] += / \[ SKIP \] / }
         END { for (i = 1; i <= n; i++) printf "%-34s %3d passed %3d failed %3d skipped\n", name[i], ok[name[i]], bad[name[i]], no[name[i]] }' "$state/lines"
    grep ' \[FAILED\] ' "$state/lines"
    echo "order: $(wc -l <"$state/played") of $(steps | wc -l) steps played, $SECONDS s of this call"
}
under_way= child=
finish() {
    [ -z "$under_way" ] || cp "$out/$under_way/lines" "$state/cut" 2>/dev/null
    table | tee "$out/table"
    cat "$state/lines" "$state/cut" >"$out/lines"
}
trap '[ -z "$child" ] || { kill "$child"; wait "$child"; } 2>/dev/null; finish; exit 143' TERM INT
number=0 failed=0
while read -r limit script parts rest; do
    number=$((number + 1))
    ! grep -qxF "$script $parts" "$state/played" || continue
    left=$((seconds - SECONDS))
    [ $left -ge 20 ] || break
    whole=$([ $left -ge "$limit" ] && echo yes || echo no)
    [ $whole = yes ] || limit=$((left - 5))
    under_way=$(printf '%02d-%s' $number "$script-${parts//,/-}")
    regex="^(${parts//,/|})\$"
    echo "---- $script.sh --only '$regex', $limit s"
    mkdir -p "$out/$under_way"
    : >"$state/cut"
    env ${rest:+"$rest"} OUT="$out/$under_way" PART_SECONDS="$limit" timeout --kill-after=5 "$limit" "$here/$script.sh" ${build:+"$build"} --only "$regex" &
    child=$!
    wait $child
    result=$?
    [ $result != 77 ] || { echo "order: there is no GPU: nothing was shown"; exit 77; }
    [ $result != 1 ] || failed=1
    [ $result != 124 ] || echo "$(date +%T) $script.sh ${parts//,/-}: [ SKIP ] cut after $limit s" | tee -a "$out/$under_way/lines"
    if [ $result = 124 ] && [ $whole = no ]; then # the next call plays it again
        break
    fi
    cat "$out/$under_way/lines" >>"$state/lines" 2>/dev/null
    echo "$script $parts" >>"$state/played"
    under_way=
done < <(steps)
finish
exit $failed
