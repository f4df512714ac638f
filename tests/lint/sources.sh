#!/bin/bash
# The shape of the sources, read from their text in seconds: includes run downward, no circle of files, no function of
# the product without a caller in it, no function too long, no struct too large (of a file too long only a warning), no
# device above kernels/ and parallel/. Usage: tests/lint/sources.sh [TREE]
set -u
here=$(cd "$(dirname "$0")" && pwd)
cd "${1:-$here/../..}" || exit 1
facts=$(mktemp)
trap 'rm -f "$facts"' EXIT
rooms="memory kernels parallel layers models engine tools"
find $rooms tests \( -name '*.[ch]' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' -o -name '*.def' \) -print0 | sort -z |
    xargs -0 awk -f "$here/scan.awk" >"$facts"
find Makefile $rooms tests \( -name Makefile -o -name '*.mk' -o -name '*.sh' -o -name '*.py' -o -name '*.awk' \) \
    -exec wc -l {} + | awk '$2 != "total" {print "lines", $2, $1}' >>"$facts"
find Makefile $rooms tests \( -name Makefile -o -name '*.mk' -o -name '*.sh' \) -print0 | sort -z |
    xargs -0 awk 'length($0) > 120 && /^[ \t]*#/ {print "wide", FILENAME, FNR, length($0)}' >>"$facts"
wrong=0
for rule in includes circles; do
    grep -vE '^[a-z]+ tests/' "$facts" | awk -f "$here/$rule.awk" || wrong=1
done
for rule in callers sizes; do
    awk -f "$here/$rule.awk" "$facts" || wrong=1
done
find memory kernels parallel layers models engine tools -name '*.[ch]' -print0 | sort -z |
    xargs -0 awk -f "$here/structs.awk" || wrong=1
grep -rnE '#\s*if.*(CUDA|NVCC)' layers models engine tools --include='*.[ch]' && wrong=1
# The clock of the day is shown to people, and decides nothing: it may be set back, and no two machines have the same.
# Waiting is memory/clock.h's; who shows times is named here, and who signs requests to a store, which hold the time,
# and which block a cache gives up first.
grep -rnE 'CLOCK_REALTIME|gettimeofday|[^a-z_]time\((NULL|0)\)|st_[mca]tim|(cond_timedwait|sem_timedwait|mutex_timedlock)\(' \
    $rooms --include='*.[ch]' |
    grep -vE '^(memory/(clock\.h|outlet\.c)|engine/train/report/report\.c|engine/host/(incident_log|resources)\.c|engine/store/(s3/s3_request|blocks/blocks_disk)\.c):' && wrong=1
# Files that others may have made are opened without waiting for the other end of a FIFO (O_NONBLOCK, reading_stream),
# and written anew, never through a link (atomic_create). Files that a user names, and /proc, are listed here.
grep -rnE '(^|[^a-z_])(open|openat)\(.*O_(RDONLY|WRONLY|RDWR)' $rooms --include='*.[ch]' |
    grep -vE 'O_(NONBLOCK|DIRECTORY|EXCL|PATH)|^(engine/(files/output|islands/(wire/keys|meet/etcd)|text/source)|memory/(fault|seal)|tools/(phalanx|supervise/(children|supervise)))\.c:' && wrong=1
grep -rnE '(^|[^a-z_])fopen\(' $rooms --include='*.[ch]' |
    grep -vE '^(engine/(compile/plan/load|config/config_read|host/resources)|memory/(arena|machine)|tools/(data/inputs|generate|supervise/(children|hosts)))\.c:' && wrong=1
# What a merge leaves of two versions. (A line of = alone underlines titles, too.)
merged=$(grep -rnE '^(<<<<<<<|>>>>>>>) ' . --exclude-dir='build*' --exclude-dir=.git --exclude-dir=runs --exclude-dir=corpus --include='*.*' --include=Makefile)
[ -z "$merged" ] || { echo "$merged: a conflict that nobody decided"; wrong=1; }
exit $wrong
