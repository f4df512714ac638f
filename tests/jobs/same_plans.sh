#!/bin/bash
# Do two builds plan alike? `plan --json` of models/configs/*.yaml and of the layouts of same_layouts.sh must be equal
# byte for byte: memory, traffic, ops and predicted time.
#
#     [PLANS=FOLDER] tests/jobs/same_plans.sh OLD_PHALANX NEW_PHALANX [WORD IN THE NAME]
#
# PLANS keeps the plans of the old build: a later call reads them there. Such a folder belongs to one old build and the
# configurations of its day.
set -u
[ $# -ge 2 ] || { echo "usage: [PLANS=FOLDER] $0 OLD_PHALANX NEW_PHALANX [WORD]" >&2; exit 2; }
old=$(realpath "$1") new=$(realpath "$2") word=${3:-} tree=$(realpath "$(dirname "$0")/../..")
top=$(mktemp -d /tmp/phalanx-same-plans-XXXXXX)
trap 'rm -rf "$top"' EXIT
kept=${PLANS:-$top/kept}
mkdir -p "$kept" && kept=$(realpath "$kept") || exit 2
# shellcheck source=tests/jobs/same_layouts.sh
. "$tree/tests/jobs/same_layouts.sh"

count=0 wrong=0
# A plan names its configuration's path: it is relative, so that it is the same in every call.
compare() { # NAME FOLDER CONFIG OVERRIDES...
    local name=$1 plan=$kept/$1.json
    cd "$2" && shift 2 || exit 2
    case $name in *"$word"*) ;; *) return ;; esac
    [ -s "$plan" ] || { "$old" plan --json "$@" > "$top/old" 2> "$top/log" && cp "$top/old" "$plan"; } || cat "$top/log"
    "$new" plan --json "$@" > "$top/new" 2> "$top/log" || cat "$top/log"
    count=$((count + 1))
    if [ -s "$plan" ] && cmp -s "$plan" "$top/new"; then
        echo "same       $name"
    else
        echo "DIFFERENT  $name"
        diff <(tr , '\n' < "$plan") <(tr , '\n' < "$top/new") | grep '^[<>]' | head -6
        wrong=$((wrong + 1))
    fi
}

for config in "$tree"/models/configs/*.yaml; do
    config=${config##*/}
    words=()
    [ "$config" != first.yaml ] || words=(model.vocab_size=4096) # the tokenizer would tell it
    compare "${config%.yaml}" "$tree" "models/configs/$config" "${words[@]}"
done
while IFS='|' read -r name ranks model keys _; do
    configuration "$model" "$top/$name.yaml"
    keys=$(with_budget "$top/$name.yaml" "$keys")
    case $keys in *outer.every*) keys="$keys outer.rendezvous=http://127.0.0.1:1 outer.keys=keys" ;; esac
    # shellcheck disable=SC2086
    compare "layout-$name" "$top" "$name.yaml" --ranks "$ranks" $keys
done <<< "$layouts"
echo "$count plans, $wrong differ"
[ $wrong = 0 ] && [ $count -gt 0 ]
