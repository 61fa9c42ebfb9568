"""Synchronous updates on parameter servers: the numbers of one process, and backup workers."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest

import tf2dist
from tests.cluster.programs import __name__ as PROGRAMS
from tests.models import OPTIMIZERS, ROWS, classifier, data, embedder, sentences, weights

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What the program found out with 2 servers and 2 workers; it ran once for all tests of this file."""
    out = tmp_path_factory.mktemp("synchronous") / "results.json"
    command = [sys.executable, "-m", "launch", "local", "--ps=2", "--workers=2", "--", f"{PROGRAMS}.synchronous"]
    done = subprocess.run([*command, str(out)], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(out.read_text())


def alone(model, rows, **kwargs):
    history = tf2dist.fit(model, rows, batch_size=16, seed=3, **kwargs).history
    return weights(model), history


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_equals_one_process_on_the_joined_batches(tf, results, optimizer):
    """50 updates of 2 workers' gradients, with validation in between; the last batch of a pass has 7 rows."""
    with tf2dist.make_strategy("one").scope():
        model = classifier(OPTIMIZERS[optimizer]())
    expected, history = alone(model, data(), epochs=5, steps_per_epoch=10, validation_data=data())
    for ours, theirs in zip(results["weights"][optimizer], expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)
    assert results["updates"][optimizer] == 50
    for name, values in history.items():
        np.testing.assert_allclose(results["history"][optimizer][name], values, rtol=1e-4)
    assert results["history"][optimizer]["dropped_gradients"] == [0] * 5


def test_sparse_gradients(tf, results):
    """Slices of both workers are joined, not made dense on the way."""
    with tf2dist.make_strategy("one").scope():
        model = embedder(OPTIMIZERS["adagrad"]())
    expected, _ = alone(model, sentences(), epochs=2)
    for ours, theirs in zip(results["weights"]["slices"], expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


def test_a_sharded_table(tf, results):
    """A row that both workers use is updated once, by the sum of both gradients."""
    with tf2dist.make_strategy("one").scope():
        model = embedder(OPTIMIZERS["adagrad"](), tf2dist.layers.ShardedEmbedding)
    expected, _ = alone(model, sentences(), epochs=2)
    expected = [model.layers[0].get_table(), *expected[-2:]]
    for ours, theirs in zip(results["weights"]["sharded"], expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


def test_backup_workers(results):
    """Each update takes the first of two gradients; the other one is late, but for the last that nobody looks for."""
    assert results["updates"]["backup"] == 80
    dropped = results["history"]["backup"]["dropped_gradients"]
    assert 0 < sum(dropped) <= 80
    assert results["history"]["backup"]["loss"][1] < results["history"]["backup"]["loss"][0]


@pytest.mark.slow
def test_a_stopped_worker_is_not_waited_for(by_hand, tmp_path):
    job = by_hand(f"{PROGRAMS}.long", str(tmp_path), "2", "1")
    job.until("under_way")
    job.processes["worker 1"].send_signal(signal.SIGSTOP)
    job.until("result.json")
    job.processes["worker 1"].send_signal(signal.SIGCONT)
    assert job.ends("chief 0")[0] == 0
    assert job.ends("worker 1")[0] == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["updates"] == 40 * 60
    # Two gradients an update as long as both worked, and from then on one.
    dropped = result["history"]["dropped_gradients"]
    assert min(dropped[:2]) > 0
    assert dropped[-5:] == [0] * 5


@pytest.mark.slow
def test_a_worker_is_lost_and_the_other_computes_its_gradients(by_hand, tmp_path):
    job = by_hand(f"{PROGRAMS}.long", str(tmp_path), "2", "0")
    job.until("under_way")
    job.processes["worker 1"].kill()
    status, error = job.ends("chief 0")
    assert status == 0, error
    assert "worker 1 at" in error
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["updates"] == 40 * 60
    for accuracy in result["history"]["val_accuracy"]:
        assert abs(accuracy * ROWS - round(accuracy * ROWS)) < 1e-3
