"""Workers that come after the job has begun, that go, and that come back while others are missing."""

import contextlib
import json
import re
import time

import pytest

from tests.jobs import DEADLINE, Job
from tests.programs import __name__ as PROGRAMS
from tf2dist import Cluster, Task
from tf2dist.launch import free_ports

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


@pytest.fixture
def tasks(tmp_path):
    """tasks(way): a job of a chief, a ps and three workers, none of which is started yet."""
    with contextlib.ExitStack() as stack:
        job = Tasks(tmp_path)
        stack.callback(job.kill)
        ports = stack.enter_context(free_ports.hold(5))

        def make(way):
            chief, ps, *workers = map("127.0.0.1:{}".format, ports)
            job.cluster = Cluster({"worker": tuple(workers), "chief": (chief,), "ps": (ps,)}, Task("chief", 0))
            job.way = way
            return job

        yield make


class Tasks(Job):
    def begin(self, *tasks, **env):
        for job, index in tasks:
            task = Task(job, index)
            command = [f"{PROGRAMS}.joined_later", str(self.directory), self.way]
            self.start(str(task), command, {"TF_CONFIG": self.cluster.at(task).to_tf_config(), **env})

    def wait_for(self, holds):
        """The first state after an epoch for which this holds."""
        deadline = time.monotonic() + DEADLINE
        while True:
            with contextlib.suppress(FileNotFoundError):
                if holds(state := json.loads((self.directory / "state.json").read_text())):
                    return state
            if self.processes["chief 0"].poll() is not None:
                pytest.fail("it ended with\n" + "\n".join(self.processes["chief 0"].communicate()))
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def uses(self, *workers):
        """Waits until just these workers are used, and have made steps since this began."""
        others = [worker for worker in range(3) if worker not in workers]
        before = self.wait_for(lambda state: state["unused"] == others)
        return self.wait_for(
            lambda now: now["unused"] == others and now["epoch"] > before["epoch"]
            and all(now["steps"][w] > before["steps"][w] for w in workers if now["steps"])
        )  # fmt: skip

    def finish(self):
        (self.directory / "finish").touch()
        status, error = self.ends("chief 0")
        assert status == 0, error
        return json.loads((self.directory / "result.json").read_text()), error


@pytest.mark.parametrize("way", ["async", "dataset", "sync"])
def test_workers_join_leave_and_return(tasks, way):
    job = tasks(way)
    job.begin(("chief", 0), ("ps", 0), ("worker", 1), TF2DIST_MIN_WORKERS="1")
    job.uses(1)
    job.begin(("worker", 2))
    job.uses(1, 2)
    job.processes["worker 1"].kill()
    job.uses(2)
    job.begin(("worker", 0))
    job.uses(0, 2)
    job.restart("worker 1")
    job.uses(0, 1, 2)
    result, error = job.finish()
    again = way != "sync"  # a custom step that is interrupted is made again, and may be counted twice
    assert result["asked"] <= result["updates"] <= result["asked"] + again
    assert result["last"] < 1e-3
    assert result["predicted"] < 1e-3
    said = [re.sub(r" at [0-9.:]*", "", s) for s in error.splitlines() if re.match("tf2dist: (worker|the job)", s)]
    assert said == [
        "tf2dist: the job begins without worker 0, worker 2; who comes later joins it",
        "tf2dist: worker 2 has joined the job",
        "tf2dist: worker 1 is gone: it ended before the job was done; the job goes on without it",
        "tf2dist: worker 0 has joined the job",
        "tf2dist: worker 1 is back",
    ]
    for name in ("worker 0", "worker 1", "worker 2", "ps 0"):
        assert job.ends(name) == (0, "")


def test_a_job_that_worker_0_leads(launched, tmp_path):
    job = launched(["--ps=1", "--workers=1:3", "--no-chief"], f"{PROGRAMS}.joined_later", str(tmp_path), "sync")
    job.until("state.json")
    (tmp_path / "finish").touch()
    status, error = job.ends("launcher")
    assert status == 0, error
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["updates"] == result["asked"]


def test_fewer_than_the_fewest_are_there(tasks):
    job = tasks("async")
    job.begin(("ps", 0), ("worker", 1))
    job.begin(("chief", 0), TF2DIST_START_TIMEOUT="20", TF2DIST_MIN_WORKERS="2")  # before these give up
    status, error = job.ends("chief 0")
    assert status == 1
    line = re.sub("127.0.0.1:[0-9]+", "HOST", error.splitlines()[-1])
    assert line.endswith("1 of at least 2 workers are there after 20 s, without worker 0 at HOST, worker 2 at HOST")


def test_one_that_is_asked_to_stop_leaves_and_the_job_goes_on(tasks):
    """By SIGTERM, as of a platform that takes a machine away: not down to fewer than the fewest."""
    job = tasks("async")
    tasks = ("chief", 0), ("ps", 0), *(("worker", index) for index in range(3))
    job.begin(*tasks, TF2DIST_MIN_WORKERS="2", TF2DIST_PREEMPTIBLE="1")
    job.uses(0, 1, 2)
    job.processes["worker 1"].terminate()
    job.uses(0, 2)
    assert job.ends("worker 1") == (-15, "")
    result, error = job.finish()
    assert result["updates"] >= result["asked"]
    assert re.search("^tf2dist: worker 1 at .* was asked to stop; the job goes on without it$", error, re.MULTILINE)
