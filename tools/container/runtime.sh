#!/bin/sh
# What an installed phalanx needs to run, as root in a fresh Debian or Ubuntu: its libraries, certificates of
# authorities, mpirun, and a sshd that a user may start, through which mpirun reaches other containers of a job. The
# images run this in their last stage.
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends $(cat /usr/share/phalanx/packages) ca-certificates openmpi-bin openssh-server openssh-client >/dev/null
apt-get clean
rm -rf /var/lib/apt/lists/*
useradd --create-home --uid 1000 mpi
mkdir -p /run/sshd /home/mpi/.ssh
# The keys come with the job (a secret), the ports are above 1024, and names of pods are new each time.
cat >/home/mpi/.sshd_config <<'END'
Port 2222
PidFile /home/mpi/sshd.pid
HostKey /home/mpi/.ssh/id_rsa
AuthorizedKeysFile /home/mpi/.ssh/authorized_keys
StrictModes no
UsePAM no
END
cat >/home/mpi/.ssh/config <<'END'
Host *
    Port 2222
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
    LogLevel ERROR
END
chown -R mpi:mpi /home/mpi
