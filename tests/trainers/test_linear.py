"""The straight line on every strategy, from the command line."""

import json
import signal
import time

import numpy as np
import pytest

from tests.conftest import every_third, sampled
from tests.trainers.conftest import DEADLINE
from tf2dist.launch import free_ports

LINEAR = "trainers.linear"
FAST = ("--preset=sgd", "--learning_rate=1e-3", "--max_steps=5000")
WAYS = {
    "mirrored": ["--strategy=mirrored"],
    "multiworker": ["--strategy=multiworker"],
    "central": ["--strategy=central"],
    "ps": ["--strategy=ps"],
    "ps, sync": ["--strategy=ps", "--sync"],
}


def fitted(start, tmp_path, *arguments, timeout=DEADLINE):
    """Runs the trainer; returns its report and the lines it printed."""
    done = start(*arguments, "--report=it.json", module=LINEAR).finish(timeout)
    assert (done.status, done.err) == (0, ""), done
    return json.loads((tmp_path / "it.json").read_text()), done.out.splitlines()


def close_to_least_squares(report, seed=1):
    """Within 2 % of `numpy.polyfit` on the same points."""
    x = np.linspace(-1, 1, 101)
    y = 2 * x + 0.2 + 0.4 * np.random.default_rng(seed).standard_normal(101)
    w, b = np.polyfit(x, y, 1)
    assert (report["right_w"], report["right_b"]) == pytest.approx((w, b), rel=1e-4)
    assert (report["w"], report["b"]) == (pytest.approx(w, rel=0.02), pytest.approx(b, rel=0.02))
    assert report["loss"] == pytest.approx(np.mean((w * x + b - y) ** 2), rel=1e-3)


@pytest.mark.slow
def test_the_least_squares_line(start, tmp_path):
    report, lines = fitted(start, tmp_path)
    close_to_least_squares(report)
    assert (report["trainer"], report["preset"], report["strategy"], report["steps"]) == (
        "linear", "adagrad", "one", 10_100,
    )  # fmt: skip
    assert [line.split()[:2] for line in lines[1:11]] == [["pass", str(n)] for n in range(10, 101, 10)]
    assert lines[11].startswith(f"w {report['w']:.4f}  b {report['b']:.4f}  loss {report['loss']:.4f}; least squares")


@pytest.mark.timeout(660)
@pytest.mark.parametrize("way", sampled(WAYS, (), ("ps",)))
def test_the_least_squares_line_on_every_strategy(start, tmp_path, way):
    report, _ = fitted(start, tmp_path, *WAYS[way], timeout=600)  # synchronous servers make 100 updates a second
    close_to_least_squares(report)
    assert report["batch_size"] == (1 if way == "ps" else 2)
    assert report["steps"] == (10_100 if way == "ps" else 5_050)


@pytest.mark.slow
def test_fresh_points(start, tmp_path):
    report, lines = fitted(start, tmp_path, *FAST)
    assert (report["w"], report["b"]) == (pytest.approx(2, rel=0.05), pytest.approx(10, rel=0.05))
    assert report["loss"] == pytest.approx(0.33**2, rel=0.1)
    assert (report["right_w"], report["right_b"], report["steps"]) == (2.0, 10.0, 5000)
    shown = [line.split() for line in lines[1:6]]
    assert [line[:2] for line in shown] == [["step", str(n)] for n in range(1000, 5001, 1000)]
    assert [line[2::2] for line in shown] == [["w", "b", "loss"]] * 5
    losses = [float(line[7]) for line in shown]
    assert losses[0] > 10 > 1 > losses[2]


@pytest.mark.parametrize("way", sampled(WAYS, (), ("multiworker",)))
def test_fresh_points_on_every_strategy(start, tmp_path, way):
    fast = ("--preset=sgd", "--learning_rate=5e-3", "--max_steps=1500", "--steps_to_validate=500")
    report, _ = fitted(start, tmp_path, *fast, *WAYS[way])
    assert (report["w"], report["b"]) == (pytest.approx(2, rel=0.05), pytest.approx(10, rel=0.05))
    assert report["steps"] == 1500


@pytest.mark.exhaustive
def test_the_rate_of_the_original(start, tmp_path):
    report, _ = fitted(start, tmp_path, "--preset=sgd", "--steps_to_validate=100000")
    assert (report["learning_rate"], report["steps"]) == (1e-5, 500_000)
    assert (report["w"], report["b"]) == (pytest.approx(2, rel=0.05), pytest.approx(10, rel=0.05))


@pytest.mark.exhaustive
def test_by_hand_as_under_tensorflow_1(start, tmp_path):
    with free_ports.hold(3) as held:
        first, second, third = (f"127.0.0.1:{port}" for port in held)
        hosts = (f"-ps_hosts={third}", f"-worker_hosts={first},{second}")
        processes = [
            start(*FAST, *hosts, f"-job_name={name}", f"-task_index={index}", f"-report={name}{index}.json",
                  env={"CUDA_VISIBLE_DEVICES": ""}, module=LINEAR)
            for name, index in (("worker", 1), ("worker", 0), ("ps", 0))
        ]  # fmt: skip
        done = [process.finish() for process in processes]
    assert [(one.status, one.err) for one in done] == [(0, "")] * 3
    report = json.loads((tmp_path / "worker0.json").read_text())
    assert (report["w"], report["b"]) == (pytest.approx(2, rel=0.05), pytest.approx(10, rel=0.05))


@pytest.mark.slow
def test_killed_in_the_middle_it_goes_on(start, tmp_path):
    endless = start("--preset=sgd", "--logdir=logs", "--save_seconds=0.2", "--max_steps=100000000", module=LINEAR)
    deadline = time.monotonic() + DEADLINE
    while len(saved := sorted(tmp_path.glob("logs/checkpoint-*/state.json"))) < 2:
        assert time.monotonic() < deadline
        assert endless.process.poll() is None
        time.sleep(0.05)
    endless.process.send_signal(signal.SIGKILL)
    endless.process.wait()
    before = max(int(path.parent.name.partition("-")[2]) for path in tmp_path.glob("logs/checkpoint-*/state.json"))
    assert before > 0
    assert saved
    report, lines = fitted(start, tmp_path, "--preset=sgd", "--logdir=logs", f"--max_steps={before + 2000}")
    assert report["steps"] == before + 2000
    assert f"went on from a checkpoint of {before:,} steps in logs" in lines
    assert (tmp_path / "logs" / "model.keras").exists()


BAD = {
    ("--preset=adam",): "adagrad|sgd",
    ("--max_steps=0",): "--max_steps=0",
    ("--max_steps=-5",): "--max_steps=-5",
    ("--steps_to_validate=0",): "--steps_to_validate=0",
    ("--learning_rate=-1",): "--learning_rate=-1",
    ("--learning_rate=nan",): "--learning_rate=nan is no number to learn with",
    ("--save_seconds=inf",): "--save_seconds=inf",
    ("--sync",): "--sync is for strategy ps, and the strategy is one",
}


@every_third("arguments", BAD, rarely=pytest.mark.exhaustive, quickly=6, ids=" ".join)
def test_refused_before_tensorflow_is_imported(run, no_tensorflow, tree, arguments):
    line = run(*arguments, module=LINEAR, env=no_tensorflow).refused()
    assert line.startswith("linear: ")
    assert BAD[arguments] in line
    assert tree() == {}


@pytest.mark.slow
def test_a_rate_that_is_too_high_is_an_error(run):
    done = run("--preset=sgd", "--learning_rate=100", "--max_steps=5000", module=LINEAR)
    assert (done.status, done.err.count("\n")) == (1, 1), done
    assert "the loss is NaN" in done.err
