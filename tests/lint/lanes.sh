#!/bin/bash
# tests/lanes.mk is true: each name in it is a test program, and one that holds a span of time below a limit is among
# those with a clock.
set -u
cd "${1:-$(dirname "$0")/../..}" || exit 1
wrong=0
names_of() { # LIST
    sed -e ':a' -e '/\\$/N; s/\\\n//; ta' tests/lanes.mk | sed -n "s/^$1 *:= *//p"
}
for list in ALONE CLOCKED LONGEST HAS_REST ASAN_LEFT_OUT; do
    [ -n "$(names_of $list)" ] || { echo "tests/lanes.mk: $list is empty"; wrong=1; }
    for name in $(names_of $list); do
        source=$(find tests -name "test_$name.c")
        if [ -z "$source" ]; then
            echo "tests/lanes.mk: $list names $name, and there is no test_$name.c"
            wrong=1
        elif [ $list = HAS_REST ] && ! grep -qE 'cover_take|layouts_take|update_layouts_take' $source; then
            echo "tests/lanes.mk: $name has no covering third"
            wrong=1
        fi
    done
done
for source in $(grep -lE 'clock_seconds\(\) - [a-z]+ <' -r tests --include='test_*.c'); do
    name=$(basename "$source" .c)
    [[ " $(names_of CLOCKED) " == *" ${name#test_} "* ]] || { echo "tests/lanes.mk: CLOCKED lacks ${name#test_}, which limits a span of time"; wrong=1; }
done
for source in $(grep -lE 'cover_take\(|layouts_take\(' -r tests --include='test_*.c'); do
    name=$(basename "$source" .c)
    [[ " $(names_of HAS_REST) " == *" ${name#test_} "* || $name = test_cover ]] || { echo "tests/lanes.mk: HAS_REST lacks ${name#test_}"; wrong=1; }
done
if grep -nE '(^|[^_a-z])skip\(\)' -r tests --include='*.c' | grep -v '^tests/skip.c:'; then
    echo "a test that is skipped says why: skip_because() of tests/skip.h"
    wrong=1
fi
exit $wrong
