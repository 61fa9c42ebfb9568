"""Threads of a coordinator while a worker is stopped. (`tests/parameter_server/test_lost_tasks.py` has them go on.)"""

import signal
import time

import pytest

from tests.programs import __name__ as PROGRAMS


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_tensorflow_itself_waits_for_a_stopped_worker(by_hand, tmp_path):
    """Fails when `tf2dist.compat.own_executors` is no longer needed."""
    job = by_hand(f"{PROGRAMS}.stopped_worker", str(tmp_path), "theirs")
    job.until("stop in training")
    job.processes["worker 1"].send_signal(signal.SIGSTOP)
    (tmp_path / "stop in training done").touch()
    time.sleep(20)  # several times as long as it takes otherwise
    assert not (tmp_path / "go on in training").exists()
    assert job.processes["chief 0"].poll() is None
