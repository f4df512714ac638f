#!/bin/bash
# The Slurm script that we ship, on a real Slurm of two nodes: the job meets its time limit, saves, goes back into the
# queue, resumes and finishes; its losses are those of a run that nobody stopped. About two minutes, most of it waiting:
# no limit of Slurm's is shorter than one minute.
set -u
cd "$(dirname "$0")/../.."
phalanx=$PWD/build/phalanx
. tests/jobs/stopped_job.sh
work=$(mktemp -d)
trap 'tests/jobs/slurm_cluster.sh stop "$work/slurm"; sleep 1; rm -rf "$work"' EXIT
echo 1..4
tests/jobs/slurm_cluster.sh start "$work/slurm"
case $? in
0) ;;
77) skip_all 4 "no slurm-wlm and munge, or not root" ;;
*) skip_all 4 "no cluster comes up on this machine" ;;
esac
unset OMPI_MCA_btl OMPI_MCA_mtl # tests/run.sh's: here ranks are on two hosts
export SLURM_CONF=$work/slurm/slurm.conf OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PHALANX=$phalanx
write_run
# On no machine does the first start finish; each restart makes fifty steps more. No limit of Slurm's is shorter than a
# minute: until the first restart the ranks are stopped most of the time, so that there are few steps to compare.
cat >"$work/slow" <<END
#!/bin/bash
trap '' TERM
rank=\$\$ steps=1000000
if [ -n "\${SLURM_RESTART_COUNT:-}" ]; then
    saved=\$(cat "$work/run/checkpoints/latest")
    steps=\$((10#\${saved#step-} + 50))
fi
[ -n "\${SLURM_RESTART_COUNT:-}" ] || (while kill -STOP \$rank; do sleep 0.5; kill -CONT \$rank; sleep 0.02; done) 2>/dev/null &
trap - TERM
exec "$PHALANX" "\$@" train.steps=\$steps
END
chmod +x "$work/slow"
submit() {
    timeout 400 sbatch --wait --nodes=2 --ntasks-per-node=1 --gpus-per-node=0 --cpus-per-task=1 --time=1 --signal=TERM@20 \
        --output="$work/log" "$@" >"$work/sbatch" 2>&1
}
export -f submit
export work
check "the job finishes with status 0" env PHALANX="$work/slow" bash -c 'submit tools/slurm/train.sbatch "$work/run.yaml"'
check "its limit stopped it, it saved, and went back into the queue" grep -q 'stopped and saved; job .* goes back into the queue' "$work/log"
check "it resumed" grep -q 'resum.*step-' "$work/log"
# the same layout without a stop
steps=$(wc -l <"$work/run/metrics.jsonl")
mpirun -np 2 --oversubscribe --mca mpi_yield_when_idle 1 "$PHALANX" train "$work/run.yaml" run.folder="$work/whole" train.steps="$steps" >"$work/whole.log" 2>&1
same() { [ "$steps" -gt 50 ] && same_losses; }
check "losses are bitwise those of an uninterrupted run" same
