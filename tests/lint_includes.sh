#!/bin/bash
# Includes run downward only. Each line names a room and the rooms it may include beside itself; a room's folders that have a
# line of their own are rooms of their own.
set -u
cd "$(dirname "$0")/.."
below="memory kernels parallel layers models"
rooms="memory:
kernels: memory
kernels/cpu: memory kernels
kernels/cuda: memory kernels
parallel: memory kernels
parallel/nccl: memory kernels parallel kernels/cuda
layers: memory kernels parallel
models: memory kernels parallel layers
engine/text: memory
engine/files: memory
engine/config: $below engine/files
engine/compile: $below engine/files engine/config
engine: $below engine/files engine/text engine/config engine/compile
tools: $below engine/files engine/text engine/config engine/compile engine"
wrong=0
all=$(cut -d: -f1 <<<"$rooms")
# the room of a path: the longest name above that it begins with
room_of() {
    local best=${1%%/*} room
    for room in $all; do
        case $1 in "$room"/*) [ ${#room} -gt ${#best} ] && best=$room ;; esac
    done
    echo "$best"
}
while IFS=: read -r file line include; do
    target=$(sed -E 's/.*"([^"]+)".*/\1/' <<<"$include")
    from=$(room_of "$file") to=$(room_of "$target")
    [ "$from" = "$to" ] && continue
    allowed=$(grep "^$from:" <<<"$rooms" | cut -d: -f2)
    case " $allowed " in
    *" $to "*) ;;
    *)
        echo "$file:$line: $from/ may not include $to/"
        wrong=1
        ;;
    esac
done < <(grep -rnE '^#include "[a-z]+/' memory kernels parallel layers models engine tools --include='*.[ch]' --include='*.cc' --include='*.cu' --include='*.cuh' --include='*.def')
# No device above kernels/ and parallel/.
grep -rnE '#\s*if.*(CUDA|NVCC)' layers models engine tools --include='*.[ch]' && wrong=1
exit $wrong
