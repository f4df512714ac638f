#!/bin/bash
# run.sh itself: Ctrl-C and SIGTERM end the test that is running, what that has started, and the rest. TAP, for tests/run.sh.
set -u
cd "$(dirname "$0")/.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/test_long" <<END
#!/bin/bash
echo 1..1
sleep 300 & echo \$! >"$work/below"
echo \$\$ >"$work/test"
wait
END
chmod +x "$work/test_long"

# NUMBER SIGNAL STATUS: to run.sh, which a terminal's Ctrl-C would reach and the test would not
check() {
    rm -f "$work/below" "$work/test"
    env --default-signal=INT tests/run.sh "$work/tally" "$work/test_long" "$work/test_long" >"$work/output" 2>&1 &
    local run=$! ended=no
    for _ in $(seq 300); do
        [ -s "$work/test" ] && break
        sleep 0.1
    done
    kill -"$2" $run
    wait $run
    local status=$?
    for _ in $(seq 100); do
        kill -0 "$(cat "$work/below")" 2>/dev/null || kill -0 "$(cat "$work/test")" 2>/dev/null || { ended=yes; break; }
        sleep 0.1
    done
    [ $status -eq "$3" ] && [ $ended = yes ] || { echo "# ended with $status; is all gone: $ended"; printf 'not '; }
    echo "ok $1 - SIG$2 ends what runs"
}
echo 1..2
check 1 INT 130
check 2 TERM 143
