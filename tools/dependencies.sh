#!/bin/sh
# Installs what phalanx is built with, on Debian 12 or 13 and Ubuntu 22.04 or 24.04, as root; says nothing if all is
# there.
#   tools/dependencies.sh          to build, train and run the tests
#   tools/dependencies.sh lint     and what `make lint` wants
#   tools/dependencies.sh ci       and etcd, NumPy, jsonschema, a Slurm, an sshd and debootstrap: islands, jobs over
#                                  two hosts, a bare Debian
#   tools/dependencies.sh browser  and Chromium, in which pages are drawn (Debian: Ubuntu has it as a snap alone)
set -eu
packages="gcc g++ make pkg-config libc6-dev libdnnl-dev libopenmpi-dev openmpi-bin openmpi-common libyaml-dev libjansson-dev
libpcre2-dev libsentencepiece-dev libutf8proc-dev zlib1g-dev libzstd-dev liblzma-dev libbz2-dev libcmocka-dev
libcurl4-openssl-dev libexpat1-dev libssl-dev ca-certificates libzmq3-dev perl-doc zstd"
[ "${1:-}" = lint ] || [ "${1:-}" = ci ] && packages="$packages clang clang-format clang-tidy libomp-dev"
[ "${1:-}" = ci ] && packages="$packages etcd-server slurm-wlm munge openssh-server openssh-client iproute2 python3-numpy python3-jsonschema python3-yaml debootstrap"
[ "${1:-}" = browser ] && packages="$packages chromium"
missing=
for p in $packages; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "phalanx needs these packages; install them as root:$missing" >&2; exit 1; }
    sudo=sudo
fi
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
${sudo:-} apt-get update -qq
# perl-doc's pods are the demo's text; minimal images are told to leave documentation out
${sudo:-} apt-get install -y -qq --no-install-recommends -o Dpkg::Options::=--path-include='*' $missing >/dev/null
