"""Many jobs of `python -m trainers.mnist --strategy=ps` in which nothing is killed: all must end well.

TF2DIST_UNDISTURBED_JOBS is the number of jobs (default: 20), of which two run at a time. For faults in the threads of
TensorFlow, which few of them meet.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

JOBS = int(os.environ.get("TF2DIST_UNDISTURBED_JOBS", "20"))
DEADLINE = 300.0  # seconds of one job


def run(number):
    """The number of a job, its exit status and what it has printed."""
    command = ["trainers.mnist", "--strategy=ps", "--dataset=digits", "--epochs=2"]
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, timeout=DEADLINE)
    return number, done.returncode, done.stdout + done.stderr


@pytest.mark.exhaustive
@pytest.mark.timeout(DEADLINE * JOBS)
def test_all_end_well():
    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(run, range(JOBS)))
    failed = [job for job in ended if job[1] != 0]
    assert not failed, f"{len(failed)} of {JOBS}: {failed[0]}"
