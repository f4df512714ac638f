#!/bin/bash
# Six islands under random events: killed, frozen, cut off (each lives in a network namespace of its own), slowed, told
# to stop, started again, hostile (its key is good, its changes are wild: rank_hostile.c); a seventh that joins and
# leaves; one of three etcd nodes away, or all of them, or set back; values in etcd that no island has written. Every
# event must be named in the log of the others, but for lies that cannot be told from a change and values that mean
# nothing; no island may end by itself, the sequence of merges must go on and have no gap, all losses must be finite,
# and the final model must load and be no more than 5% worse than that of the same islands undisturbed for as many
# steps. The same seed draws the same events, all kinds or those that ONLY names. Without root there are no
# namespaces: then nobody is cut off, and the table says so.
#
#     EVENTS=200 SEED=1 tests/jobs/island_events.sh [build/phalanx]
set -u
phalanx=$(realpath "${1:-build/phalanx}") hostile=$(dirname "$(realpath "${1:-build/phalanx}")")/tests/rank_hostile
events=${EVENTS:-20} every=30 islands=6 newcomer=6 seed=${SEED:-1} timeout=10
top=$(mktemp -d /tmp/phalanx-island-events-XXXXXX)
cp "$hostile" "$top/hostile" && cp "$phalanx" "$top/phalanx" && phalanx=$top/phalanx || exit 1 # which may be built anew meanwhile
port=$((20000 + $$ % 12000)) network=10.$((100 + $$ % 100)).$((($$ / 100) % 250)) tag=phx$(($$ % 100000))
declare -A pid node offset_of named observers   # by island, by node, by "event,island"
kinds=() subjects=() patterns=() starts=() times=() open=() failures=0
last_merge=-1 merged_at=$SECONDS longest=0 etcd_is_there=1

tidy() {
    kill -CONT "${pid[@]}" 2>/dev/null
    kill -9 "${node[@]}" "${pid[@]}" 2>/dev/null
    wait 2>/dev/null
    for i in $(seq 0 $islands); do ip netns del $tag$i; done 2>/dev/null
    ip link del $tag 2>/dev/null
    [ -n "${KEEP:-}" ] || rm -rf "$top"
}
trap tidy EXIT

# ---- the network, etcd, islands
# ----------------------------------------------------------------------------------------

open_network() {
    ip link add $tag type bridge && ip addr add $network.1/24 dev $tag && ip link set $tag up || return 1
    local i
    for i in $(seq 0 $islands); do
        ip netns add $tag$i && ip link add $tag-$i master $tag type veth peer name eth0 netns $tag$i &&
            ip link set $tag-$i up && ip -n $tag$i link set lo up && ip -n $tag$i link set eth0 up &&
            ip -n $tag$i addr add $network.$((10 + i))/24 dev eth0 || return 1
    done
}

start_node() {
    local k=$1 j cluster=
    for j in 0 1 2; do cluster+=n$j=http://$host:$((port + 2 * j + 1)),; done
    etcd --name n$k --data-dir "$top/etcd$k" --listen-client-urls http://$host:$((port + 2 * k)) \
        --advertise-client-urls http://$host:$((port + 2 * k)) --listen-peer-urls http://$host:$((port + 2 * k + 1)) \
        --initial-advertise-peer-urls http://$host:$((port + 2 * k + 1)) --initial-cluster "${cluster%,}" \
        --auto-compaction-retention 1 >>"$top/etcd$k.log" 2>&1 &
    node[$k]=$!
}

# run, island, keys...
start() {
    local run=$1 i=$2 inside=() address=127.0.0.1
    shift 2
    [ -z "$spaces" ] || inside=(ip netns exec $tag$i) address=$network.$((10 + i))
    PHALANX_HOSTILE=$top/lie-$i "${inside[@]}" "$top/hostile" "$top/run.yaml" run.folder="$top/$run-$i" outer.island=e$i outer.run=$run outer.slot=$i \
        outer.address=$address "$@" >>"$top/$run-$i.log" 2>&1 &
    pid[$i]=$!
}

# run, most seconds, island...: until these have ended, well or stopped by a signal
finish() {
    local run=$1 until=$((SECONDS + $2)) i status
    shift 2
    for i in "$@"; do
        while kill -0 "${pid[$i]}" 2>/dev/null; do
            [ $SECONDS -lt $until ] || { echo "island $i of $run has not ended"; tail -n 3 "$top/$run-$i.log"; exit 1; }
            sleep 0.2
        done
        wait "${pid[$i]}"
        status=$?
        [ $status -eq 0 ] || [ $status -eq 75 ] || fail "island $i of $run ended with $status: $(tail -n 2 "$top/$run-$i.log")"
    done
}

fail() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}

# ---- what the others say
# -----------------------------------------------------------------------------------------------

# kind, island (or -1: none), pattern: from now on the logs of the others are looked at for it
expect() {
    local e=${#kinds[@]} i
    kinds+=("$1") subjects+=("$2") patterns+=("$3") times+=($SECONDS) open+=(1) named[$e]=0
    for i in $(seq 0 $((islands - 1))); do
        [ $i -ne "$2" ] || continue
        offset_of[$e,$i]=$(stat -c %s "$top/disturbed-$i.log")
        observers[$e,$i]=${pid[$i]}
    done
}

look() {
    local e i waits
    for e in "${!kinds[@]}"; do
        [ "${open[$e]}" = 1 ] || continue
        waits=0
        for i in $(seq 0 $((islands - 1))); do
            [ "${observers[$e,$i]:-}" = "${pid[$i]}" ] || continue # it has been at work all the time
            if tail -c +$((offset_of[$e,$i] + 1)) "$top/disturbed-$i.log" | grep -qE "${patterns[$e]}"; then
                observers[$e,$i]=
                named[$e]=$((named[$e] + 1))
            else
                waits=1
            fi
        done
        [ $waits = 0 ] || [ $((SECONDS - times[e])) -gt 45 ] || continue
        open[$e]=0
        [ "${named[$e]}" -gt 0 ] || fail "nobody has named: ${kinds[$e]} ${subjects[$e]} (${patterns[$e]})"
    done
}

# The longest time without a merge while etcd is there.
look_for_merges() {
    local now i
    now=$(for i in $(seq 0 $((islands - 1))); do tail -n 20 "$top/disturbed-$i.log"; done |
        sed -n 's/^islands: merge number \([0-9]*\), of .*/\1/p' | sort -n | tail -n 1)
    if [ "${now:-$last_merge}" != "$last_merge" ] || [ $etcd_is_there = 0 ]; then
        last_merge=${now:-$last_merge} merged_at=$SECONDS
    fi
    [ $((SECONDS - merged_at)) -le $longest ] || longest=$((SECONDS - merged_at))
}

# seconds, looking meanwhile
pause() {
    local until=$((SECONDS + $1)) i
    while :; do
        look
        look_for_merges
        [ $SECONDS -lt $until ] || break
        sleep 1
    done
    for i in $(seq 0 $((islands - 1))); do
        kill -0 "${pid[$i]}" 2>/dev/null && continue
        fail "island $i has ended by itself: $(tail -n 2 "$top/disturbed-$i.log")"
        start disturbed $i
    done
}

# ---- events
# ------------------------------------------------------------------------------------------------------------

# What names an island that is late, or away: which of them depends on how long it lasts.
missing() {
    echo "waits for e$1 |without (e[0-9], )*e$1|islands: e$1 .* is away"
}

say() {
    echo "  $(date +%T) $*"
}

killed() {
    say "island $1 killed"
    expect killed "$1" "islands: e$1 .* is away"
    expect returned "$1" "islands: e$1 .* is back .*started again"
    kill -9 "${pid[$1]}"
    wait "${pid[$1]}" 2>/dev/null
    sleep $(($2 % 4))
    start disturbed "$1"
}

frozen() {
    say "island $1 frozen for $((4 + $2 % 5)) s"
    expect frozen "$1" "$(missing "$1")"
    kill -STOP "${pid[$1]}"
    sleep $((4 + $2 % 5))
    kill -CONT "${pid[$1]}"
}

cut_off() {
    [ -n "$spaces" ] || { frozen "$@"; return; }
    say "island $1 cut off for $((4 + $2 % 6)) s"
    expect "cut off" "$1" "$(missing "$1")"
    ip link set $tag-$1 down
    sleep $((4 + $2 % 6))
    ip link set $tag-$1 up
}

slowed() {
    say "island $1 slowed"
    expect slowed "$1" "$(missing "$1")"
    for _ in 1 2 3 4 5 6 7 8; do
        kill -STOP "${pid[$1]}"
        sleep 0.9
        kill -CONT "${pid[$1]}"
        sleep 0.1
    done
}

stopped() {
    say "island $1 told to stop"
    expect stopped "$1" "islands: e$1 .* left"
    expect returned "$1" "islands: e$1 .* is back .*started again"
    kill -TERM "${pid[$1]}"
    finish disturbed 120 "$1"
    sleep $(($2 % 4))
    start disturbed "$1"
}

joined() {
    local i=$newcomer until=$((SECONDS + 60)) before=0
    say "a seventh island joins for $((2 + $2 % 4)) s"
    [ ! -e "$top/disturbed-$i.log" ] || before=$(stat -c %s "$top/disturbed-$i.log")
    expect joined -1 "islands: e$i .* (joined|is back) "
    expect left -1 "islands: e$i .* left"
    start disturbed $i
    until tail -c +$((before + 1)) "$top/disturbed-$i.log" | grep -qE "merge number [0-9]+, of .*e$i"; do
        [ $SECONDS -lt $until ] || { fail "the seventh island has merged nothing in 60 s: $(tail -n 2 "$top/disturbed-$i.log")"; break; }
        pause 1
    done
    pause $((2 + $2 % 4))
    kill -TERM "${pid[$i]}"
    finish disturbed 120 $i
}

node_away() {
    local k=$(($1 % 3))
    say "etcd's node $k killed for $((7 + $2 % 3)) s"
    expect "etcd node" -1 "etcd's node http://$host:$((port + 2 * k)) is away"
    kill -9 "${node[$k]}"
    wait "${node[$k]}" 2>/dev/null
    pause $((7 + $2 % 3))
    expect "its return" -1 "etcd's node http://$host:$((port + 2 * k)) is back"
    start_node $k
}

etcd_away() {
    say "all of etcd killed for $((3 + $2 % 6)) s"
    expect "all of etcd" -1 "unmerged until it is back"
    expect "its return" -1 "islands: etcd is back"
    etcd_is_there=0
    kill -9 "${node[@]}"
    wait "${node[@]}" 2>/dev/null
    pause $((3 + $2 % 6))
    for k in 0 1 2; do start_node $k; done
    local until=$((SECONDS + 60))
    until etcdctl_health; do
        [ $SECONDS -lt $until ] || { fail "etcd has not come back in 60 s"; break; }
        pause 1
    done
    etcd_is_there=1
}

# All of etcd goes back to what it was at the event before this one: it has forgotten all merges since.
etcd_set_back() {
    local kept=$top/etcd-before
    say "all of etcd killed, and set back"
    expect "set back" -1 "unmerged until it is back|etcd is back|has gone back|older|another cluster"
    etcd_is_there=0
    kill -9 "${node[@]}"
    wait "${node[@]}" 2>/dev/null
    mkdir -p "$kept-now" && cp -r "$top"/etcd? "$kept-now"
    if [ -d "$kept" ]; then
        rm -rf "$top"/etcd?
        cp -r "$kept"/. "$top"
    fi
    rm -rf "$kept" && mv "$kept-now" "$kept"
    for k in 0 1 2; do start_node $k; done
    local until=$((SECONDS + 60))
    until etcdctl_health; do
        [ $SECONDS -lt $until ] || { fail "etcd has not come back in 60 s"; break; }
        pause 1
    done
    etcd_is_there=1
}

# Only a change whose norm is far from what is usual can be told from an honest one.
hostile() {
    local lies=(huge huge tenfold flipped)
    local lie=${lies[$2 % 4]}
    say "island $1 hostile ($lie) for $((3 + $2 % 4)) s"
    [ $lie != huge ] || expect "hostile" "$1" "refused the change of island e$1 "
    echo $lie >"$top/lie-$1"
    pause $((3 + $2 % 4))
    rm "$top/lie-$1"
}

# key, value: by whichever node is there
put() {
    local k
    for k in 0 1 2; do
        curl -sf -m 3 -o "$top/put" "http://$host:$((port + 2 * k))/v3/kv/put" -d \
            "{\"key\": \"$(printf %s "$1" | base64 -w 0)\", \"value\": \"$(printf %b "$2" | base64 -w 0)\"}" && return
    done
    fail "cannot write to etcd"
}

# The numbers of all merges that etcd holds.
list_merges() {
    local from=phalanx/disturbed/merges/ key
    curl -sf "http://$host:$port/v3/kv/range" -d "{\"key\": \"$(printf %s $from | base64 -w 0)\", \"keys_only\": true,
        \"range_end\": \"$(printf %s "${from%/}0" | base64 -w 0)\"}" | grep -o '"key":"[^"]*"' |
        while IFS='"' read -r _ _ _ key _; do printf %s "$key" | base64 -d && echo; done | sed "s|^${from}0*||" | sort -n
}

# A head that nobody has is named, and written anew after outer.timeout; the others mean nothing, and print nothing.
hostile_value() {
    local live=phalanx/disturbed/live deep
    case $(($2 % 4)) in
    0 | 1)
        say "a head in etcd that nobody has"
        expect "hostile head" -1 "etcd holds merge [0-9]* of run disturbed, which no island at work has"
        put $live/head "{\"merge\": $((4611686018427387904 >> $2 % 62)), \"step\": 1, \"updates\": 1, \"parts\": []}"
        ;;
    2)
        say "a value in etcd that is 2,047 deep"
        deep=$(printf '[%.0s' $(seq 2047))
        put $live/x "$deep${deep//\[/]}"
        ;;
    3)
        say "a member in etcd whose name is lines of a log"
        put $live/member/5x "{\"id\": \"x\", \"ranks\": 1, \"name\": \"x\\\\nphalanx: warning: rank 0 FORGED\"}"
        put $live/offer/0x '{"merge": 0}'
        ;;
    esac
    pause $timeout
}

etcdctl_health() {
    "$phalanx" islands "$rendezvous" >/dev/null 2>&1
}

draw() {
    local all="killed killed frozen cut_off cut_off slowed stopped joined node_away etcd_away etcd_set_back hostile hostile_value"
    local table
    read -ra table <<<"${ONLY:-$all}"
    local kind=${table[RANDOM % ${#table[@]}]} i=$((RANDOM % islands)) length=$((RANDOM % 1000)) rest=$((RANDOM % 3))
    $kind $i $length
    pause $rest
}

# ---- the table
# -----------------------------------------------------------------------------------------------------------

table() {
    local e
    for e in "${!kinds[@]}"; do echo "${kinds[$e]}|${named[$e]}"; done | sort | awk -F'|' '
        $1 != last && NR > 1 { row() }
        { last = $1; n++; named += $2 > 0; others += $2 }
        function row() { printf "%-12s %4d times, named %4d times, by %.1f others\n", last, n, named, others / n; n = named = others = 0 }
        END { row() }'
}

last_loss() {
    sed -n 's/.*"eval_loss": \([0-9.a-z]*\).*/\1/p' "$1/metrics.jsonl" | tail -n 1
}

# ---- the run
# ----------------------------------------------------------------------------------------------------------------

spaces= host=127.0.0.1
if open_network 2>/dev/null; then
    spaces=yes host=$network.1
else
    echo "no network namespaces here (root can make them): nobody is cut off, and frozen instead"
fi
rendezvous=http://$host:$port,http://$host:$((port + 2)),http://$host:$((port + 4))
RANDOM=$seed
"$phalanx" keys "$top/keys" >/dev/null && cat README.md engine/README.md engine/train/*.c engine/train/*/*.c engine/islands/*/*.c >"$top/text" &&
    "$phalanx" tokenize --output "$top/data" --tokenizer bytes "$top/text" >/dev/null || exit 1
cat >"$top/run.yaml" <<YAML
model: {architecture: llama, layers: 2, hidden_size: 48, heads: 4, ffn_size: 96, vocab_size: 257}
data: {train: $top/data, validation: $top/data}
train: {steps: 100000000, sequence: 64, precision: fp32, device: cpu, threads: 1, micro_batch: 2, global_batch: 2}
optimizer: {lr: 3e-3, warmup: 50, schedule: constant}
checkpoint: {every: 200, keep: 1}
evaluate: {every: 0, batches: 100}
run: {tensorboard: false, log_every: 1000000}
outer: {every: $every, slots: 7, min_islands: 4, timeout: $timeout, compress: int8, robust: trimmed, rendezvous: [${rendezvous//,/, }], keys: $top/keys}
YAML
for k in 0 1 2; do start_node $k; done
until etcdctl_health; do sleep 0.5; done

echo "seed $seed, $events events, in $top"
for i in $(seq 0 $((islands - 1))); do start disturbed $i outer.bandwidth=${BANDWIDTH:-4e6}; done
until [ "$(cat "$top"/disturbed-*.log | grep -c '^islands: merge number [0-9]*, of the changes of 6')" -gt 6 ]; do sleep 0.5; done
merged_at=$SECONDS
for e in $(seq "$events"); do draw; done
pause 20
for e in 1 2 3 4 5; do [[ " ${open[*]} " != *" 1 "* ]] || pause 10; done

# All stop, go on for as many merges, and end together; then as many steps undisturbed.
all=$(seq 0 $((islands - 1))) longest_run=0
kill -TERM "${pid[@]}" 2>/dev/null
finish disturbed 120 $all
for i in $all; do
    steps=$(sed -n 's/.*stopped by SIGTERM after step \([0-9]*\).*/\1/p' "$top/disturbed-$i.log" | tail -n 1)
    steps=$((steps / every * every + 20 * every))
    [ $steps -lt $longest_run ] || longest_run=$steps
    start disturbed $i train.steps=$steps evaluate.every=$steps
done
finish disturbed 600 $all
steps=$longest_run
for i in $all; do start undisturbed $i train.steps=$steps evaluate.every=$steps; done
finish undisturbed 2400 $all

merges=$(list_merges)
gap=$(echo "$merges" | awk 'NR > 1 && $1 != last + 1 { print last; exit } { last = $1 }')
a=$(last_loss "$top/undisturbed-0") b=$(for i in $all; do last_loss "$top/disturbed-$i"; done | sort -g | tail -n 1)
table
echo "$(echo "$merges" | wc -l) merges in $steps steps, at most $longest s without one; loss $a undisturbed, $b (the worst of $islands) after $events events"
[ -z "$gap" ] || fail "no merge after $gap"
[ $longest -le $((3 * timeout)) ] || fail "$longest s without a merge"
for i in $all; do
    ! grep -qiE '"(loss|eval_loss|grad_norm)": *"?-?(nan|inf)' "$top/disturbed-$i/metrics.jsonl" || fail "island $i: a loss is not finite"
    ! grep "not finite" "$top/disturbed-$i.log" | grep -qv "refused the change of island" ||
        fail "island $i: $(grep 'not finite' "$top/disturbed-$i.log" | grep -m 1 -v 'refused the change of island')"
    ! grep -q "^phalanx: warning: rank 0 FORGED" "$top/disturbed-$i.log" || fail "island $i: a line of its log is forged"
    "$phalanx" inspect --verify "$top/disturbed-$i/checkpoints" >"$top/inspect" 2>&1 || fail "island $i: its model does not load: $(tail -n 1 "$top/inspect")"
done
"$phalanx" eval --checkpoint "$top/disturbed-0" --data "$top/data" --limit 20000 >"$top/eval" 2>&1 || fail "the final model: $(tail -n 1 "$top/eval")"
awk -v a="$a" -v b="$b" 'BEGIN { exit !(a > 0 && b > 0 && b <= 1.05 * a) }' || fail "more than 5% worse"
[ $failures -eq 0 ] || { echo "$failures failures"; exit 1; }
