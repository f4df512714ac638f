#!/bin/bash
# Runs test programs and counts what they say (TAP, from cmocka and from scripts alike).
#   tests/run.sh TALLY PROGRAM... [--shared PROGRAM...]
# Programs run one after another, each alone; those after --shared run two at a time and may not start mpirun. Prints a
# line a program with its seconds and its processor's seconds, the output of those that failed, and in the end why each
# test was skipped and which failed; appends "passed failed skipped" to the file TALLY, to TALLY.skipped the names of
# programs that skipped a test, to TALLY.unsteady what was unsteady. A program that ends without a plan, or that runs
# into the time limit, counts as a failure. With SECOND_TRY=1 a program that failed runs once more: where it passes
# then, its tests count as passed, what the first run said is shown, and a line "unsteady: ..." names the test. More
# than two of those are a failure. Ctrl-C and SIGTERM end the programs, with all that they have started, and then this.
set -u
tally=$1
shift
limit=${TEST_SECONDS:-900}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
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

# PROGRAM PATH_BEFORE FOLDER: runs it, and leaves its report, its counts and its notes in FOLDER
run_one() {
    local program=$1 output=$3/output mpi status name start passed failed skipped
    name=$(basename "$program")
    # Open MPI makes a folder for all jobs of a user, and the last job to end removes it, which may be an earlier
    # program's, while another job begins: each program has one of its own, with a short name, since sockets are in it.
    mpi=$(mktemp -d /tmp/mXXXXXX)
    start=$(date +%s.%N)
    # timeout, in a process group of its own that a terminal's Ctrl-C does not reach, passes SIGTERM on to the program
    trap 'kill -TERM $(jobs -p) 2>/dev/null; wait; rm -rf "$mpi"; exit 143' TERM
    # Ranks of one host need no network, and Open MPI 5 says a line a rank of one that it finds no use for.
    PATH="$2$PATH" WRONG_LANE=$3/lane CMOCKA_MESSAGE_OUTPUT=TAP OMPI_MCA_orte_tmpdir_base=$mpi PRTE_MCA_prte_tmpdir_base=$mpi \
        OMPI_MCA_btl=${OMPI_MCA_btl:-^tcp} \
        env --default-signal=INT,QUIT timeout -k 10 "$limit" "$program" >"$output" 2>&1 </dev/null &
    wait $!
    status=$?
    rm -rf "$mpi"
    cat "$3/lane" >>"$output" 2>/dev/null
    skipped=$(grep -cE '^(not )?ok .*# SKIP' "$output") # cmocka calls what it skips not ok
    passed=$(grep -E '^ok ' "$output" | grep -cvE '# SKIP')
    failed=$(grep -E '^not ok ' "$output" | grep -cvE '# SKIP')
    if [ "$failed" -eq 0 ] && { [ "$status" -ne 0 ] || ! grep -qE '^1\.\.[0-9]+' "$output"; }; then
        failed=1
        echo "not ok - $program ended with status $status" >>"$output"
    fi
    times >"$3/times"
    {
        printf '%-40s %4d passed %3d failed %3d skipped ' "$name" "$passed" "$failed" "$skipped"
        { echo "$(date +%s.%N) $start"; tail -n 1 "$3/times" | tr 'ms' '  '; } |
            awk 'NR == 1 {wall = $1 - $2} NR == 2 {cpu = 60 * $1 + $2 + 60 * $3 + $4} END {printf "%6.1f s %6.1f s cpu\n", wall, cpu}'
        [ "$failed" -gt 0 ] && grep -vE '^ok ' "$output" | tail -n 60
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

# LANES PATH_BEFORE PROGRAM...: as many at a time as there are lanes
run_all() {
    local lanes=$1 before=$2 running=0 worker folder
    local -A folders
    shift 2
    while [ $# -gt 0 ] || [ $running -gt 0 ]; do
        if [ $# -gt 0 ] && [ $running -lt "$lanes" ]; then
            folder=$(mktemp -d "$work/run-XXXXXX")
            run_steady "$1" "$before" "$folder" &
            folders[$!]=$folder
            running=$((running + 1))
            shift
            continue
        fi
        wait -n -p worker
        folder=${folders[$worker]}
        running=$((running - 1))
        cat "$folder/report"
        cat "$folder/notes" >>"$work/notes"
        cat "$folder/counts" >>"$work/counts"
        rm -r "$folder"
    done
}

alone=()
while [ $# -gt 0 ] && [ "$1" != --shared ]; do
    alone+=("$1")
    shift
done
run_all 1 "" "${alone[@]}"
run_all 2 "$work/shared:" "${@:2}"
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
