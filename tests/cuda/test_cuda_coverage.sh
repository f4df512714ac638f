#!/bin/sh
# Every kernel in the built objects has executed on the shim: the names that cuobjdump finds in them (without it, the
# names that the objects register with the driver) are those that test_cuda_kernels --executed has printed into
# BUILD/tests/test_cuda_kernels.said (make run-cuda_kernels). The shim build is C++ of the same files, so the names are
# the same. Usage: tests/cuda/test_cuda_coverage.sh BUILD
set -eu
build=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cuobjdump=$(command -v cuobjdump || ls "${CUDA_HOME:-/usr/local/cuda}/bin/cuobjdump" 2>/dev/null || true)
for object in "$build"/cuda/kernels/cuda/*.o; do
    if [ -n "$cuobjdump" ]; then
        "$cuobjdump" --dump-resource-usage "$object" 2>/dev/null | sed -n 's/^ *Function \(_Z.*\):$/\1/p'
    else
        strings -a "$object" | grep -E '^_Z[0-9]+[A-Za-z_]+(I.*)?v?P?.*$' || true
    fi
done | sort -u >"$work/all"
if [ -z "$cuobjdump" ]; then # registered names are those that ptxas compiled; other strings of that form are not
    sed -n "s/.*Compiling entry function '\([^']*\)'.*/\1/p" "$build"/cuda/kernels/cuda/*.ptxas | sort -u >"$work/compiled"
    comm -12 "$work/all" "$work/compiled" >"$work/both"
    mv "$work/both" "$work/all"
fi
[ -s "$work/all" ] || { echo "test_cuda_coverage: no kernels in $build/cuda: build libphalanx_cuda.so first"; exit 1; }
said=$build/tests/test_cuda_kernels.said
[ "$said" -nt "$build/tests/test_cuda_kernels" ] || { echo "test_cuda_coverage: no $said that is newer than its program: make run-cuda_kernels first"; exit 1; }
sed -n 's/^executed //p' "$said" | sort -u >"$work/ran"
echo "test_cuda_coverage: $(wc -l <"$work/all") kernels built, $(wc -l <"$work/ran") executed"
diff "$work/all" "$work/ran" | sed -n 's/^</never executed:/p; s/^>/executed, not built:/p'
cmp -s "$work/all" "$work/ran"
