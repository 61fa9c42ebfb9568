"""The manifests that `python -m launch k8s` prints, run by a stand-in for Kubernetes (kubelet.py)."""

import contextlib
import json
import os
import subprocess
import sys

import pytest
import yaml

from tests.conftest import sampled
from tests.launch import kubelet
from tests.launch.hosts import Hosts, possible
from tests.launch.kubelet import Kubernetes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
MNIST = ("trainers.mnist", "--dataset=digits")
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=2)"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """Hosts a to e for pods, and x for a stranger."""
    if why := possible() or kubelet.possible():
        pytest.skip(why)
    with contextlib.ExitStack() as stack:
        yield Hosts(tmp_path_factory.mktemp("hosts"), "abcdex", stack)


@pytest.fixture
def apply(hosts, tmp_path):
    """apply(options, program): what is printed for these is applied; it has the claim `checkpoints` at `tmp_path`."""
    applied = []
    claim = tmp_path / "claim"
    claim.mkdir()

    def apply(options, program):
        printed = subprocess.run(
            [sys.executable, "-m", "launch", "k8s", "--image=mine", *options, "--", *program],
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout  # fmt: skip
        documents = list(yaml.safe_load_all(printed))
        applied.append(Kubernetes(hosts, documents, tmp_path, {"checkpoints": claim}))
        return applied[-1]

    yield apply
    for job in applied:
        job.stop()
    assert hosts.empty()


def trained(job, claim):
    assert job.finish(), job.logs()
    assert json.loads((claim / "report.json").read_text())["test_accuracy"] > 0.9
    assert os.stat(claim / "report.json").st_uid == 1000


PS, PEERS = ["--ps=1", "--workers=2", "--evaluator"], ["--workers=2"]
TF1 = ["--ps=1", "--workers=2", "--no-chief"]
LAYOUTS = {
    "jobset-ps": ("jobset", PS),
    "jobset-peers": ("jobset", PEERS),
    "job-peers": ("job", PEERS),
    "job-tf1": ("job", TF1),
    "tfjob-ps": ("tfjob", PS),
}


@pytest.mark.parametrize(
    "name", sampled(LAYOUTS),
)  # fmt: skip
def test_mnist_trains(apply, tmp_path, name):
    kind, layout = LAYOUTS[name]
    program = (*MNIST, "--epochs=10", "--logdir=/data/log", "--report=/data/report.json")
    job = apply([f"--kind={kind}", "--claim=checkpoints", "--name=my-job", "--namespace=team", *layout], program)
    trained(job, tmp_path / "claim")
    assert [pod.statuses for pod in job.pods] == [[0]] * len(job.pods)
    for pod in job.pods:
        if "evaluator" in pod.job:
            assert "evaluation after" in job.log(pod)


@pytest.mark.exhaustive
def test_everything_begins_again_where_the_manifest_says_so(apply, tmp_path):
    program = (*MNIST, "--epochs=60", "--logdir=/data/log", "--report=/data/report.json")
    job = apply(["--workers=2", "--claim=checkpoints", "--max_restarts=1"], program)
    first, second = job.pods
    job.finish(until=lambda: "epoch 2/" in job.log(first))
    job.kill(second)
    trained(job, tmp_path / "claim")
    assert job.restarts == 1
    killed, status = second.statuses
    assert killed
    assert status == 0


@pytest.mark.parametrize("kind", sampled(["job", "jobset"]))
def test_a_pod_that_is_to_end_has_the_job_saved_and_started_again(apply, tmp_path, kind):
    """Python is process 1 there, and no failure is counted."""
    program = (*MNIST, "--epochs=60", "--logdir=/data/log", "--report=/data/report.json")
    job = apply([f"--kind={kind}", "--ps=1", "--workers=1", "--claim=checkpoints"], program)
    chief, _, server = job.pods
    job.finish(until=lambda: "epoch 2/" in job.log(chief))
    job.ask(server)
    trained(job, tmp_path / "claim")
    assert (len(chief.statuses), chief.statuses[-1]) == (2, 0), job.logs()
    assert "has saved step" in job.log(chief)
    assert json.loads((tmp_path / "claim" / "report.json").read_text())["steps"] == 60 * 12


@pytest.mark.parametrize(
    "options",
    sampled(["--kind=jobset", "--kind=job", "--kind=tfjob", "--kind=job --max_restarts=1"], (), ("--kind=jobset",)),
)
def test_a_worker_is_started_again_in_its_place(apply, options):
    job = apply([*options.split(), "--ps=1", "--workers=2"], (*MNIST, "--epochs=100000"))
    chief, worker = job.pods[:2]
    job.finish(until=lambda: "epoch 2/" in job.log(chief))
    job.kill(worker)
    job.finish(until=lambda: "is back" in job.log(chief))
    assert [len(pod.statuses) for pod in job.pods] == [0, 1, 0, 0], job.logs()


@pytest.mark.parametrize("kind", sampled(["job", "jobset", "tfjob"], (), ("job",)))
def test_a_job_fails_as_a_whole(apply, kind):
    job = apply(
        [f"--kind={kind}", "--ps=1", "--workers=1", "--max_restarts=0", "--env=TF2DIST_WORKERS_GRACE=5"],
        (*MNIST, "--epochs=100000"),
    )
    chief, worker, server = job.pods
    job.finish(until=lambda: "epoch 2/" in job.log(chief))
    job.kill(worker)
    assert not job.finish()
    assert len(worker.statuses) == 1
    if kind != "jobset":  # its controller ends the others
        assert (chief.statuses, server.statuses) == ([1], [1]), job.logs()
        assert "worker 0" in job.log(chief)


@pytest.mark.parametrize("kind", sampled(["job", "jobset", "tfjob"], (), ("jobset",)))
def test_only_the_jobs_own_pods_reach_its_port(apply, hosts, kind):
    job = apply([f"--kind={kind}", "--workers=2", "--port=7000"], ("http.server", "7000"))
    pod, other = job.pods
    job.finish(until=lambda: "Serving HTTP" in job.log(pod))

    def connects(name, port):
        command = [sys.executable, "-c", CONNECT, hosts.addresses[pod.host], str(port)]
        return hosts.on(name, command, stderr=subprocess.DEVNULL).wait(60) == 0

    assert connects(other.host, 7000)
    assert not connects(other.host, 7001)
    assert not connects("x", 7000)


def test_arguments_arrive_as_they_were_given(apply, tmp_path):
    words = ["$(TASK_INDEX)", "$$", "$(NOWHERE)", "$", "yes", "1e3", "12:30", "", "a b", "'\"\\", "--x=$(PATH)"]
    (tmp_path / "claim" / "show.py").write_text("import sys; print(sys.argv)")
    job = apply(["--workers=1", "--claim=checkpoints"], ("/data/show.py", *words))
    assert job.finish(), job.logs()
    assert job.log(job.pods[0]).strip() == str(["/data/show.py", *words])
