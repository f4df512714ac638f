#!/bin/bash
# Runs the tests that tests/PROOF.md shows, all of their rows, and rewrites its sections: what a program prints behind
# "proof: " comes between the marks <!-- SECTION --> and <!-- /SECTION -->. Needs the programs built; BUILD is their
# folder. Usage: tests/proof.sh [SECTION...]
set -u
cd "$(dirname "$0")/.." || exit 1
page=tests/PROOF.md
declare -A programs=([pairs]=test_pairs [invariances]=test_invariances [mutants]="test_recorded_mutants test_parity_mutants")
[ $# -gt 0 ] || set -- $(sed -n 's/^<!-- \([a-z]*\) -->$/\1/p' $page)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
wrong=0
for section in "$@"; do
    : >"$work/said"
    failed=
    for program in ${programs[$section]?no section of that name}; do
        CMOCKA_MESSAGE_OUTPUT=TAP TEST_RING=all ${BUILD:-build}/tests/$program >>"$work/said" 2>&1 || failed=$program
    done
    if [ -n "$failed" ]; then
        echo "$section: $failed fails, and the section stays as it is"
        grep -a '^not ok\|WRONG\|alike\|SURVIVES' "$work/said" | head -n 20
        wrong=1
        continue
    fi
    sed -n 's/^proof: \?//p' "$work/said" >"$work/text"
    awk -v text="$work/text" -v begin="<!-- $section -->" -v end="<!-- /$section -->" '
        $0 == end { inside = 0 }
        !inside { print }
        $0 == begin { inside = 1; while ((getline line <text) > 0) print line }' $page >"$work/page" &&
        cp "$work/page" $page
done
exit $wrong
