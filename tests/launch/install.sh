#!/bin/sh
# What the tests of real ssh and real Slurm need, on Debian or Ubuntu, where this is root; said and left out elsewhere.
need="sshd slurmctld slurmd srun munged ip"
missing=""
for program in $need; do
  command -v "$program" >/dev/null || [ -x "/usr/sbin/$program" ] || missing="$missing $program"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "tests of ssh and Slurm are left out: no$missing, and no root or no apt-get to install them" >&2
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
started=/usr/sbin/policy-rc.d  # the tests start their own servers; Debian's must not start
[ -e "$started" ] || { printf '#!/bin/sh\nexit 101\n' >"$started" && chmod +x "$started" && trap 'rm -f "$started"' EXIT; }
install="apt-get install -y -qq --no-install-recommends openssh-server openssh-client slurmctld slurmd slurm-client munge iproute2"
$install >/dev/null 2>&1 || { apt-get update -qq >/dev/null 2>&1 && $install >/dev/null 2>&1; } ||
  echo "tests of ssh and Slurm are left out: apt-get could not install$missing" >&2
