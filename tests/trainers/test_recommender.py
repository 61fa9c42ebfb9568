"""The recommender from the command line: close to the noise, on every strategy, with its tables on two servers."""

import json

import keras
import pytest

from tests.conftest import sampled
from tf2dist.layers import ShardedEmbedding

SMALL = ("--users=2000", "--items=1000", "--rank=8", "--batch_size=512", "--learning_rate=0.05", "--epochs=15")
KEYS = {"test_rmse", "noise", "baseline_rmse", "parameters", "steps", "examples_per_second", "seconds"}


def trained(run, tmp_path, *arguments):
    """Runs the trainer; returns its report and what it printed."""
    done = run(*arguments, "--report=report.json", module="trainers.recommender")
    assert (done.status, done.err) == (0, ""), done
    return json.loads((tmp_path / "report.json").read_text()), done.out


@pytest.mark.parametrize("strategy", sampled(["one", "ps", "mirrored", "central", "multiworker"], (), ("ps",)))
def test_comes_close_to_the_noise(run, tmp_path, strategy):
    servers = ["--ps=2"] if strategy == "ps" else []
    report, out = trained(run, tmp_path, f"--strategy={strategy}", *servers, *SMALL, "--logdir=logs")
    assert report.keys() >= KEYS
    assert report["trainer"] == "recommender"
    assert report["parameters"] == 8 * 3000
    assert report["steps"] == 15 * 40  # batches of 512 for ten ratings of each user
    assert report["noise"] == 0.5
    assert 1.05 < report["baseline_rmse"] < 1.18  # signal and noise: the root of 1.25
    assert 0.5 < report["test_rmse"] < 0.58
    assert f"test RMSE {report['test_rmse']:.4f}" in out
    if strategy == "ps":
        assert report["processes"] == {"chief": 1, "ps": 2, "worker": 2}
    model = keras.saving.load_model(tmp_path / "logs" / "model.keras")
    tables = [layer for layer in model.layers if isinstance(layer, ShardedEmbedding)]
    assert [table.input_dim for table in tables] == [2000, 1000]
    assert {table.shards for table in tables} == {2 if strategy == "ps" else 1}


@pytest.mark.exhaustive
def test_the_same_seed_trains_the_same(run, tmp_path):
    few = (*SMALL[:-1], "--steps=30")
    first, again, other = (trained(run, tmp_path, *few, f"--seed={seed}")[0] for seed in (1, 1, 2))
    assert first["steps"] == 30
    assert first["test_rmse"] == again["test_rmse"] != other["test_rmse"]
    assert first["baseline_rmse"] == again["baseline_rmse"] != other["baseline_rmse"]


@pytest.mark.exhaustive
def test_three_million_parameters(run, tmp_path):
    """The default, on two servers."""
    report, _ = trained(run, tmp_path, "--strategy=ps", "--ps=2")
    assert report["parameters"] == 3_000_000
    assert 0.5 < report["test_rmse"] < 0.56


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--users=0"], ["--users=0", "[1, 2147483647]"]),
        (["--items=-1"], ["--items=-1"]),
        (["--rank=many"], ["--rank=many"]),
        (["--steps=1", "--epochs=2"], ["--epochs=2 and --steps=1", "give one"]),
        (["--learning_rate=nan"], ["--learning_rate=nan", "give one from 0 on"]),
        (["--learning_rate=-1"], ["--learning_rate=-1"]),
        (["--batch_size=0"], ["--batch_size=0"]),
        (["--strategy=mirrored", "--replicas=2", "--batch_size=101"], ["--batch_size=101", "100 or 102"]),
        (["--users=3000000000"], ["--users=3000000000"]),
        (["--strategy=mirrored", "--ps=2"], ["--ps", "the strategy is mirrored"]),
    ],
    ids=str,
)
def test_refused_before_tensorflow_is_imported(run, no_tensorflow, arguments, said):
    line = run(*arguments, module="trainers.recommender", env=no_tensorflow).refused()
    assert line.startswith("recommender: ")
    for part in said:
        assert part in line


XLA = """
import runpy
import tf2dist

def fit(model, *args, fit=tf2dist.fit, **kwargs):
    print("compiled by XLA:", model.jit_compile)
    return fit(model, *args, **kwargs)

tf2dist.fit = fit
runpy.run_module("trainers.recommender", run_name="__main__", alter_sys=True)
"""


@pytest.mark.exhaustive
def test_xla(run, tmp_path):
    """Compiled, and to the same end."""
    (tmp_path / "recommender_looked_at.py").write_text(XLA)
    few = (*SMALL[:-1], "--steps=200", "--report=report.json")
    found = []
    for arguments, compiled in (([], False), (["--xla"], True), (["--xla", "--strategy=mirrored"], True)):
        done = run(*few, *arguments, module="recommender_looked_at")
        assert done.status == 0, done
        assert f"compiled by XLA: {compiled}" in done.out
        found.append(json.loads((tmp_path / "report.json").read_text())["test_rmse"])
    assert found[1] == pytest.approx(found[0], rel=1e-3)
    assert found[2] == pytest.approx(found[0], rel=0.05)  # replicas draw ratings of their own


@pytest.mark.slow
def test_a_rate_that_is_too_high_is_an_error(run):
    done = run(*SMALL[:-2], "--learning_rate=5", "--steps=300", module="trainers.recommender")
    assert (done.status, done.err.count("\n")) == (1, 1), done
    assert "the loss is NaN" in done.err
