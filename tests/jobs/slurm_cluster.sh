#!/bin/bash
# A real Slurm of two nodes on this machine, for the tests: munged, slurmctld and two slurmd, all of the caller's own
# folder.
#   tests/jobs/slurm_cluster.sh start FOLDER     then SLURM_CONF=FOLDER/slurm.conf sbatch ...
#   tests/jobs/slurm_cluster.sh stop FOLDER
# As root (slurmd starts tasks as their users). Needs the packages slurm-wlm and munge; status 77 where they are not.
set -eu
folder=$2
export PATH=$PATH:/usr/sbin SLURM_CONF=$folder/slurm.conf

stop() {
    for pid in "$folder"/*.pid; do
        [ -f "$pid" ] && kill "$(cat "$pid")" 2>/dev/null || true
    done
}

start() {
    [ "$(id -u)" -eq 0 ] && command -v slurmctld slurmd munged >/dev/null || exit 77
    local host node port=26821
    host=$(hostname -s)
    mkdir -p "$folder"/{state,log,tmp-one,tmp-two}
    (umask 077 && head -c 1024 /dev/urandom >"$folder/munge.key")
    cat >"$SLURM_CONF" <<END
ClusterName=two
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=26817
SlurmUser=root
AuthType=auth/munge
# a job goes back into the queue when its credential has run out: two minutes by default
AuthInfo=socket=$folder/munge.sock,cred_expire=10
CryptoType=crypto/munge
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmdSpoolDir=$folder/spool-%n
StateSaveLocation=$folder/state
SlurmctldLogFile=$folder/log/slurmctld
SlurmdLogFile=$folder/log/slurmd-%n
# two nodes of one machine would share PMIx's folder
TmpFS=$folder/tmp-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=1
ReturnToService=2
KillWait=10
JobRequeue=1
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
PartitionName=main Nodes=one,two Default=YES MaxTime=INFINITE State=UP
END
    for node in one two; do
        echo "NodeName=$node NodeHostname=$host NodeAddr=127.0.0.1 Port=$port CPUs=2 RealMemory=2000" >>"$SLURM_CONF"
        port=$((port + 1))
    done
    munged --key-file="$folder/munge.key" --socket="$folder/munge.sock" --pid-file="$folder/munged.pid" \
        --log-file="$folder/log/munged" --seed-file="$folder/munge.seed" --force --num-threads=2 2>/dev/null
    slurmctld
    slurmd -N one
    slurmd -N two
    for _ in $(seq 100); do
        [ "$(sinfo -h -t idle -o %D 2>/dev/null)" = 2 ] && return
        sleep 0.2
    done
    echo "the nodes do not come up; see $folder/log" >&2
    exit 1
}

"$1"
