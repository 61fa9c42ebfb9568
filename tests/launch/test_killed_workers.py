"""`python -m trainers.mnist --strategy=ps` as a user starts it, with a worker killed at a random moment.

TF2DIST_KILLED_MOMENTS is the number of moments (default: 2). They are spread over the whole life of the job: the first
is within the worker's start, the others are in epochs from the first to the last one.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid

import pytest

from tf2dist.system import linux

MOMENTS = int(os.environ.get("TF2DIST_KILLED_MOMENTS", "2"))
_MARK = "KILLED_WORKERS_TEST"
EPOCHS = 60
STEPS = 12 * EPOCHS  # 1,437 handwritten digits are 12 batches of 128, the last one smaller
DEADLINE = 300.0  # seconds


def moments():
    """The numbers of the epochs in which the worker is killed, one in each of as many equal parts; 0 is its start."""
    draw = random.Random(0)
    parts = MOMENTS - 1
    return [0, *(1 + int((EPOCHS - 2) * (number + draw.random()) / parts) for number in range(parts))]


def worker(mark):
    """Pids of worker 1; none before it is started and after it has ended."""
    found = []
    for pid in linux.started_with(_MARK, mark):
        try:
            with open(f"/proc/{pid}/comm") as file:
                found += [pid] if file.read() == "worker 1\n" else []
        except OSError:
            continue
    return found


def wait_for(epoch, job, mark):
    """Waits for this epoch's line, or for a moment within the worker's start; returns what the job has printed."""
    began, lines = time.monotonic(), []
    if epoch == 0:
        while job.poll() is None and not worker(mark) and time.monotonic() < began + DEADLINE:
            time.sleep(0.01)
        time.sleep(random.Random(1).random())
        return lines
    for line in job.stdout:
        lines.append(line)
        if f"epoch {epoch}/" in line:
            break
    return lines


@pytest.mark.slow
@pytest.mark.timeout(DEADLINE)
@pytest.mark.parametrize("epoch", moments(), ids=lambda epoch: f"epoch{epoch}")
def test_a_worker_is_killed_and_every_step_is_counted(tmp_path, epoch):
    mark = uuid.uuid4().hex
    report = tmp_path / "report.json"
    job = subprocess.Popen(
        [
            *(sys.executable, "-m", "trainers.mnist", "--strategy=ps", "--dataset=digits"),
            *(f"--epochs={EPOCHS}", f"--report={report}"),
        ],
        env={**os.environ, _MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        printed = wait_for(epoch, job, mark)
        killed = worker(mark)
        linux.kill(killed, signal.SIGKILL)
        out = "".join([*printed, *job.stdout])
        job.wait(DEADLINE)
    finally:
        job.kill()
        linux.kill(linux.started_with(_MARK, mark), signal.SIGKILL)
    assert job.returncode == 0, out
    assert killed, out
    assert "launch: worker 1 ended killed by SIGKILL; it is started again" in out
    assert json.loads(report.read_text())["steps"] == STEPS
