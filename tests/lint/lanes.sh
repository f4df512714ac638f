#!/bin/bash
# tests/lanes.mk is true: each name in it is a test program, and one that holds a span of time below a limit is among
# those with a clock. And a function that the linker replaces (--wrap) in a test's program is called from other files
# than its own, where the linker does not see the call.
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
# those whose calls from their own file belong to what is replaced
within="updates_add updates_launch executor_launch shape_layer"
wrapped=$(sed -nE 's/^RECORDED := //p; s/--wrap=/\n&/gp' Makefile kernels/cuda/host.mk | grep -vE '^[^-]*:=|%' |
    sed -E 's/^--wrap=([a-z_]+).*/\1/; t; /^[A-Z$(-]/d' | tr ' ' '\n' | sort -u)
if ! awk -v names="$(echo $wrapped)" -v within=" $within " '
    BEGIN { n = split(names, list, " "); for (i = 1; i <= n; i++) wrapped[list[i]] }
    FNR == 1 { for (name in own) delete own[name] }
    /^[a-z].*\(/ { match($0, /[a-z_0-9]+\(/); name = substr($0, RSTART, RLENGTH - 1)
                   if (name in wrapped && !/;$/ && !/^static/) { own[name]; next } }
    /^ / { for (name in own)
               if (match($0, "(^|[^a-z_0-9])" name "\\(") && index(within, " " name " ") == 0) {
                   printf "%s:%d calls its own %s, which a test replaces at link time: it would not be replaced\n", FILENAME, FNR, name
                   wrong = 1
               } }
    END { exit wrong }' $(find engine layers models parallel memory kernels tools -name '*.c'); then
    wrong=1
fi
exit $wrong
