#!/bin/sh
# Starts one task of a job by hand, with TF_CONFIG. Run it on each host, once for each task that the host has:
#   ./tf_config.sh chief 0 my_script.py        on the first host
#   ./tf_config.sh worker 0 my_script.py       on the second ...
# The tasks wait for one another (120 s; TF2DIST_START_TIMEOUT changes it), so their order does not matter.
set -eu

# The tasks of the job, and where each listens. Every host must reach every address. This list is the same everywhere.
# Without parameter servers leave out chief and ps: CLUSTER='"worker": ["host1:2222", "host2:2222"]'
: "${CLUSTER:="\"chief\": [\"host1:2222\"], \"worker\": [\"host2:2222\", \"host3:2222\"], \"ps\": [\"host1:2223\"]"}"

if [ $# -lt 3 ]; then
  echo "usage: $0 JOB INDEX SCRIPT [arguments], as in: $0 worker 0 my_script.py" >&2
  exit 2
fi
job=$1 index=$2
shift 2
TF_CONFIG="{\"cluster\": {$CLUSTER}, \"task\": {\"type\": \"$job\", \"index\": $index}}"
export TF_CONFIG
exec "${PYTHON:-python}" "$@"
