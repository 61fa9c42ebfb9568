"""Workers that are killed in the middle of a job: they are started again, and the job ends with the same result."""

import json

import numpy as np
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


@pytest.mark.slow
def test_fewer_peers_go_on_with_the_same_global_batches(launched, tmp_path):
    """Three workers, of which the second is killed, and then two: weights as of one device that nothing happened to."""

    def result(name, layout, strategy):
        (tmp_path / name).mkdir()
        job = launched(layout, "tests.programs.stalls", strategy, str(tmp_path / name), "nowhere")
        status, error = job.ends("launcher")
        assert status == 0, error
        return json.loads((tmp_path / name / "result.json").read_text()), error

    fewer, error = result("fewer", ["--workers=2:3", "--chaos=kill:worker-1@step12..28"], "multiworker")
    assert "launch: worker 1 was killed; the job goes on with 2 of 3 workers" in error
    assert "the job is started again (2 more to go)" in error
    alone, _ = result("alone", [], "one")
    assert fewer["updates"] == alone["updates"] == 40
    for a, b in zip(fewer["weights"], alone["weights"], strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)
