#!/bin/sh
# Programs beside which tests run, on Debian or Ubuntu, where this is root; said and left out elsewhere.
export DEBIAN_FRONTEND=noninteractive

# install TESTS "PROGRAM ..." "PACKAGE ...": installs the packages unless all of the programs are there.
install() {
  missing=""
  for program in $2; do
    command -v "$program" >/dev/null || [ -x "/usr/sbin/$program" ] || missing="$missing $program"
  done
  [ -z "$missing" ] && return
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "tests of $1 are left out: no$missing, and no root or no apt-get to install them" >&2
    return
  fi
  command="apt-get install -y -qq --no-install-recommends $3"
  $command >/dev/null 2>&1 || { apt-get update -qq >/dev/null 2>&1 && $command >/dev/null 2>&1; } ||
    echo "tests of $1 are left out: apt-get could not install$missing" >&2
}

started=/usr/sbin/policy-rc.d  # the tests start their own servers; Debian's must not start
if [ "$(id -u)" = 0 ] && [ ! -e "$started" ] && [ -d /usr/sbin ]; then
  printf '#!/bin/sh\nexit 101\n' >"$started" && chmod +x "$started" && trap 'rm -f "$started"' EXIT
fi
install "ssh and Slurm" "sshd slurmctld slurmd srun munged ip" \
  "openssh-server openssh-client slurmctld slurmd slurm-client munge iproute2"
install "network policies" "nft" "nftables"
install "bgolly" "bgolly" "golly"
install "films" "ffmpeg" "ffmpeg"
exit 0
