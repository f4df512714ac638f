#!/bin/sh
# Builds phalanx from the sources in the working folder and installs it under /out, as root in a fresh Debian or Ubuntu,
# with or without the CUDA toolkit. /out/usr/share/phalanx/packages names the packages that hold the libraries it needs.
# The images run this in their first stage.
set -eu
export DEBIAN_FRONTEND=noninteractive
command -v make >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends make >/dev/null; }
tools/dependencies.sh
make -s all
make -s install PREFIX=/usr DESTDIR=/out
# Each library by the package that owns it. CUDA's and the driver's are the base image's.
for file in /out/usr/lib/phalanx/*; do ldd "$file"; done | awk '$3 ~ /^\// { print $3 }' | sort -u |
    grep -vE '/(libcuda|libcudart|libcublas|libcublasLt|libnccl|libcudnn|libnvidia)[^/]*$' | while read -r library; do
    dpkg-query -S "$(realpath "$library")" 2>/dev/null || dpkg-query -S "*/$(basename "$(realpath "$library")")" || true
done | cut -d: -f1 | sort -u >/out/usr/share/phalanx/packages
[ -s /out/usr/share/phalanx/packages ]
