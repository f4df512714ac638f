#!/bin/bash
# Runs test programs and counts what they say (TAP, from cmocka and from scripts alike).
#   tests/run.sh TALLY PROGRAM... [--shared PROGRAM...]
# Programs run one after another; those after --shared run beside them, one at a time and at a low priority, then two at
# a time, and may not start mpirun. Prints a line a program with its seconds and its processor's seconds, the output of
# those that failed, and in the end why each test was skipped and which failed; appends "passed failed skipped" to the
# file TALLY, to TALLY.skipped the names of programs that skipped a test, to TALLY.unsteady what was unsteady. A program
# that ends without a plan, or that runs into the time limit, counts as a failure. With SECOND_TRY=1 a program that
# failed runs once more: where it passes then, its tests count as passed, what the first run said is shown, and a line
# "unsteady: ..." names the test. More than two of those are a failure. Ctrl-C and SIGTERM end the programs, with all
# that they have started, and then this.
set -u
tally=$1
shift
limit=${TEST_SECONDS:-900}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
touch "$work/notes" "$work/counts"
stop() {
    local workers
    workers=$(jobs -p)
    # shellcheck disable=SC2086
    [ -n "$workers" ] && kill -TERM $workers 2>/dev/null && wait
    exit "$1"
}
trap 'stop 130' INT
trap 'stop 143' TERM

# In front of mpirun where cores are shared: a program that starts ranks there is in the wrong lane.
mkdir "$work/shared"
for name in mpirun mpiexec orterun; do
    printf '#!/bin/sh\necho "not ok - ${0##*/} $* where cores are shared" >>"$WRONG_LANE"\nexit 1\n' >"$work/shared/$name"
    chmod +x "$work/shared/$name"
done

# PROGRAM LANE FOLDER: runs it, and leaves its report, its counts and its notes in FOLDER
run_one() {
    local program=$1 before='' priority=0 seconds=$limit output=$3/output mpi status name start passed failed skipped
    [ "$2" = first ] || before=$work/shared:
    [ "$2" != beside ] || priority=10 seconds=$((2 * limit)) # others come first: it has twice the time
    name=$(basename "$program")
    # Open MPI makes a folder for all jobs of a user, and the last job to end removes it, which may be an earlier
    # program's, while another job begins: each program has one of its own, with a short name, since sockets are in it.
    mpi=$(mktemp -d /tmp/mXXXXXX)
    start=$(date +%s.%N)
    # timeout, in a process group of its own that a terminal's Ctrl-C does not reach, passes SIGTERM on to the program
    trap 'kill -TERM $(jobs -p) 2>/dev/null; wait; rm -rf "$mpi"; exit 143' TERM
    # Ranks of one host need no network, and Open MPI 5 says a line a rank of one that it finds no use for.
    PATH="$before$PATH" WRONG_LANE=$3/lane CMOCKA_MESSAGE_OUTPUT=TAP OMPI_MCA_orte_tmpdir_base=$mpi PRTE_MCA_prte_tmpdir_base=$mpi \
        OMPI_MCA_btl=${OMPI_MCA_btl:-^tcp} \
        env --default-signal=INT,QUIT nice -n $priority timeout -k 10 "$seconds" "$program" >"$output" 2>&1 </dev/null &
    wait $!
    status=$?
    rm -rf "$mpi"
    cat "$3/lane" >>"$output" 2>/dev/null
    # -a: what a small model generates is no text of the user's locale
    skipped=$(grep -acE '^(not )?ok .*# SKIP' "$output") # cmocka calls what it skips not ok
    passed=$(grep -aE '^ok ' "$output" | grep -acvE '# SKIP')
    failed=$(grep -aE '^not ok ' "$output" | grep -acvE '# SKIP')
    if [ "$failed" -eq 0 ] && { [ "$status" -ne 0 ] || ! grep -qaE '^1\.\.[0-9]+' "$output"; }; then
        failed=1
        echo "not ok - $program ended with status $status" >>"$output"
    fi
    times >"$3/times"
    {
        printf '%-40s %4d passed %3d failed %3d skipped ' "$name" "$passed" "$failed" "$skipped"
        { echo "$(date +%s.%N) $start"; tail -n 1 "$3/times" | tr 'ms' '  '; } |
            awk 'NR == 1 {wall = $1 - $2} NR == 2 {cpu = 60 * $1 + $2 + 60 * $3 + $4} END {printf "%6.1f s %6.1f s cpu\n", wall, cpu}'
        [ "$failed" -gt 0 ] && grep -avE '^ok ' "$output" | tail -n 60
    } >"$3/report"
    # why a test is skipped: scripts say "ok 3 - TEST # SKIP WHY", cmocka "not ok 3 # SKIP TEST" after our line "#
    # skipped: WHY"
    awk -v name="$name" '
        /^# skipped: / { why = substr($0, 12) }
        /^(not )?ok .*# SKIP/ {
            test = $0; said = $0
            sub(/^(not )?ok [0-9]* *-? */, "", test); sub(/ *# SKIP.*/, "", test)
            sub(/.*# SKIP */, "", said)
            if (test == "") { test = said; said = why }
            said = said != "" ? said : "it does not say why"
            if (!count[said]++) { reasons[++n] = said; first[said] = test }
            why = ""
            next
        }
        /^not ok / { test = $0; sub(/^not ok [0-9]* *-? */, "", test); printf "failed: %s: %s\n", name, test }
        END {
            for (i = 1; i <= n; i++) {
                said = reasons[i]
                printf "skipped: %s: %s (%s)\n", name, (count[said] > 1 ? count[said] " tests" : first[said]), said
            }
        }' "$output" >"$3/notes"
    echo "$passed $failed $skipped" >"$3/counts"
}

# The same, with a second try where it is asked for.
run_steady() {
    run_one "$@"
    local first=$3/first
    { [ "${SECOND_TRY:-0}" = 1 ] && grep -q '^failed' "$3/notes"; } || return
    mkdir "$first"
    mv "$3/report" "$3/notes" "$3/counts" "$3/output" "$first"
    rm -f "$3/lane"
    run_one "$@"
    cat "$first/report" "$3/report" >"$first/reports" && mv "$first/reports" "$3/report"
    grep -q '^failed' "$3/notes" || sed -n 's/^failed: /unsteady: /p' "$first/notes" >>"$3/notes"
}

# PROGRAM LANE: begins it
declare -A folders=() lanes=()
begin() {
    local folder
    folder=$(mktemp -d "$work/run-XXXXXX")
    run_steady "$1" "$2" "$folder" &
    folders[$!]=$folder
    lanes[$!]=$2
}
# Waits until a program has ended, and takes what it left.
take_one() {
    local worker folder
    wait -n -p worker
    folder=${folders[$worker]}
    cat "$folder/report"
    cat "$folder/notes" >>"$work/notes"
    cat "$folder/counts" >>"$work/counts"
    rm -r "$folder"
    unset "folders[$worker]" "lanes[$worker]"
}
in_lane() { # NAME: how many run in that lane
    local lane count=0
    for lane in "${lanes[@]}"; do
        [ "$lane" != "$1" ] || count=$((count + 1))
    done
    echo $count
}

first=()
while [ $# -gt 0 ] && [ "$1" != --shared ]; do
    first+=("$1")
    shift
done
shared=("${@:2}")
while [ ${#first[@]} -gt 0 ] || [ ${#shared[@]} -gt 0 ] || [ ${#lanes[@]} -gt 0 ]; do
    if [ ${#first[@]} -gt 0 ] && [ "$(in_lane first)" -eq 0 ]; then
        begin "${first[0]}" first
        first=("${first[@]:1}")
    elif [ ${#shared[@]} -gt 0 ] && [ "$(in_lane first)" -eq 1 ] && [ ${#lanes[@]} -eq 1 ]; then
        begin "${shared[0]}" beside
        shared=("${shared[@]:1}")
    elif [ ${#shared[@]} -gt 0 ] && [ "$(in_lane first)" -eq 0 ] && [ ${#lanes[@]} -lt 2 ]; then
        begin "${shared[0]}" shared
        shared=("${shared[@]:1}")
    else
        take_one
    fi
done
grep '^skipped' "$work/notes"
sed -n 's/^skipped: \([^:]*\):.*/\1/p' "$work/notes" | sort -u >>"$tally.skipped"
grep '^unsteady' "$work/notes" | tee "$tally.unsteady"
grep '^failed' "$work/notes"
read -r passed failed skipped < <(awk '{p += $1; f += $2; s += $3} END {print p + 0, f + 0, s + 0}' "$work/counts")
if [ "$(grep -c '^unsteady' "$work/notes")" -gt 2 ]; then
    echo "failed: more than two unsteady tests"
    failed=$((failed + 1))
fi
echo "$passed $failed $skipped" >>"$tally"
[ "$failed" -eq 0 ]
