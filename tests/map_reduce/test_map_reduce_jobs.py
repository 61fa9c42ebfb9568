"""map_reduce on parameter servers' workers: random slicings, an error, a worker that is stopped, one that is killed."""

import json
import signal

import pytest

from tests.programs import __name__ as PROGRAMS

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]
INSIDE = 1686598918  # of 2**31 points of seed 1, as any strategy counts them


def test_workers_that_stop_and_die(by_hand, tmp_path):
    job = by_hand(f"{PROGRAMS}.mapreduce", str(tmp_path))
    worker = job.processes["worker 1"]

    def when(name, number):
        job.until(name)
        worker.send_signal(number)
        (tmp_path / f"{name}.done").touch()

    when("stopped", signal.SIGSTOP)
    when("going_on", signal.SIGCONT)
    when("killed", signal.SIGKILL)
    status, error = job.ends("chief 0")
    assert status == 0, error
    assert "Traceback" not in error
    found = json.loads((tmp_path / "result.json").read_text())
    assert {found[name]["inside"] for name in ("whole", "stopped", "killed")} == {INSIDE}
    assert found["slicings"] >= 12
    shard, message = found["error"]
    assert (shard >= 5, "too large" in message, found["after the error"]) == (True, True, 10)
    assert [job.ends(name)[0] for name in ("worker 0", "ps 0")] == [0, 0]
