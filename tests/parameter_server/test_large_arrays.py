"""Arrays that are large for the coordinator's memory, and workers that are lost or stopped while they are sent."""

import json
import signal

import pytest

from tests.conftest import sampled
from tests.jobs import run_program
from tests.programs import __name__ as PROGRAMS

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]
PIECES = 7  # of what is sent: five of x, one of y, and the numbers that say in which order they are read


@pytest.mark.parametrize(
    ("workers", "update"), sampled([(2, "async"), (4, "async"), (2, "sync")], (), [(4, "async"), (2, "sync")])
)
def test_the_coordinator_needs_little_memory_beside_the_arrays(tmp_path, workers, update):
    """It held three copies and more for training, and as many for an evaluation.

    What is under way to two workers at once are up to five pieces of x with their messages, as it happens.
    """
    run_program(["--ps=1", f"--workers={workers}"], "large_arrays", tmp_path, 200, update)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["after"] - result["before"] < 1.3 * result["arrays"]
    assert result["updates"] == 40
    assert result["predicted"]
    assert result["evaluated"] == pytest.approx(result["few evaluated"], rel=1e-3)


SUDDEN = [("lost", "async"), ("lost", "sync"), ("stopped", "async"), ("stopped", "sync")]


@pytest.mark.parametrize(("what", "update"), sampled(SUDDEN, (), SUDDEN[::3]))
def test_something_happens_to_a_worker_while_arrays_are_sent_to_it(by_hand, tmp_path, what, update):
    """The others train without it; when it is there again it gets what it lacks, or all of it."""
    pieces = PIECES + (2 if what == "lost" else 0)
    job = by_hand(f"{PROGRAMS}.lost_pieces", str(tmp_path), update, str(pieces))
    worker = job.processes["worker 1"]
    job.until("two pieces sent")
    if what == "lost":
        worker.kill()
        worker.wait()
    else:
        worker.send_signal(signal.SIGSTOP)
    (tmp_path / "two pieces sent done").touch()
    job.until("two epochs ended")
    if what == "lost":
        job.restart("worker 1")
    else:
        worker.send_signal(signal.SIGCONT)
    (tmp_path / "two epochs ended done").touch()
    status, error = job.ends("chief 0")
    assert status == 0, error
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["updates"], result["epochs"]) == (4 * 20, 4)
    assert result["to worker 1 in epoch 1"] == 2
    assert result["sent"] == [PIECES, pieces]
