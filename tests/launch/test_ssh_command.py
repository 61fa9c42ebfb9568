"""`python -m launch ssh` as far as it goes without hosts, with a stand-in for ssh."""

import json
import subprocess
import sys

from tf2dist.cluster import rendezvous

HOSTS = 6
# Each host is asked whether it can run its tasks, and answers once all have been asked. Tasks end at once.
SSH = r"""#!/bin/sh
case " $* " in *" -G "*) exit 0;; esac
cd "$(dirname "$0")" || exit
read -r order
case $order in *'"check"'*) ;; *) printf '%s\n' "$order" > "order.$$"; exit 0;; esac
: > "asked.$$"
until [ "$(ls asked.* | wc -l)" = HOSTS ]; do sleep 0.05; done
printf '%s ' "$(printf '%s' "$order" | sed 's/.*"check": "\([0-9a-f]*\)".*/\1/')"
cat answer
"""


def test_hosts_are_asked_at_the_same_time_and_their_tasks_told_of_one_job(tmp_path):
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH.replace("HOSTS", str(HOSTS)))
    ssh.chmod(0o755)
    gpus = {"variables": {f"worker {number}": {} for number in range(HOSTS)}}
    answer = {"problem": "", "versions": rendezvous.versions(), "gpus": gpus}
    (tmp_path / "answer").write_text(json.dumps(answer) + "\n")
    hosts = ",".join(f"h{number}" for number in range(HOSTS))
    command = ["ssh", f"--ssh={ssh}", f"--hosts={hosts}", "--connect_timeout=1", "--", "json.tool"]
    done = subprocess.run(
        [sys.executable, "-m", "launch", *command], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    orders = [json.loads(path.read_text()) for path in tmp_path.glob("order.*")]
    assert len(orders) == HOSTS
    [job] = {order["env"]["TF2DIST_JOB_ID"] for order in orders}
    assert job
