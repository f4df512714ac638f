#!/bin/bash
# Includes run downward only: memory < kernels < parallel < layers < models < engine < tools < tests.
set -u
cd "$(dirname "$0")/.."
rooms="memory kernels parallel layers models engine tools tests"
wrong=0
allowed=
for room in $rooms; do
    allowed="$allowed $room"
    while IFS=: read -r file line include; do
        target=$(sed -E 's/.*"([a-z]+)\/.*/\1/' <<<"$include")
        case " $allowed " in
        *" $target "*) ;;
        *)
            echo "$file:$line: $room/ may not include $target/"
            wrong=1
            ;;
        esac
    done < <(grep -rnE '^#include "[a-z]+/' "$room" --include='*.[ch]' --include='*.cc' --include='*.cu' --include='*.cuh' --include='*.def')
done
# No device above kernels/ and parallel/.
grep -rnE '#\s*if.*(CUDA|NVCC)' layers models engine tools --include='*.[ch]' && wrong=1
exit $wrong
