#!/bin/bash
# run.sh itself: Ctrl-C and SIGTERM end the test that is running, what that has started, and the rest; lanes; what its
# last lines say. TAP, for tests/run.sh.
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
# NUMBER SIGNAL STATUS: the same where two run at once
check_together() {
    rm -f "$work"/pid-*
    env --default-signal=INT tests/run.sh "$work/tally" --together "$work/test_left" "$work/test_right" >"$work/output" 2>&1 &
    local run=$! ended=no
    for _ in $(seq 300); do
        [ -s "$work/pid-left" ] && [ -s "$work/pid-right" ] && break
        sleep 0.1
    done
    [ -s "$work/pid-right" ] || echo "# the second did not start beside the first"
    kill -"$2" $run
    wait $run
    local status=$?
    for _ in $(seq 100); do
        kill -0 "$(cat "$work/pid-left")" 2>/dev/null || kill -0 "$(cat "$work/pid-right")" 2>/dev/null || { ended=yes; break; }
        sleep 0.1
    done
    [ -s "$work/pid-right" ] && [ $status -eq "$3" ] && [ $ended = yes ] ||
        { echo "# ended with $status; is all gone: $ended"; printf 'not '; }
    echo "ok $1 - two programs run together, and SIG$2 ends both"
}
# NUMBER: a program runs while another one, in which a clock decides, has its lane, and yields to it
check_beside() {
    printf '#!/bin/bash\necho 1..1\nfor _ in $(seq 600); do\n[ -s "%s/priority" ] && echo "ok 1 - beside" && exit\nsleep 0.1\ndone\necho "not ok 1 - beside"\n' \
        "$work" >"$work/test_waits"
    printf '#!/bin/sh\nnice >"%s/priority"\necho 1..1\necho ok 1 - yields\n' "$work" >"$work/test_yields"
    chmod +x "$work/test_waits" "$work/test_yields"
    tests/run.sh "$work/tally" --clocked "$work/test_waits" --together "$work/test_yields" >"$work/output" 2>&1 &&
        { [ "$(cat "$work/priority")" -gt "$(nice)" ] || [ "$(nice)" -eq 19 ]; } || { sed 's/^/# /' "$work/output"; printf 'not '; }
    echo "ok $1 - a program runs beside one with a clock, and yields to it"
}
for side in left right; do
    printf '#!/bin/bash\necho 1..1\necho $$ >"%s/pid-%s"\nsleep 300\n' "$work" $side >"$work/test_$side"
    chmod +x "$work/test_$side"
done

# NUMBER: where no program comes first, as many run together as there are cores and one: each waits for the others
check_slots() {
    local slots=$(($(nproc) < 8 ? $(nproc) + 1 : 9)) i programs=()
    mkdir "$work/slots"
    for ((i = 0; i < slots; i++)); do
        printf '#!/bin/bash\necho 1..1\n: >"%s/slots/%d"\nfor _ in $(seq 300); do\nset -- "%s"/slots/*\n[ $# -eq %d ] && echo "ok 1 - all" && exit\nsleep 0.1\ndone\necho "not ok 1 - all"\n' \
            "$work" "$i" "$work" "$slots" >"$work/test_slot_$i"
        programs+=("$work/test_slot_$i")
    done
    chmod +x "${programs[@]}"
    tests/run.sh "$work/tally" --together "${programs[@]}" >"$work/output" 2>&1 || { sed 's/^/# /' "$work/output"; printf 'not '; }
    echo "ok $1 - as many programs run together as there are cores, and one more"
}

# NUMBER: beside a program without a lane runs none, and none before it has ended
check_alone() {
    printf '#!/bin/bash\necho 1..1\nsleep 0.5\n[ -e "%s/began" ] && printf "not "\necho "ok 1 - alone"\n' "$work" >"$work/test_alone"
    printf '#!/bin/bash\n: >"%s/began"\necho 1..1\necho ok 1 - later\n' "$work" >"$work/test_later"
    chmod +x "$work/test_alone" "$work/test_later"
    tests/run.sh "$work/tally" "$work/test_alone" --clocked "$work/test_later" --together "$work/test_later" >"$work/output" 2>&1 &&
        [ "$(tail -n 1 "$work/tally")" = "3 0 0" ] || { sed 's/^/# /' "$work/output"; printf 'not '; }
    echo "ok $1 - nothing runs beside a program that is to be alone"
}

# NUMBER NAME EXPECTED ARGUMENT...: run.sh's output, without times, ends with EXPECTED
says() {
    local number=$1 name=$2 expected=$3 said
    shift 3
    said=$(tests/run.sh "$work/tally" "$@" 2>&1 | tail -n "$(wc -l <<<"$expected")")
    [ "$said" = "$expected" ] || { sed 's/^/# /' <<<"$said"; printf 'not '; }
    echo "ok $number - $name"
}
printf '#!/bin/sh\necho 1..4\necho ok 1 - good\necho "# skipped: no moon"\necho "not ok 2 # SKIP night"\necho "ok 4 - day # SKIP no sun"\necho not ok 3 - bad\n' >"$work/test_three"
chmod +x "$work/test_three"

# It fails the first time, and passes then.
printf '#!/bin/sh\necho 1..1\n[ -e "%s/tried" ] || printf "not "\necho ok 1 - shaky\ntouch "%s/tried"\n' "$work" "$work" >"$work/test_shaky"
chmod +x "$work/test_shaky"

# Bytes that are no text, as a model's may be.
printf '#!/bin/sh\necho 1..2\nprintf "\\377\\000\\n"\necho ok 1 - good\necho not ok 2 - bad\n' >"$work/test_bytes"
chmod +x "$work/test_bytes"

export SECOND_TRY=0 # whatever this program itself is given
echo 1..14
check 1 INT 130
check 2 TERM 143
check_together 3 TERM 143
check_slots 4
says 5 failures_and_reasons_of_skips_come_last "skipped: test_three: night (no moon)
skipped: test_three: day (no sun)
failed: test_three: bad" "$work/test_three"
says 6 a_failure_counts_without_a_second_try "failed: test_shaky: shaky" "$work/test_shaky"
rm "$work/tried"
SECOND_TRY=1 says 7 a_test_that_passes_at_the_second_try_is_named_as_unsteady "unsteady: test_shaky: shaky" "$work/test_shaky"
[ "$(tail -n 1 "$work/tally")" = "1 0 0" ] || { echo "# $(tail -n 1 "$work/tally")"; printf 'not '; }
echo "ok 8 - it counts once"
SECOND_TRY=1 says 9 what_fails_twice_has_failed "failed: test_three: bad" "$work/test_three"
check_beside 10
says 11 bytes_that_are_no_text_hide_no_test "failed: test_bytes: bad" "$work/test_bytes"
[ "$(tail -n 1 "$work/tally")" = "1 1 0" ] || { echo "# $(tail -n 1 "$work/tally")"; printf 'not '; }
echo "ok 12 - both count"
check_alone 13
[ "$(grep -c '^test_bytes	' "$work/times.tsv")" = 1 ] && grep -q '^test_shaky	' "$work/times.tsv" || { sed 's/^/# /' "$work/times.tsv"; printf 'not '; }
echo "ok 14 - each program's last seconds are in a file"
