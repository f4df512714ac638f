#!/bin/bash
# README's commands on a machine that has only what README says: a bare Debian, made by debootstrap in a folder of its
# own, into which the tree is copied. As root.
#   tests/debian.sh SUITE WORD...     SUITE: bookworm (Debian 12) or trixie (13); WORD: demo, check
# Runs the command of README that ends with "make WORD", as it stands there, for each WORD; mounts and processes end
# with this script. In build-debian/ it leaves tally-SUITE, the counts of the tests, and skipped-SUITE, the names of
# programs that skipped a test; with KEEP_BUILD=1 also build-SUITE, the build folder, and compiler-SUITE, what its gcc
# says that it is.
set -u
suite=$1
shift
here=$(cd "$(dirname "$0")/.." && pwd)
[ "$(id -u)" -eq 0 ] || { echo "tests/debian.sh: not root"; exit 1; }
if [ -z "${DEBIAN_ROOT:-}" ]; then
    command -v debootstrap >/dev/null || { echo "tests/debian.sh: no debootstrap: tools/dependencies.sh ci"; exit 1; }
    DEBIAN_ROOT=$(mktemp -d "${TMPDIR:-/var/tmp}/phalanx-debian-XXXXXX")
    export DEBIAN_ROOT
    trap 'kill -KILL "$inside" 2>/dev/null; wait "$inside" 2>/dev/null; rm -rf --one-file-system "$DEBIAN_ROOT"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    # unshare ignores SIGTERM; killed, it takes the name space with it
    unshare --mount --pid --fork --kill-child "$0" "$suite" "$@" &
    inside=$!
    wait "$inside"
    exit
fi

# here in a name space of mounts and processes of its own
root=$DEBIAN_ROOT
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*debian* 2>/dev/null | grep -oE 'https?://[^ ]+/debian/?( |$)' | head -n 1)
started=$SECONDS
mkdir -p "$here/build-debian"
debootstrap --variant=minbase "$suite" "$root" ${mirror:-http://deb.debian.org/debian} >"$here/build-debian/log-$suite" 2>&1 ||
    { tail -n 20 "$here/build-debian/log-$suite"; echo "tests/debian.sh: debootstrap failed"; exit 1; }
grep -l '^Acquire::' /etc/apt/apt.conf.d/* 2>/dev/null | xargs -r cp -t "$root/etc/apt/apt.conf.d/"
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
printf '127.0.0.1 localhost %s\n' "$(hostname)" >"$root/etc/hosts" # debootstrap leaves it to an installer
chmod 755 "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mkdir "$root/phalanx"
cd "$here" || exit 1
if [ -e .git ] && command -v git >/dev/null; then
    git ls-files -co --exclude-standard -z | tar --null --ignore-failed-read -cf - -T - 2>/dev/null
else
    tar --exclude='./build*' --exclude=./corpus --exclude=./runs --exclude=./.git -cf - .
fi | tar -xf - -C "$root/phalanx"
echo "a bare Debian, $suite: $(chroot "$root" dpkg-query -f '.\n' -W | wc -l) packages, $((SECONDS - started)) s"
failed=0
for word; do
    command=$(sed -n "s/^    \(.*make $word\)$/\1/p" README.md)
    [ -n "$command" ] || { echo "README has no command that ends with make $word"; exit 1; }
    echo "$ $command"
    started=$SECONDS
    env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb SECOND_TRY="${SECOND_TRY:-0}" DEMO_KEYS="${DEMO_KEYS:-}" chroot "$root" bash -c "cd /phalanx && $command" </dev/null
    status=$?
    echo "$suite: make $word ended with $status after $((SECONDS - started)) s"
    [ $status -eq 0 ] || failed=1
done
cp "$root/phalanx/build/tally" "build-debian/tally-$suite" 2>/dev/null
cp "$root/phalanx/build/tally.unsteady" "build-debian/tally-$suite.unsteady" 2>/dev/null
cp "$root/phalanx/build/tally.skipped" "build-debian/skipped-$suite" 2>/dev/null
if [ -n "${KEEP_BUILD:-}" ]; then
    chroot "$root" gcc --version 2>/dev/null | head -n 1 >"build-debian/compiler-$suite"
    rm -rf "build-debian/build-$suite"
    mv "$root/phalanx/build" "build-debian/build-$suite"
fi
exit $failed
