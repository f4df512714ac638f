#!/bin/sh
# A folder to copy to a cluster whose machines have an NVIDIA driver, CUDA's cuBLASLt and NCCL, and glibc no older than
# this one's: the program, its CUDA device, every shared library they need except glibc's, mpirun with its plugins.
# cuBLASLt (half a gigabyte), NCCL and cuDNN stay outside: env.sh finds them in the folders that PHALANX_CUDA_LIBS
# names, in CUDA's, or where pip puts NVIDIA's packages. The reader of Parquet and its libraries are left out where they
# would make the archive too large.
# Usage: tools/bundle.sh BUILD [WHAT]      ->  BUILD/WHAT and an archive of it. WHAT:
#   bundle             (the default)
#   gpu-kit            and the tests and measurements for a machine with a GPU (tests/cuda/gpu)
#   gpu-kit-standins   the same, linked with the stand-ins for CUDA's libraries, to try the scripts without a GPU
set -eu
build=$1 what=${2:-bundle}
out=$build/$what
most=$((60 << 20)) # bytes, compressed
rm -rf "$out" "$out".tar.*
mkdir -p "$out/bin" "$out/lib" "$out/share"
if [ "$what" = gpu-kit-standins ]; then
    cp "$build/tests/phalanx_standin" "$out/bin/phalanx"
    cp "$build/tests/device_ops_standin" "$out/bin/device_ops"
    cp "$build/tests/probes_standin" "$out/bin/probes"
    cp "$build/tests/standin/libcudnn.so.9" "$out/lib/"
    cp tests/cuda/standin/ncu tests/cuda/standin/nvidia-smi "$out/bin/"
    : >"$out/bin/standins"
else
    cp "$build/phalanx" "$out/bin/phalanx"
    [ ! -f "$build/libphalanx_cuda.so" ] || cp "$build/libphalanx_cuda.so" "$out/bin/"
    [ "$what" = bundle ] || cp "$build/device_ops" "$build/probes" "$build/tests/test_cuda_kernels_gpu" "$out/bin/"
fi
[ "$what" = bundle ] || cp tests/cuda/gpu/*.sh tests/cuda/gpu/*_peer.py tests/cuda/gpu/README.md "$out/"
cp -r models/configs "$out/share/configs"

mpi=$(ompi_info --parsable --path pkglibdir | cut -d: -f3)
data=$(ompi_info --parsable --path pkgdatadir | cut -d: -f3)
bin=$(ompi_info --parsable --path bindir | cut -d: -f3)
for program in orterun orted; do
    cp -L "$(command -v $program || echo "$bin/$program")" "$out/bin/"
done
mkdir -p "$out/lib/openmpi" "$out/share/openmpi" "$out/etc"
cp -L "$mpi"/mca_*.so "$out/lib/openmpi/"
cp -rL "$data/." "$out/share/openmpi/"
: >"$out/etc/openmpi-mca-params.conf"
pmix=$(ls -d /usr/lib/*/pmix2/lib/pmix /usr/lib/*/pmix /usr/lib64/pmix 2>/dev/null | head -1 || true)
[ -z "$pmix" ] || { mkdir -p "$out/lib/pmix"; cp -L "$pmix"/*.so "$out/lib/pmix/"; }
strip --strip-unneeded "$out"/bin/* "$out"/lib/openmpi/*.so 2>/dev/null || true

# what the loader would take, without glibc, the driver, and the two libraries of the machine's
collect() {
    find "$out" -type f \( -name '*.so' -o -path '*/bin/*' \) -exec ldd {} + 2>/dev/null | awk '$3 ~ /^\// { print $3 }' | sort -u |
        grep -vE '/(libc|libm|libdl|librt|libpthread|libresolv|libutil|ld-linux[^/]*|libcuda|libnvidia[^/]*|libcublas[^/]*|libnccl)\.so' |
        while read -r library; do cp -Ln "$library" "$out/lib/"; done
}
collect
arrow= # files that only the reader of Parquet needs, and itself
if [ "$what" = bundle ] && [ -f "$build/libphalanx_parquet.so" ]; then
    before=$(ls "$out/lib")
    cp "$build/libphalanx_parquet.so" "$out/bin/"
    strip --strip-unneeded "$out/bin/libphalanx_parquet.so" 2>/dev/null || true
    collect
    arrow="$out/bin/libphalanx_parquet.so $(cd "$out/lib" && ls | grep -vxF "$before" | sed "s|^|$out/lib/|" | tr '\n' ' ')"
fi

cat >"$out/env.sh" <<'END'
# . env.sh: what the programs of this folder need to know of where they are; on every node, and before mpirun.
phalanx_home=$(cd "$(dirname "${BASH_SOURCE:-$0}")" && pwd)
nvidia=${PHALANX_CUDA_LIBS:+$PHALANX_CUDA_LIBS:}$(ls -d "${CUDA_HOME:-/usr/local/cuda}"/lib64 {"${VIRTUAL_ENV:-/opt/venv}",~/.local,/usr/local,/usr,/opt/conda}/lib/python3*/{site,dist}-packages/nvidia/*/lib \
    $(python3 -c 'import site; print(*(p + "/nvidia/*/lib" for p in site.getsitepackages()))' 2>/dev/null) 2>/dev/null | awk '!seen[$0]++' | tr '\n' ':')
export PATH="$phalanx_home/bin:$PATH" LD_LIBRARY_PATH="$phalanx_home/lib:$nvidia${LD_LIBRARY_PATH:-}"
export OPAL_PREFIX="$phalanx_home" OPAL_LIBDIR="$phalanx_home/lib" OPAL_PKGLIBDIR="$phalanx_home/lib/openmpi" \
    OPAL_DATADIR="$phalanx_home/share" OPAL_PKGDATADIR="$phalanx_home/share/openmpi" OPAL_BINDIR="$phalanx_home/bin" \
    OPAL_SYSCONFDIR="$phalanx_home/etc"
export PMIX_MCA_pmix_mca_base_component_path="$phalanx_home/lib/pmix" PMIX_MCA_mca_base_component_path="$phalanx_home/lib/pmix"
END
cat >"$out/bin/mpirun" <<'END'
#!/bin/bash
# Open MPI's mpirun of this folder, which passes on where it is.
. "$(cd "$(dirname "$0")/.." && pwd)/env.sh"
exec orterun --prefix "$phalanx_home" -x PATH -x LD_LIBRARY_PATH -x OPAL_PREFIX "$@"
END
# On other hosts ssh starts this one, with nothing but PATH, OPAL_PREFIX and OPAL_LIBDIR.
mv "$out/bin/orted" "$out/bin/orted.bin"
cat >"$out/bin/orted" <<'END'
#!/bin/bash
. "$(cd "$(dirname "$0")/.." && pwd)/env.sh"
exec "$phalanx_home/bin/orted.bin" "$@"
END
cat >"$out/phalanx" <<'END'
#!/bin/bash
. "$(cd "$(dirname "$0")" && pwd)/env.sh"
exec "$phalanx_home/bin/phalanx" "$@"
END
chmod +x "$out/bin/mpirun" "$out/bin/orted" "$out/phalanx"
# the device's library loads into the kit's programs, as far as no library of CUDA is missing here
if [ "$what" = gpu-kit ]; then
    for program in device_ops probes; do
        said=$(bash -c '. "$1/env.sh" && "$2"' - "$out" "$program" 2>&1 || true)
        case $said in *"undefined symbol"*) echo "$what: $said" && exit 1 ;; esac
    done
fi
pack() { # sets archive and bytes
    if [ "$what" = bundle ]; then
        archive=$out.tar.zst
        tar -C "$build" -c bundle | zstd -q -f -12 -T0 -o "$archive"
    else # a borrowed machine may have no zstd
        archive=$out.tar.gz
        tar -C "$build" -c "$what" | gzip -9 >"$archive"
    fi
    bytes=$(stat -c %s "$archive")
}
pack
if [ "$bytes" -gt "$most" ] && [ -n "$arrow" ]; then
    echo "the reader of Parquet is left out: with Arrow's libraries this is $((bytes >> 20)) MiB, more than $((most >> 20))"
    # shellcheck disable=SC2086
    rm -f $arrow
    pack
fi
echo "$archive: $((bytes >> 20)) MiB compressed, $(du -sm "$out" | cut -f1) MiB unpacked; cuBLASLt and NCCL are the machine's"
[ "$bytes" -le "$most" ] || { echo "$what: larger than $((most >> 20)) MiB"; exit 1; }
