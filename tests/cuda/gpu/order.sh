#!/bin/bash
# The kit's parts in the order of what matters on a GPU that is lent for 15 minutes, ten at most a command: what is
# right, then what is fast, then what faults do, then the rest. Each step has a limit below 8 minutes; a call ends in
# time, and the next one goes on where it was cut. What was measured is kept as it comes; a table is last.
#
# Usage: order.sh [BUILD] [--seconds N] [--only REGEX] [--times F] [--again] [--list]
#
# N: of this call (540). --only: steps one of whose parts REGEX chooses. --times: F times the seconds of a step and of a
# case, for stand-ins on a slow machine. --again: from the beginning. --list: the steps, played or not.
#
# Into OUT (results beside this script) go, after each step, table, lines (one a case) and logs.tar.gz: three files,
# because a borrowed machine may give back only few. What calls have left is in ORDER_STATE (order-state beside this
# script), which is what the archive holds: unpacked as ORDER_STATE elsewhere, the order goes on there. Exit status: 1
# where a case of any call has failed or a script has died, 77 without a GPU, else 0; what was cut off is in the table.
set -u
here=$(cd "$(dirname "$0")" && pwd)
seconds=540 only=. times=1 again=no list=no build=
while [ $# -gt 0 ]; do
    case $1 in
    --seconds) seconds=${2:?--seconds N} && shift 2 ;;
    --only) only=${2:?--only REGEX} && shift 2 ;;
    --times) times=${2:?--times F} && shift 2 ;;
    --again) again=yes && shift ;;
    --list) list=yes && shift ;;
    --*) echo "order.sh: unknown option $1" >&2 && exit 2 ;;
    *) build=$1 && shift ;;
    esac
done
state=${ORDER_STATE:-$here/order-state}
out=${OUT:-$here/results}
[ $again = no ] || rm -rf "$state"
mkdir -p "$state/logs" "$out"
touch "$state/played" "$state/lines" "$state/cut"

# SECONDS SCRIPT PARTS [VARIABLE=VALUE], PARTS with commas between
steps() {
    awk -v only="$only" -v times="$times" '{ $1 = int($1 * times); if ($1 < 1) $1 = 1; n = split($3, part, ",")
        for (i = 1; i <= n; i++) if (part[i] ~ only) { print; break } }' <<END
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
80 check llama
80 check latent
90 check sinks,clip
60 bench llama-8b PEERS=no
60 check memory
60 bench llama-1b,gpt2-1558m PEERS=no
60 check wide,four-ranks
90 check llama-ranks,context,latent-ranks
60 check sanitizer
END
}
if [ $list = yes ]; then
    while read -r limit script parts rest; do
        printf '%-6s %4d s  %s.sh %s %s\n' "$(grep -qxF "$script $parts" "$state/played" && echo played || echo "-")" "$limit" "$script" "$parts" "$rest"
    done < <(steps)
    exit 0
fi

# A line a part over all calls, what failed and what was cut, and how many steps are left; and all that was seen.
under_way= child=
lines() {
    cat "$state/lines" "$state/cut"
}
table() {
    lines | awk '{ key = $2 " " $3; sub(/:$/, "", key); if (!seen[key]++) name[++n] = key
                   ok[key] += / \[  OK  \] /; cut[key] += / \[ CUT  \] /; bad[key] += / \[FAILED\] /; no[key] += / \[ SKIP \] / }
         END { for (i = 1; i <= n; i++) printf "%-34s %3d passed %3d failed %3d skipped%s\n", name[i],
                   ok[name[i]], bad[name[i]], no[name[i]], (cut[name[i]] ? ", cut off" : "") }'
    cat "$state"/logs/*/speeds 2>/dev/null
    lines | grep -E ' \[FAILED\] | \[ CUT  \] '
    echo "order: $(grep -cxFf <(steps | awk '{ print $2, $3 }') "$state/played") of $(steps | wc -l) steps played, $SECONDS s of this call"
}
keep() {
    [ -z "$under_way" ] || cp "$state/logs/$under_way/lines" "$state/cut" 2>/dev/null
    table >"$out/table"
    lines >"$out/lines"
    tar -C "$state" -cz . >"$out/logs.tar.gz"
}
finish() {
    keep
    cat "$out/table"
    ! lines | grep -q ' \[FAILED\] '
}
# A line of what the step under way did not say itself, with the part and the case that were under way.
add() { # VERDICT WHAT
    local at
    at=$(cat "$logs/under_way" 2>/dev/null || echo "${parts%%,*}: before a case")
    echo "$(date +%T) $script.sh ${at%%:*}: [$1] $2, in:${at#*:}" | tee -a "$logs/lines"
}
trap '[ -z "$child" ] || { { kill "$child"; wait "$child"; } 2>/dev/null; add " CUT  " "$parts by a signal"; }; finish; exit 143' TERM INT
number=0
while read -r limit script parts rest; do
    number=$((number + 1))
    ! grep -qxF "$script $parts" "$state/played" || continue
    left=$((seconds - SECONDS))
    [ $left -ge 20 ] || break
    whole=$([ $left -ge "$limit" ] && echo yes || echo no)
    [ $whole = yes ] || limit=$((left - 5))
    under_way=$(printf '%02d-%s' $number "$script-${parts//,/-}") logs=$state/logs/$under_way
    regex="^(${parts//,/|})\$"
    echo "---- $script.sh --only '$regex', $limit s"
    rm -rf "$state"/logs/??-"$script-${parts//,/-}" # of a call with other steps, too
    mkdir -p "$logs"
    : >"$state/cut"
    env ${rest:+"$rest"} OUT="$logs" PART_SECONDS="$limit" CASE_SECONDS="$(awk "BEGIN { print 1 + int(59 * $times) }")" timeout --kill-after=5 "$limit" \
        "$here/$script.sh" ${build:+"$build"} --only "$regex" &
    child=$!
    wait $child
    result=$?
    child=
    case $result in
    0) ;;
    77)
        [ -s "$state/lines" ] || { echo "order: there is no GPU: nothing was shown" && exit 77; }
        add FAILED "there is no GPU any more"
        ;;
    1) grep -q ' \[FAILED\] ' "$logs/lines" 2>/dev/null || add FAILED "$script.sh ended with 1 and names no case" ;;
    124 | 137) # the next call plays it again, if it had less than its time
        add " CUT  " "$parts after $limit s"
        [ $whole = yes ] || break
        ;;
    *) add FAILED "$script.sh has died, status $result" ;;
    esac
    cat "$logs/lines" >>"$state/lines" 2>/dev/null
    echo "$script $parts" >>"$state/played"
    under_way=
    : >"$state/cut"
    keep
done < <(steps)
finish
