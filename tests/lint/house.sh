#!/bin/bash
# The meter of the house: how large the rooms are, and how much stands between a reader and the code. Without an option
# it prints only what exceeds tests/lint/budget, and fails then; --report prints every figure, --write writes them into
# the budget.
#   lines-ROOM              lines of C, CUDA and tables of a room, and of the tests with their scripts
#   statics-used-once       in 1,000 static functions of the product; what a table or a callback names does not count
#   exports-of-one-file     in 1,000 exported functions of the product, those that are used once
#   files-of-30-lines       files of the product with at most 30 lines
#   longest-function, function-99th-percentile, largest-file      in lines
#   comments-that-HABIT     in 1,000 comments of the product
#   reached-from-FUNCTION   functions that it may call, directly or not, by name
# A budget's figure may fall. Where it rises, a further line of the same name says why.
# Usage: tests/lint/house.sh [--report | --write] [TREE]
set -u
here=$(cd "$(dirname "$0")" && pwd)
how=check
case "${1:-}" in --report | --write) how=${1#--}; shift ;; esac
cd "${1:-$here/../..}" || exit 1
rooms="memory kernels parallel layers models engine tools"
sources() { find "$@" \( -name '*.[ch]' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' -o -name '*.def' \) -print0 | sort -z; }
facts=$(mktemp)
trap 'rm -f "$facts"' EXIT
{
    # shellcheck disable=SC2086
    sources $rooms | xargs -0 awk -f "$here/scan.awk" | awk '$1 != "include"'
    # shellcheck disable=SC2086
    sources $rooms | xargs -0 awk -f "$here/comments.awk"
    find tests -type f \( -name '*.[ch]' -o -name '*.cc' -o -name '*.cu' -o -name '*.sh' -o -name '*.awk' -o -name '*.py' -o -name '*.mk' \) \
        -exec cat {} + | awk 'END {print "tests", NR}'
} >"$facts"
awk -v how=$how -f "$here/house.awk" "$facts" tests/lint/budget >"$facts.said"
status=$?
[ $how = write ] && cp "$facts.said" tests/lint/budget || cat "$facts.said"
rm -f "$facts.said"
exit $status
