#!/bin/bash
# Pages stay true: each `function()` and each `folder/file` that a README, DESIGN or ADDING names within backquotes is
# in the sources; a room's README is one page; scripts that read the tree by a pattern find files. Usage:
# tests/lint/pages.sh [TREE]
set -u
cd "${1:-$(dirname "$0")/../..}" || exit 1
pages=$(find . \( -name build\* -o -name .git -o -name runs -o -name corpus \) -prune -o -name '*.md' ! -name BENCHMARKS.md -print)
names=$(mktemp)
trap 'rm -f "$names"' EXIT
grep -rhoE '\b[a-z_][A-Za-z0-9_]*\(' memory kernels parallel layers models engine tools tests --include='*.[ch]' --include='*.cc' \
    --include='*.cu' --include='*.cuh' --include='*.def' | tr -d '(' | sort -u >"$names"
wrong=0
for page in $pages; do
    folder=$(dirname "$page")
    for name in $(grep -oE '`[a-z_][A-Za-z0-9_]*\(\)`' "$page" | tr -d '`()' | sort -u); do
        grep -qx "$name" "$names" || { echo "$page: $name() is not in the sources"; wrong=1; }
    done
    for path in $(grep -oE '`[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*\.(c|h|cc|cu|cuh|def|sh|awk|md|mk|html|yaml)`' "$page" | tr -d '`' | sort -u); do
        case $path in */NAME.c | NAME.* | */FAMILY.c | test_*.c | *YYY*) continue ;; esac
        [ -e "$path" ] || [ -e "$folder/$path" ] || [ -n "$(find . -path "./build*" -prune -o -path "*/$path" -print -quit)" ] ||
            { echo "$page: there is no $path"; wrong=1; }
    done
done
# a room's README is one page, of at most 750 words; what needs more has a page of its own beside it
while read -r words page; do
    [ "$page" = total ] || [ "$words" -le 750 ] || { echo "$page has $words words: a page has 750 at most"; wrong=1; }
done < <(find memory kernels parallel layers models engine tools -name README.md -exec wc -w {} +)
# a room that has moved leaves nothing for a script's pattern
while IFS=: read -r script pattern; do
    compgen -G "$pattern" >/dev/null || { echo "$script: no file is $pattern"; wrong=1; }
done < <(grep -roE '\b(memory|kernels|parallel|layers|models|engine|tools)(/[a-z_*]+)*/\*\.(c|h|cc|cu|def)\b' tools tests --include='*.sh' | sort -u)
# models/FAMILIES.md lists what the reader of config.json asks for: so it asks in one way
past=$(grep -nE '(huggingface_item|json_object_get)\((r->|r\.)root' models/*.c | grep -v '^models/huggingface_keys.c')
[ -z "$past" ] || { echo "$past: huggingface_key() reads keys of the root"; wrong=1; }
exit $wrong
