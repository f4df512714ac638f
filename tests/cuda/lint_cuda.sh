#!/bin/sh
# What belongs to kernels/cuda/device.cuh alone: shared memory, launches, inline assembly, barriers and warp intrinsics.
# A raw __shared__ would be a thread's own variable on the shim, and pass there. Also: every kernel is a KERNEL, no
# atomics on floats; every library function that is called is in the table of tests/cuda/README.md. Usage:
# tests/cuda/lint_cuda.sh [FOLDER]
set -u
folder=${1:-kernels/cuda}
found=0
refuse() { # PATTERN WHY
    # lines of comments begin with /* or * in this house
    hits=$(grep -nE "$1" "$folder"/*.cu "$folder"/*.cuh "$folder"/*.h 2>/dev/null | grep -vE '/device\.cuh:' |
        grep -vE '^[^:]*:[0-9]+: *(/\*|\*)')
    [ -z "$hits" ] && return
    echo "$hits" | sed "s|\$|   <- $2|"
    found=1
}
refuse '__shared__' 'use SHARED or SHARED_DYNAMIC'
refuse '<<<' 'use LAUNCH'
refuse '\basm\b' 'inline assembly stands in device.cuh'
refuse '__global__|__launch_bounds__' 'use KERNEL'
refuse '__sync|__shfl|__ballot|__any_|__all_|__activemask|__popc' 'use the functions of device.cuh'
refuse '\batomic[A-Z]' 'use the functions of device.cuh; never on floats'
refuse '#pragma unroll' 'use UNROLL'
refuse 'cudaFuncSetAttribute|cudaGetLastError' 'use allow_shared and launch_result'
# what the product calls of the libraries has a row in the table of stand-ins
table=$(dirname "$0")/README.md
for call in $(grep -rhoE '\b(cuda[A-Z][A-Za-z0-9]+|cublasLt[A-Z][A-Za-z]+|nccl[A-Z][A-Za-z]+|cudnn(Backend)?[A-Z][A-Za-z]+)\(|X\(cudnn[A-Za-z]+' \
    "$folder" parallel/comm/nccl --include='*.[ch]' --include='*.cu' --include='*.cuh' | sed 's/^X(//; s/($//' | sort -u); do
    grep -q "\`$call\`" "$table" && continue
    echo "$call: called, and not in $table"
    found=1
done
[ $found -eq 0 ] && echo "lint_cuda: nothing found"
exit $found
