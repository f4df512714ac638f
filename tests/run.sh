#!/bin/bash
# Runs test programs one after another and counts what they say (TAP, from cmocka and from scripts alike).
#   tests/run.sh TALLY PROGRAM...
# Appends "passed failed skipped" to the file TALLY; prints a line a program and the output of those that failed. A
# program that ends without a plan, or that runs into the time limit, counts as a failure. Ctrl-C and SIGTERM end the program, with
# all that it has started, and then this.
set -u
tally=$1
shift
limit=${TEST_SECONDS:-900}
output=$(mktemp)
running=
trap 'rm -f "$output"' EXIT
# timeout, in a process group of its own that a terminal's Ctrl-C does not reach, passes SIGTERM on to it
stop() {
    [ -n "$running" ] && kill -TERM "$running" 2>/dev/null && wait "$running"
    exit "$1"
}
trap 'stop 130' INT
trap 'stop 143' TERM
passed=0 failed=0 skipped=0
for program; do
    start=$(date +%s.%N)
    CMOCKA_MESSAGE_OUTPUT=TAP env --default-signal=INT,QUIT timeout -k 10 "$limit" "$program" >"$output" 2>&1 </dev/null &
    running=$!
    wait "$running"
    status=$?
    running=
    seconds=$(echo "$(date +%s.%N) $start" | awk '{printf "%.1f", $1 - $2}')
    s=$(grep -cE '^(not )?ok .*# SKIP' "$output") # cmocka calls what it skips not ok
    p=$(grep -E '^ok ' "$output" | grep -cvE '# SKIP')
    f=$(grep -E '^not ok ' "$output" | grep -cvE '# SKIP')
    if [ "$f" -eq 0 ] && { [ "$status" -ne 0 ] || ! grep -qE '^1\.\.[0-9]+' "$output"; }; then
        f=1
        echo "not ok - $program ended with status $status" >>"$output"
    fi
    printf '%-44s %4d passed %3d failed %3d skipped %7ss\n' "$(basename "$program")" "$p" "$f" "$s" "$seconds"
    [ "$f" -gt 0 ] && grep -vE '^ok ' "$output" | tail -n 60
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done
echo "$passed $failed $skipped" >>"$tally"
[ "$failed" -eq 0 ]
