"""Statistics by map and reduce, as a user runs them: equal to NumPy's for any slicing."""

import json

import numpy as np
import pytest

from tests.conftest import every_third, sampled
from tf2dist.launch import free_ports

MAPREDUCE = "trainers.mapreduce"


@pytest.fixture
def mapreduce(run, tmp_path):
    """mapreduce(*arguments): runs the trainer; its report."""

    def mapreduce(*arguments):
        done = run(*arguments, "--report=report.json", module=MAPREDUCE)
        assert (done.status, done.err) == (0, ""), done
        return json.loads((tmp_path / "report.json").read_text())

    return mapreduce


@pytest.fixture
def numbers(tmp_path):
    """Numbers far from zero beside their spread, and the file that holds them."""
    numbers = 1e6 + np.random.default_rng(1).normal(size=1003)
    (tmp_path / "numbers.txt").write_text("\n".join(map(repr, numbers.tolist())))
    return numbers


@pytest.mark.slow
def test_a_file_equals_numpy(mapreduce, numbers):
    report = mapreduce("--job=histogram", "--file=numbers.txt", "--slices=1,2,700,300", "--bins=7")
    assert (report["trainer"], report["count"], report["slices"]) == ("mapreduce", 1003, 4)
    assert report["mean"] == pytest.approx(numbers.mean(), rel=1e-12)
    assert report["variance"] == pytest.approx(numbers.var(), rel=1e-9)  # NumPy's own is no nearer to the truth
    counts, edges = np.histogram(numbers, 7)
    assert (report["counts"], report["edges"]) == (counts.tolist(), edges.tolist())


@pytest.mark.slow
def test_two_tasks_started_by_hand_as_under_tensorflow_1(start, tmp_path):
    with free_ports.hold(2) as held:
        hosts = "--worker_hosts=" + ",".join(f"127.0.0.1:{port}" for port in held)
        tasks = [
            start(hosts, "--job_name=worker", f"--task_index={i}", f"--report={i}.json", module=MAPREDUCE)
            for i in (1, 0)
        ]
        done = [task.finish() for task in tasks]
    assert [(one.status, one.err) for one in done] == [(0, "")] * 2
    report = json.loads((tmp_path / "0.json").read_text())
    assert (report["count"], report["slices"]) == (100, 2)
    assert 0.4 < report["mean"] < 0.6


@pytest.mark.parametrize("strategy", sampled(["one", "mirrored", "ps", "multiworker"], (), ("ps", "multiworker")))
def test_any_slicing_gives_the_mean_of_the_same_numbers(mapreduce, strategy):
    means = [
        mapreduce(f"--strategy={strategy}", "--job=variance", "--size=1000", f"--slices={slices}")
        for slices in ("1", "7", "1,990,9")
    ]
    for key in ("mean", "variance", "min", "max"):
        assert means[1][key] == pytest.approx(means[0][key], rel=1e-12)
        assert means[2][key] == pytest.approx(means[0][key], rel=1e-12)


@pytest.mark.slow
def test_an_ensemble(mapreduce):
    reports = [mapreduce("--job=ensemble", "--slices=5", strategy) for strategy in ("--strategy=one", "--strategy=ps")]
    for report in reports:
        assert report["count"] == len(report["accuracies"]) == 5
        assert report["accuracy"] > report["mean"] > 0.93
        assert len(set(report["accuracies"])) > 1
    assert reports[0]["accuracy"] == pytest.approx(reports[1]["accuracy"], abs=0.01)


BAD = {
    ("--file=new://bucket/x",): "--file=new://bucket/x is a URL of an unknown scheme",
    ("--size=0",): "--size=0",
    ("--size=-1",): "--size=-1",
    ("--slices=0",): "--slices=0 must be positive",
    ("--slices=x",): "--slices=x must be a whole number, or several",
    ("--slices=101",): "--slices=101 is more than the 100 numbers that there are",
    ("--slices=50,49",): "--slices=50,49 are 99 numbers, and there are 100",
    ("--slices=100,0",): "--slices=100,0 must be positive",
    ("--file=good.txt", "--size=3"): "give one",
    ("--file=nowhere.txt",): "--file=nowhere.txt cannot be read: no such file or directory",
    ("--file=folder",): "--file=folder cannot be read: is a directory",
    ("--file=words.txt",): "words.txt, line 3: 'three' is no number",
    ("--file=nan.txt",): "nan.txt, line 2: nan is not finite",
    ("--file=nan.txt", "--strategy=ps"): "nan.txt, line 2: nan is not finite",
    ("--file=empty.txt",): "empty.txt holds no numbers",
    ("--file=binary.txt",): "binary.txt is no text",
    ("--file=good.txt", "--slices=5"): "--slices=5 is more than the 4 numbers",
    ("--job=ensemble", "--size=5"): "--job=ensemble learns handwritten digits",
    ("--job=ensemble", "--slices=2,2"): "--slices=2,2 must be one number of models",
    ("--job=median",): "mean|variance|histogram|ensemble",
    ("--bins=0", "--job=histogram"): "--bins=0",
    ("--xla",): "--xla",
    ("--logdir=logs",): "--logdir=logs",
}


@every_third("arguments", BAD, rarely=pytest.mark.exhaustive, quickly=6, ids=" ".join)
def test_refused_before_tensorflow_is_imported(arguments, run, tree, tmp_path, no_tensorflow):
    (tmp_path / "good.txt").write_text("1, 2\n\n3 4e0\n")
    (tmp_path / "words.txt").write_text("1\n2\nthree\n")
    (tmp_path / "nan.txt").write_text("1\n2 nan\n")
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe1")
    (tmp_path / "folder").mkdir()
    before = tree()
    assert BAD[arguments] in run(*arguments, module=MAPREDUCE, env=no_tensorflow).refused()
    assert tree() == before
