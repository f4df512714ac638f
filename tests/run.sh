#!/bin/bash
# Runs test programs and counts what they say (TAP, from cmocka and from scripts alike).
#   tests/run.sh TALLY PROGRAM... [--clocked PROGRAM...] [--together PROGRAM...]
# Programs run one after another, first those without a lane, then those after --clocked; beside these run those after
# --together, as many at a time as there are cores, at a low priority, and when no program comes before them one more,
# since ranks wait for each other. Prints a line a program with its seconds and its processor's seconds, the output of
# those that failed, and in the end why each test was skipped and which failed; appends "passed failed skipped" to the
# file TALLY, to TALLY.skipped the names of programs that skipped a test, to TALLY.unsteady what was unsteady; times.tsv
# beside it has each program's seconds. A program that ends without a plan, or that runs into the time limit, counts as
# a failure. With SECOND_TRY=1 a program that failed runs once more: where it passes then, its tests count as passed,
# what the first run said is shown, and a line "unsteady: ..." names the test. More than two of those are a failure.
# Ctrl-C and SIGTERM end the programs, with all that they have started, and then this.
set -u
tally=$1
shift
limit=${TEST_SECONDS:-900}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
touch "$work/notes" "$work/counts" "$work/seconds"
stop() {
    local workers
    workers=$(jobs -p)
    # shellcheck disable=SC2086
    [ -n "$workers" ] && kill -TERM $workers 2>/dev/null && wait
    exit "$1"
}
trap 'stop 130' INT
trap 'stop 143' TERM

slots=$(($(nproc) < 8 ? $(nproc) + 1 : 9)) # so many run together

# PROGRAM LANE FOLDER: runs it, and leaves its report, its counts and its notes in FOLDER
run_one() {
    local program=$1 priority=0 seconds=$limit output=$3/output mpi status name start passed failed skipped
    [ "$2" != beside ] || priority=10 seconds=$((2 * limit)) # others come first: it has twice the time
    name=$(basename "$program")
    # Open MPI makes a folder for all jobs of a user, and the last job to end removes it, which may be an earlier
    # program's, while another job begins: each program has one of its own, with a short name, since sockets are in it.
    mpi=$(mktemp -d /tmp/mXXXXXX)
    start=$(date +%s.%N)
    # timeout, in a process group of its own that a terminal's Ctrl-C does not reach, passes SIGTERM on to the program
    trap 'kill -TERM $(jobs -p) 2>/dev/null; wait; rm -rf "$mpi"; exit 143' TERM
    # Ranks of one host need no network, and Open MPI 5 says a line a rank of one that it finds no use for. libfabric
    # reads all of the kernel's symbols as it begins: two thirds of what MPI_Init() costs a rank.
    CMOCKA_MESSAGE_OUTPUT=TAP OMPI_MCA_orte_tmpdir_base=$mpi PRTE_MCA_prte_tmpdir_base=$mpi \
        OMPI_MCA_btl=${OMPI_MCA_btl:-^tcp,ofi} OMPI_MCA_mtl=${OMPI_MCA_mtl:-^ofi} \
        env --default-signal=INT,QUIT nice -n $priority timeout -k 10 "$seconds" "$program" >"$output" 2>&1 </dev/null &
    wait $!
    status=$?
    rm -rf "$mpi"
    # -a: what a small model generates is no text of the user's locale
    skipped=$(grep -acE '^(not )?ok .*# SKIP' "$output") # cmocka calls what it skips not ok
    passed=$(grep -aE '^ok ' "$output" | grep -acvE '# SKIP')
    failed=$(grep -aE '^not ok ' "$output" | grep -acvE '# SKIP')
    if [ "$failed" -eq 0 ] && { [ "$status" -ne 0 ] || ! grep -qaE '^1\.\.[0-9]+' "$output"; }; then
        failed=1
        echo "not ok - $program ended with status $status" >>"$output"
    fi
    times >"$3/times"
    { echo "$(date +%s.%N) $start"; tail -n 1 "$3/times" | tr 'ms' '  '; } |
        awk -v program="$name" 'NR == 1 {wall = $1 - $2} NR == 2 {cpu = 60 * $1 + $2 + 60 * $3 + $4}
            END {printf "%s\t%.1f\t%.1f\n", program, wall, cpu}' >"$3/seconds"
    {
        printf '%-40s %4d passed %3d failed %3d skipped ' "$name" "$passed" "$failed" "$skipped"
        awk '{printf "%6.1f s %6.1f s cpu\n", $2, $3}' "$3/seconds"
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
    cat "$folder/seconds" >>"$work/seconds"
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

declare -A waiting=() # the programs of each lane, which have no spaces in their names
lane=alone
for word in "$@"; do
    case $word in
    --clocked | --together) lane=${word#--} ;;
    *) waiting[$lane]+=" $word" ;;
    esac
done
# LANE [AS]: begins the next program of that lane, as one of lane AS
begin_next() {
    local program rest
    read -r program rest <<<"${waiting[$1]}"
    waiting[$1]=$rest
    begin "$program" "${2:-$1}"
}
while [[ ${waiting[*]} = *[!\ ]* ]] || [ ${#lanes[@]} -gt 0 ]; do
    if [ -n "${waiting[alone]-}" ] && [ ${#lanes[@]} -eq 0 ]; then
        begin_next alone
    elif [ -n "${waiting[alone]-}" ] || [ "$(in_lane alone)" -gt 0 ]; then
        take_one
    elif [ -n "${waiting[clocked]-}" ] && [ "$(in_lane clocked)" -eq 0 ]; then
        begin_next clocked
    elif [ -n "${waiting[together]-}" ] && [ ${#lanes[@]} -lt $slots ]; then
        if [ "$(in_lane clocked)" -eq 1 ]; then begin_next together beside; else begin_next together; fi
    else
        take_one
    fi
done
grep '^skipped' "$work/notes"
sed -n 's/^skipped: \([^:]*\):.*/\1/p' "$work/notes" | sort -u >>"$tally.skipped"
grep '^unsteady' "$work/notes" | tee "$tally.unsteady"
grep '^failed' "$work/notes"
# Seconds of the programs that ran now, and of the others as they last ran.
times=$(dirname "$tally")/times.tsv
touch "$times"
{
    printf 'program\tseconds\tprocessor seconds\n'
    awk -F'\t' 'FNR == NR {now[$1]; next} FNR > 1 && !($1 in now)' "$work/seconds" "$times"
    sort "$work/seconds"
} >"$work/times" && mv "$work/times" "$times"
read -r passed failed skipped < <(awk '{p += $1; f += $2; s += $3} END {print p + 0, f + 0, s + 0}' "$work/counts")
if [ "$(grep -c '^unsteady' "$work/notes")" -gt 2 ]; then
    echo "failed: more than two unsteady tests"
    failed=$((failed + 1))
fi
echo "$passed $failed $skipped" >>"$tally"
[ "$failed" -eq 0 ]
