#!/bin/bash
# Runs every command block of README.md in order, each as a reader would, in a fresh copy of the tree.
#   tests/readme.sh full    all of it, as it is written: on a bare Debian, as root; CHECKED=1 leaves out `make check`,
#                           which takes longest and which CI runs by itself
#   tests/readme.sh [fast]  with what build/ holds, and cut short: nothing is installed, `make check` is only looked up,
#                           texts are few, vocabularies small, and no training takes more than five steps; a block that
#                           installs etcd is skipped where there is none
# A block behind a line that says *On a GPU* or *On a cluster* is not run, and counted as a skip. TAP, for tests/run.sh.
set -u
form=${1:-fast}
here=$(cd "$(dirname "$0")/.." && pwd)
build=$here/build
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cd "$here" || exit 1
if [ -e .git ] && command -v git >/dev/null; then
    git ls-files -co --exclude-standard -z | tar --null --ignore-failed-read -cf - -T - 2>/dev/null
else
    tar --exclude='./build*' --exclude=./corpus --exclude=./runs --exclude=./.git -cf - .
fi | tar -xf - -C "$copy"
cd "$copy" || exit 1
unset DEMO_KEYS # CI's, for its own demo
# README says what to add as root and on few cores
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe # Open MPI 5's word for it

# What the fast form replaces. The commands' words stay: another phalanx shortens them, then does what they say.
if [ "$form" = fast ]; then
    mkdir build
    cat >build/phalanx <<END
#!/bin/bash
case \${1:-} in
train) [[ "\$*" == *train.steps=* ]] || set -- "\$@" train.steps=5
    set -- "\${@/#train.steps=*/train.steps=5}" optimizer.warmup=1 evaluate.batches=1 ;;
tokenize) # every thirtieth of its texts, five hundred words
    words=() texts=0
    for word; do
        [ "\$word" = 4096 ] && word=500
        [[ \$word != *.pod ]] || [ \$((texts++ % 30)) -eq 0 ] || continue
        words+=("\$word")
    done
    set -- "\${words[@]}" ;;
esac
exec "$build/phalanx" "\$@"
END
    chmod +x build/phalanx
    apt-get() { :; }
    make() {
        command make -n "$@" >/dev/null || return 1 # there is such a target
        [ "$1" = demo ] || return 0
        sed 's/vocab_size: 4096/vocab_size: 500/' -i models/configs/demo.yaml
        tools/demo.sh
    }
fi

if [ "$form" = full ] && [ -n "${CHECKED:-}" ]; then
    make() {
        [ "$1" = check ] || command make "$@"
    }
fi

# One line a block: the words before it that mark it, then its commands, newlines as \001
blocks() {
    awk '
        /^    / { block = block substr($0, 5) "\001"; next }
        block != "" { print marked "\002" block; block = ""; marked = "" }
        /[^ ]/ { marked = ""; if (match($0, /\*On a (GPU|cluster)[^*]*\*/)) marked = substr($0, RSTART + 1, RLENGTH - 2) }
        END { if (block != "") print marked "\002" block }' README.md
}

echo "1..$(blocks | wc -l)"
number=0 failed=0
while IFS=$'\002' read -r -u 3 marked block; do
    number=$((number + 1))
    commands=${block//$'\001'/$'\n'}
    name=${commands%%$'\n'*}
    if [ -n "$marked" ]; then
        echo "ok $number - $name # SKIP $marked"
        continue
    fi
    if [ "$form" = fast ] && [[ $commands == *etcd-server* ]] && ! command -v etcd >/dev/null; then
        echo "ok $number - $name # SKIP no etcd: apt-get install etcd-server"
        continue
    fi
    started=$SECONDS
    (set -e -o pipefail; eval "$commands") >block.log 2>&1 </dev/null
    status=$?
    if [ "$status" -eq 0 ]; then
        echo "ok $number - $name"
    else
        echo "not ok $number - $name"
        failed=1
        sed 's/^/# /' block.log | tail -n 30
    fi
    echo "# $((SECONDS - started)) s"
done 3< <(blocks)
exit "$failed"
