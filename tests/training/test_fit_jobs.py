"""Several processes, started by our own launcher: the same numbers as one process, and exact counts."""

import json
import os

import numpy as np
import pytest

import tf2dist
from tests.conftest import sampled
from tests.jobs import run_program
from tests.models import OPTIMIZERS, ROWS, classifier, data, weights
from tests.programs import __name__ as PROGRAMS

BATCH, SEED, EPOCHS = 16, 3, 3
STEPS = -(-ROWS // BATCH)
LAYOUTS = {
    "multiworker": ["--workers=2"],
    "multiworker, 2 replicas each": ["--workers=2"],
    "ps, 1 worker": ["--ps=1", "--workers=1"],
    "ps, 2 workers": ["--ps=2", "--workers=2"],
}
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(
    scope="module",
    params=sampled(LAYOUTS, (), ("multiworker, 2 replicas each", "ps, 2 workers")),
)
def layout(request):
    return request.param


@pytest.fixture(scope="module")
def results(layout, tmp_path_factory):
    """What the program found out in a cluster of this layout; it ran once for all tests of this file."""
    out = tmp_path_factory.mktemp("cluster") / "results.json"
    name = layout.partition(",")[0]
    replicas = ["2"] if "replicas" in layout else []
    assert "trained 5 models" in run_program(LAYOUTS[layout], "train", name, out, *replicas)
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def alone(tf):
    """The same trainings in this process, on one device."""
    found = {"weights": {}, "history": {}}
    for name, optimizer in OPTIMIZERS.items():
        with tf2dist.make_strategy("one").scope():
            model = classifier(optimizer())
        history = tf2dist.fit(model, data(), batch_size=BATCH, seed=SEED, epochs=EPOCHS, validation_data=data())
        found["weights"][name], found["history"][name] = weights(model), history.history
    with tf2dist.make_strategy("one").scope():
        model = classifier(OPTIMIZERS["sgd"]())
    tf2dist.fit(model, tf.data.Dataset.from_tensor_slices(data()).batch(BATCH), epochs=EPOCHS)
    found["weights"]["dataset"] = weights(model)
    return found


@pytest.mark.parametrize("name", [*OPTIMIZERS, "dataset"])
def test_weights_equal_one_process(layout, results, alone, name):
    if layout == "ps, 2 workers":  # asynchronous: two workers do not go the same way twice; but they do learn
        history = results["history"].get(name)
        assert history is None or history["loss"][-1] < history["loss"][0]
        return
    for ours, theirs in zip(results["weights"][name], alone["weights"][name], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_history_equals_one_process(layout, results, alone, name):
    ours, theirs = results["history"][name], alone["history"][name]
    assert ours.keys() == theirs.keys() == {"loss", "accuracy", "val_loss", "val_accuracy"}
    if layout != "ps, 2 workers":
        for key in theirs:
            np.testing.assert_allclose(ours[key], theirs[key], rtol=1e-4)


def test_updates_are_exact(results):
    expected = dict.fromkeys([*OPTIMIZERS, "dataset"], EPOCHS * STEPS)
    expected["contended"] = 10 * -(-ROWS // 2)
    assert results["updates"] == expected


def test_metrics_count_every_example(layout, results):
    """Accuracy times the examples of an epoch is a whole number: none was lost or counted twice.

    An asynchronous epoch is a number of updates, and may hold the short last batch of a pass twice or not at all.
    """
    examples = (ROWS,) if layout != "ps, 2 workers" else (ROWS - 1, ROWS, ROWS + 1)
    for accuracy in results["history"]["contended"]["accuracy"]:
        assert any(abs(accuracy * n - round(accuracy * n)) < 1e-3 for n in examples)


def test_evaluation_is_exact(results):
    _, y = data()
    correct = int((np.argmax(results["logits"], 1) == y).sum())
    for logs in results["evaluations"]:
        assert round(logs["accuracy"] * ROWS) == correct
        assert logs["loss"] == pytest.approx(results["evaluations"][0]["loss"], rel=1e-5)


def test_presets(results):
    for name, preset in results["presets"].items():
        assert preset["updates"] == 20, name
        assert np.isfinite(preset["loss"] + list(preset["test"].values())).all(), name
    assert results["presets"]["mlp"]["test"]["accuracy"] > 0.95
    assert results["presets"]["softmax"]["loss"][1] < results["presets"]["softmax"]["loss"][0]


def test_upstream_does_not_train(layout, results):
    """Fails when Keras's own fit trains here, or its layers take a table in parts; then look what they can do.

    keras#18624 (parameter servers), keras#20585 and tensorflow#72388 (several processes).
    """
    said = results["keras"]
    if layout.startswith("ps"):
        assert "ClusterCoordinator" in said["fit"]
        assert "ShardedVariable" in said["partitioner"]
    else:
        assert "Attempt to convert a value (PerReplica" in said["fit"]


@pytest.mark.slow
def test_the_way_to_accelerators(by_hand, tmp_path):
    """Workers with GPUs read through tf.distribute's iterators; here those without take that way."""
    job = by_hand(f"{PROGRAMS}.accelerators", str(tmp_path))
    status, error = job.ends("chief 0")
    assert status == 0, error
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["updates"] == 20 * 60
    assert result["history"]["loss"][-1] < result["history"]["loss"][0]


@pytest.fixture
def one_core():
    """This thread and all processes that it starts have a single core, as in many a container."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.slow
@pytest.mark.parametrize("update", [[], ["--sync"]], ids=["asynchronous", "synchronous"])
def test_servers_and_workers_with_a_single_core(one_core, launched, update):
    """TensorFlow would run all operations in one thread, and a worker's first step would not end."""
    flags = ["--strategy=ps", "--dataset=digits", "--epochs=1", *update]
    status, error = launched(["--ps=1", "--workers=2", "--timeout=200"], "trainers.mnist", *flags).ends("launcher")
    assert status == 0, error
