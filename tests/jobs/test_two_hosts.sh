#!/bin/bash
# A job over two hosts as README starts one without Slurm: two network namespaces with a host name and an sshd each,
# joined by a cable of their own. mpirun on the first starts a rank on the second; a signal stops the job, it saves, is
# started again, resumes, and ends with the losses of a run that nobody stopped.
set -u
cd "$(dirname "$0")/../.."
phalanx=$PWD/build/phalanx
. tests/jobs/stopped_job.sh
export PATH=$PATH:/usr/sbin:/sbin
work=$(mktemp -d)
one=phx-one-$$ two=phx-two-$$

clean() {
    for pid in "$work"/*.pid; do
        [ -f "$pid" ] && kill "$(cat "$pid")" 2>/dev/null
    done
    ip netns del $one 2>/dev/null
    ip netns del $two 2>/dev/null
    rm -rf "$work"
}
trap clean EXIT
echo 1..4
[ "$(id -u)" -eq 0 ] && command -v sshd ssh-keygen ip unshare >/dev/null || skip_all 4 "no sshd and ip, or not root"
{ ip netns add $one && ip netns add $two && ip link add phx$$ netns $one type veth peer name phx$$ netns $two; } 2>/dev/null ||
    skip_all 4 "no network namespaces on this machine"

ssh-keygen -q -t ed25519 -N '' -f "$work/key"
ssh-keygen -q -t ed25519 -N '' -f "$work/host"
cp "$work/key.pub" "$work/allowed"
cat >"$work/ssh_config" <<END
Host *
    IdentityFile $work/key
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
    LogLevel ERROR
END
# HOST NAMESPACE COMMAND...: as if on that host
on() {
    local name=$1 space=$2
    shift 2
    ip netns exec "$space" unshare --uts bash -c 'hostname "$0"; exec "$@"' "$name" "$@"
}
start_host() { # NAME NAMESPACE ADDRESS
    ip -n "$2" link set lo up
    ip -n "$2" addr add "$3/24" dev phx$$
    ip -n "$2" link set phx$$ up
    cat >"$work/$1.conf" <<END
ListenAddress $3
HostKey $work/host
PidFile $work/$1.pid
AuthorizedKeysFile $work/allowed
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
END
    on "$1" "$2" "$(command -v sshd)" -f "$work/$1.conf" -E "$work/$1.log"
}
mkdir -p /run/sshd
start_host one $one 10.77.31.1
start_host two $two 10.77.31.2
answers=
for _ in $(seq 100); do
    on one $one ssh -F "$work/ssh_config" 10.77.31.2 true 2>/dev/null && answers=yes && break
    sleep 0.1
done
[ "$answers" ] || skip_all 4 "no sshd answers in a network namespace of this machine"
printf '10.77.31.1 slots=1\n10.77.31.2 slots=1\n' >"$work/hosts"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
job() { # key=value ...
    exec ip netns exec $one unshare --uts bash -c 'hostname one; exec "$@"' - timeout 200 mpirun -np 2 --hostfile "$work/hosts" \
        --map-by ppr:1:node --bind-to none --mca mpi_yield_when_idle 1 --mca plm_rsh_args "-F $work/ssh_config" \
        --mca oob_tcp_if_include 10.77.31.0/24 --mca btl self,tcp --mca btl_tcp_if_include 10.77.31.0/24 "$phalanx" train "$work/run.yaml" "$@"
}
write_run 'parallel: {pipeline: 2}'
(job) >"$work/log" 2>&1 &
started=$!
for _ in $(seq 900); do
    [ "$(wc -l 2>/dev/null <"$work/run/metrics.jsonl")" -ge 20 ] 2>/dev/null && break
    kill -0 $started 2>/dev/null || break
    sleep 0.1
done
both() { [ "$(grep -o '"host": *"[^"]*"' "$work/run/summary.json" | sort -u | wc -l)" -eq 2 ]; }
stopped() {
    pkill -USR1 -f "^mpirun .*$work/hosts"
    wait $started
    local status=$?
    echo "status $status"
    [ $status -eq 75 ]
}
check "a signal to mpirun stops it, and its status is 75" stopped
check "its ranks were on two hosts" both
saved=$(cat "$work/run/checkpoints/latest")
steps=$((10#${saved#step-} + 30))
again() { (job train.steps=$steps) >>"$work/log" 2>&1 && grep -q 'resum.*step-' "$work/log"; }
check "started again it resumes and finishes" again
same() {
    (job train.steps=$steps run.folder="$work/whole") >"$work/whole.log" 2>&1 && [ "$steps" -gt 40 ] &&
        same_losses
}
check "losses are bitwise those of an uninterrupted run" same
