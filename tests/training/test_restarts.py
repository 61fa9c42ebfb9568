"""Workers that are killed in the middle of a job: they are started again, and the job ends with the same result."""

import pytest

from tests.programs.again import EPOCHS, KILLED_AFTER, STEPS


@pytest.mark.slow
def test_a_worker_comes_back_to_its_servers(launched, tmp_path):
    job = launched(["--ps=1", "--workers=2"], "tests.programs.again", "ps", str(tmp_path))
    out, error = job.processes["launcher"].communicate(timeout=250)
    assert job.processes["launcher"].returncode == 0, error
    assert f"applied {EPOCHS * STEPS} in epochs from 0" in out
    assert "worker 1 ended killed by SIGKILL; it is started again" in error
    assert "the job goes on without it" in error


@pytest.mark.slow
def test_peers_start_again_from_the_last_checkpoint(launched, tmp_path):
    job = launched(["--workers=2", "--max_restarts=1"], "tests.programs.again", "multiworker", str(tmp_path))
    out, error = job.processes["launcher"].communicate(timeout=250)
    assert job.processes["launcher"].returncode == 0, error
    assert "the job is started again" in error
    found = [line for line in out.splitlines() if "applied" in line]
    first = {int(line.rpartition(" ")[2]) for line in found}
    assert len(found) == 2
    assert all(f"applied {EPOCHS * STEPS} in" in line for line in found)
    assert min(first) in (KILLED_AFTER, KILLED_AFTER + 1)
