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

    def when(name, number, process):
        job.until(name)
        process.send_signal(number)
        (tmp_path / f"{name}.done").touch()

    when("stopped", signal.SIGSTOP, worker)
    when("going_on", signal.SIGCONT, worker)
    when("killed", signal.SIGKILL, worker)
    # Each of them is lost once more, the other one when this one is back.
    job.until("restarted")
    job.restart("worker 1")
    (tmp_path / "restarted.done").touch()
    job.until("first_killed")
    job.processes["worker 1"].kill()
    (tmp_path / "first_killed.done").touch()
    job.until("first_noticed")
    job.restart("worker 1")
    when("second_killed", signal.SIGKILL, job.processes["worker 0"])
    status, error = job.ends("chief 0")
    assert status == 0, error
    assert "Traceback" not in error
    found = json.loads((tmp_path / "result.json").read_text())
    assert {found[name]["inside"] for name in ("whole", "stopped", "killed", "each killed")} == {INSIDE}
    assert found["slicings"] >= 12
    shard, message = found["error"]
    assert (shard >= 5, "too large" in message, found["after the error"]) == (True, True, 10)
    assert [job.ends(name)[0] for name in ("worker 1", "ps 0")] == [0, 0]
