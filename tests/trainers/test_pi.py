"""Pi as a user runs it: the same count everywhere."""

import json
import math
import time

import pytest

from tests.conftest import every_third, sampled
from tf2dist.launch import free_ports

PI = "trainers.pi"
FEW = 123_456  # samples, of seed 7
FEW_INSIDE = 96793
MANY, MANY_INSIDE = 10_000_000_000, 7854008270  # of seed 1
WAYS = {
    "1 worker": ["--strategy=ps", "--workers=1"],
    "2 workers": ["--strategy=ps", "--workers=2"],
    "3 workers": ["--strategy=ps", "--workers=3"],
    "7 workers": ["--strategy=ps", "--workers=7"],
    "2 peers": ["--strategy=multiworker", "--workers=2"],
    "1 replica": ["--strategy=mirrored", "--replicas=1"],
    "2 replicas": ["--strategy=mirrored", "--replicas=2"],
}


@pytest.fixture
def pi(run, tmp_path):
    """pi(*arguments): runs the trainer; its report and what it said."""

    def pi(*arguments):
        done = run(*arguments, "--report=report.json", module=PI)
        assert (done.status, done.err) == (0, ""), done
        return json.loads((tmp_path / "report.json").read_text()), done.out

    return pi


@pytest.mark.slow
def test_one_device_from_the_command_to_the_chart(pi, tmp_path):
    report, said = pi(f"--samples={FEW}", "--seed=7", "--chart=pi.png")
    assert (report["trainer"], report["samples"], report["inside"]) == ("pi", FEW, FEW_INSIDE)
    part = FEW_INSIDE / FEW
    assert report["estimate"] == pytest.approx(4 * part)
    assert report["standard_error"] == pytest.approx(4 * math.sqrt(part * (1 - part) / FEW))
    assert abs(report["estimate"] - math.pi) < 4 * report["standard_error"]
    assert report["samples_per_second"] > 0
    assert f"{FEW_INSIDE:,} of {FEW:,} inside" in said
    assert (tmp_path / "pi.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_two_servers_started_by_hand_as_under_tensorflow_1(start, tmp_path):
    with free_ports.hold(2) as held:
        hosts = "-worker_hosts=" + ",".join(f"127.0.0.1:{port}" for port in held)
        tasks = [
            start(hosts, "-job_name=worker", f"-index={index}", "--numsamples=100", f"-report={index}.json", module=PI)
            for index in (1, 0)
        ]
        done = [task.finish() for task in tasks]
    assert [(one.status, one.err) for one in done] == [(0, "")] * 2
    report = json.loads((tmp_path / "0.json").read_text())
    assert (report["samples"], report["strategy"], report["processes"]) == (200, "multiworker", {"worker": 2})
    assert not (tmp_path / "1.json").exists()


@pytest.mark.parametrize("way", sampled(WAYS, (), ("7 workers", "2 peers")))
def test_the_same_count_everywhere(pi, way):
    report, _ = pi(f"--samples={FEW}", "--seed=7", *WAYS[way])
    assert report["inside"] == FEW_INSIDE


@pytest.mark.parametrize("ps", sampled([True, False], (), [True]))
def test_started_by_hand_with_a_parameter_server(start, tmp_path, ps):
    """1 ps and 2 workers, the coordinator last; and the four GPUs of one machine."""
    with free_ports.hold(3) as held:
        first, second, third = (f"127.0.0.1:{port}" for port in held)
        hosts = f"--ps_hosts={third}", f"--worker_hosts={first},{second}"
        order = [("ps", 0), ("worker", 1), ("worker", 0)] if ps else [("worker", 0), ("ps", 0), ("worker", 1)]
        tasks = [
            start(
                *hosts, f"--job_name={name}", f"--task_index={index}", "--numsamples=100", "--report=it.json", module=PI
            )
            for name, index in order
        ]
        assert [task.finish().status for task in tasks] == [0, 0, 0]
    assert json.loads((tmp_path / "it.json").read_text())["samples"] == 200


@pytest.mark.slow
def test_four_devices(pi):
    report, _ = pi("--strategy=mirrored", "--replicas=4", "--numsamples=5000")
    assert (report["samples"], report["replicas"]) == (20_000, 4)


@pytest.mark.exhaustive
@pytest.mark.timeout(400)
def test_ten_billion_samples_though_a_worker_is_killed(start, tmp_path):
    with free_ports.hold(4) as held:
        ps, *workers = (f"127.0.0.1:{port}" for port in held)
        hosts = f"--ps_hosts={ps}", f"--worker_hosts={','.join(workers)}", "--samples=1e10", "--report=it.json"
        tasks = {
            (name, index): start(*hosts, f"--job_name={name}", f"--task_index={index}", module=PI)
            for name, index in (("worker", 0), ("worker", 1), ("worker", 2), ("ps", 0))
        }
        leader, victim = tasks["worker", 0], tasks.pop(("worker", 2))
        assert "at work" in leader.process.stdout.readline()
        time.sleep(3.0)  # not to be awaited: it computes, or is about to
        victim.process.kill()
        done = {name: task.finish(timeout=300) for name, task in tasks.items()}
    assert [one.status for one in done.values()] == [0, 0, 0], done
    assert "worker 2" in done["worker", 0].err
    assert "Traceback" not in done["worker", 0].err
    report = json.loads((tmp_path / "it.json").read_text())
    assert (report["samples"], report["inside"]) == (MANY, MANY_INSIDE)


BAD = {
    ("--chart=new://bucket/x.png",): "--chart=new://bucket/x.png is a URL of an unknown scheme",
    ("--samples=0",): "--samples=0 must be a whole number from 1",
    ("--samples=-5",): "--samples=-5 must be",
    ("--samples=many",): "--samples=many must be",
    ("--samples=1.5",): "--samples=1.5 must be",
    ("--samples=nan",): "--samples=nan must be",
    ("--samples=1e16",): "--samples=1e16 must be",
    ("--numsamples=0",): "--numsamples=0 must be",
    ("--samples=5", "--numsamples=5"): "give one",
    ("--logdir=logs",): "--logdir=logs",
    ("--mixed_precision",): "pi counts",
    ("--chart=pi.txt",): "must end in .png",
    ("--chart=nowhere/pi.png",): "--chart=nowhere/pi.png cannot be written: no such file",
}


@every_third("arguments", BAD, rarely=pytest.mark.exhaustive, quickly=6, ids=" ".join)
def test_refused_before_tensorflow_is_imported(arguments, run, tree, no_tensorflow):
    assert BAD[arguments] in run(*arguments, module=PI, env=no_tensorflow).refused()
    assert tree() == {}
