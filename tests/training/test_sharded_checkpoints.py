"""Checkpoints of which each task writes and reads its own variables."""

import functools
import json
import logging
import os

import keras
import numpy as np
import pytest

import tf2dist
from tests.conftest import ONE_QUICKLY_CENTRAL_RARELY, strategies
from tests.models import OPTIMIZERS, classifier, data, embedder, sentences, weights
from tests.programs import __name__ as PROGRAMS
from tests.training.interrupted import BATCH, STEPS, Kill, Killed, fit
from tf2dist.errors import CheckpointError
from tf2dist.training.checkpoint_files import list_checkpoints, step_of

strategy = strategies(ONE_QUICKLY_CENTRAL_RARELY)


@pytest.mark.slow
@pytest.mark.parametrize("in_background", [True, False])
def test_goes_on_where_it_was(strategy, tmp_path, in_background):
    """Also by a checkpoint of the other kind, whichever is the newest."""
    expected, history = fit(strategy)
    options = {"every_steps": 1, "in_background": in_background}
    with pytest.raises(Killed):
        fit(strategy, tf2dist.Checkpoint(tmp_path, **options, sharded=True), Kill(STEPS + 3))
    assert all("variables-0-of-1.index" in os.listdir(path) for path in list_checkpoints(str(tmp_path)))
    with pytest.raises(Killed):
        fit(strategy, tf2dist.Checkpoint(tmp_path, **options), Kill(2 * STEPS + 3))
    model, after = fit(strategy, tf2dist.Checkpoint(tmp_path, **options, sharded=True))
    assert tf2dist.updates(model) == 4 * STEPS
    for ours, theirs in zip(weights(model), weights(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert after["loss"] == pytest.approx(history["loss"][-len(after["loss"]) :], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "bfloat16"])
def test_every_variable_is_in_it(tf, tmp_path, policy):
    """Of layers, statistics, averages and random numbers, in their dtypes."""

    def made():
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [
                keras.Input((8,)),
                keras.layers.Dense(6, dtype=policy),
                keras.layers.BatchNormalization(dtype=policy),
                keras.layers.Dropout(0.3, seed=2),
                keras.layers.Dense(3, dtype="float32"),
            ]
        )
        model.compile(keras.optimizers.Adam(use_ema=True), keras.losses.SparseCategoricalCrossentropy(True))
        return model

    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 8)).astype("float32"), rng.integers(0, 3, 40)
    model = made()
    tf2dist.fit(model, rows, callbacks=[tf2dist.Checkpoint(tmp_path, sharded=True)])
    other = made()
    assert tf2dist.load_checkpoint(other, tmp_path) == 2
    for ours, theirs in zip(other.variables, model.variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    for ours, theirs in zip(other.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    plain = keras.models.clone_model(model)
    assert tf2dist.load_checkpoint(plain, tmp_path) == 2
    for ours, theirs in zip(plain.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def _flip(path):
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)


def _without_a_variable(path):
    state = json.loads((path / "state.json").read_text())
    state["shards"][0].pop()
    (path / "state.json").write_text(json.dumps(state))


DAMAGE = {
    "a byte": lambda path: _flip(path / "variables-0-of-1.data-00000-of-00001"),
    "cut off": lambda path: os.truncate(path / "variables-0-of-1.data-00000-of-00001", 100),
    "no index": lambda path: os.remove(path / "variables-0-of-1.index"),
    "no data": lambda path: os.remove(path / "variables-0-of-1.data-00000-of-00001"),
    "garbage": lambda path: (path / "variables-0-of-1.index").write_bytes(b"garbage" * 99),
    "empty": lambda path: (path / "variables-0-of-1.index").write_bytes(b""),
    "a variable less": _without_a_variable,
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_one_is_said_and_the_one_before_is_used(tf, tmp_path, caplog, damage):
    """No variable has its values then."""
    strategy = tf2dist.make_strategy("one")
    fit(strategy, tf2dist.Checkpoint(tmp_path, sharded=True), epochs=1)
    expected = classifier(OPTIMIZERS["adam"]())
    tf2dist.load_checkpoint(expected, tmp_path)
    fit(strategy, tf2dist.Checkpoint(tmp_path, sharded=True), epochs=2)
    DAMAGE[damage](tmp_path / f"checkpoint-{2 * STEPS}")
    model = classifier(OPTIMIZERS["adam"]())
    with caplog.at_level(logging.WARNING, "tf2dist"):
        assert tf2dist.load_checkpoint(model, tmp_path) == STEPS
    assert f"checkpoint-{2 * STEPS} is damaged" in caplog.text
    assert "{{" not in caplog.text
    assert "Op:" not in caplog.text
    for ours, theirs in zip(weights(model), weights(expected), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    before = weights(model)
    with pytest.raises(CheckpointError, match="is damaged"):
        tf2dist.load_checkpoint(model, tmp_path / f"checkpoint-{2 * STEPS}")
    for ours, theirs in zip(weights(model), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_one_of_another_model_is_refused(tf, tmp_path):
    strategy = tf2dist.make_strategy("one")
    fit(strategy, tf2dist.Checkpoint(tmp_path, sharded=True), epochs=1)
    with pytest.raises(CheckpointError, match="is of another optimizer"):
        fit(strategy, tf2dist.Checkpoint(tmp_path), optimizer="sgd", epochs=2)
    with pytest.raises(CheckpointError, match="is of another model"):
        tf2dist.load_checkpoint(classifier(OPTIMIZERS["adam"](), keras.layers.Dense(4)), tmp_path)


def test_a_server_that_writes_elsewhere_is_named(tf, tmp_path, monkeypatch):
    monkeypatch.setattr(tf.raw_ops, "SaveV2", lambda **kwargs: None)
    with pytest.raises(CheckpointError, match="written to a disk of its own: all share the directory of sharded=True"):
        fit(tf2dist.make_strategy("one"), tf2dist.Checkpoint(tmp_path, sharded=True), epochs=1)
    assert os.listdir(tmp_path) == ["status.json"]


def test_a_server_that_does_not_see_what_is_there_is_named(tf, tmp_path, monkeypatch):
    """Nothing is damaged, and nothing begins anew."""
    from tf2dist.training import checkpoint_shards

    fit(tf2dist.make_strategy("one"), tf2dist.Checkpoint(tmp_path, sharded=True), epochs=1)

    def unseen(**kwargs):
        raise tf.errors.NotFoundError(
            None, None, "Unsuccessful TensorSliceReader constructor: Failed to find any files"
        )

    monkeypatch.setattr(tf.raw_ops, "RestoreV2", unseen)
    monkeypatch.setattr(checkpoint_shards, "_task", lambda device: "ps 1")
    with pytest.raises(
        CheckpointError, match="cannot be read: ps 1 does not see it: all share the directory of sharded"
    ):
        fit(tf2dist.make_strategy("one"), tf2dist.Checkpoint(tmp_path, sharded=True), epochs=2)
    assert [step_of(path) for path in list_checkpoints(str(tmp_path))] == [STEPS]


def test_what_servers_wrote_in_an_emergency_is_read_here_where_they_do_not_see_it(tf, tmp_path, monkeypatch):
    """Of a checkpoint that is not sharded nobody but this process need see the directory."""
    from tf2dist.training import checkpoint_shards

    expected, _ = fit(tf2dist.make_strategy("one"), epochs=2)
    fit(tf2dist.make_strategy("one"), tf2dist.Checkpoint(tmp_path, sharded=True), epochs=1)
    (path,) = tmp_path.glob("checkpoint-*/state.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"emergency": True}))
    restore, calls = tf.raw_ops.RestoreV2, []

    def unseen_by_servers(**kwargs):
        calls.append(kwargs)
        if len(calls) % 2:
            raise tf.errors.NotFoundError(None, None, "Failed to find any files")
        return restore(**kwargs)

    monkeypatch.setattr(tf.raw_ops, "RestoreV2", unseen_by_servers)
    monkeypatch.setattr(checkpoint_shards, "_task", lambda device: "ps 1")
    model, _ = fit(tf2dist.make_strategy("one"), tf2dist.Checkpoint(tmp_path), epochs=2)
    assert len(calls) > 4
    for value, wanted in zip(weights(model), weights(expected), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-6)


def test_a_full_disk(tf, tmp_path, monkeypatch):
    def full(**kwargs):
        raise tf.errors.ResourceExhaustedError(None, None, "variables.data; No space left on device\nand more")

    monkeypatch.setattr(tf.raw_ops, "SaveV2", full)
    with pytest.raises(CheckpointError, match=r"checkpoint-\d+ cannot be written: .*No space left on device; the che"):
        fit(tf2dist.make_strategy("one"), tf2dist.Checkpoint(tmp_path, sharded=True), epochs=1)
    assert os.listdir(tmp_path) == ["status.json"]


class Counts(keras.layers.Layer):
    def call(self, x):
        return x

    def save_own_variables(self, store):
        store["count"] = np.zeros([])

    def load_own_variables(self, store):
        pass


def test_a_layer_that_saves_what_is_no_variable_is_refused(tf, tmp_path):
    model = classifier(OPTIMIZERS["adam"](), Counts())
    with pytest.raises(ValueError, match="sharded=True holds variables alone"):
        tf2dist.fit(model, data(), batch_size=BATCH, callbacks=[tf2dist.Checkpoint(tmp_path, sharded=True)])


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("update", ["sync", "async"])
def test_servers_write_and_read_their_own(launched, tf, tmp_path, update):
    """On two servers, then on one; synchronous workers end with the weights of one device that nothing has stopped."""
    for epochs, layout in ((2, ["--ps=2", "--workers=2"]), (4, ["--ps=1", "--workers=2"])):
        job = launched(layout, f"{PROGRAMS}.sharded_checkpoints", str(tmp_path), str(epochs), update)
        status, error = job.ends("launcher")
        assert status == 0, error
    first, last = (json.loads((tmp_path / f"result-{epochs}.json").read_text()) for epochs in (2, 4))
    assert (first["updates"], last["updates"]) == (2 * STEPS, 4 * STEPS)
    assert (first["epochs"], last["epochs"]) == (2, 2)
    assert [len(first["devices"]), len(last["devices"])] == [2, 1]
    names = os.listdir(tmp_path / "checkpoints" / f"checkpoint-{2 * STEPS}")
    of_two = {name for name in names if name.endswith(".index")}
    assert of_two == {"variables-0-of-2.index", "variables-1-of-2.index"}
    with tf2dist.make_strategy("one").scope():
        table = functools.partial(tf2dist.layers.ShardedEmbedding, shards=3)
        expected, loaded = (embedder(OPTIMIZERS["adam"](), table) for _ in range(2))
    for epochs, result in ((2, first), (4, last)):
        tf2dist.fit(expected, sentences(), batch_size=16, epochs=2, shuffle=False)
        path = tmp_path / "checkpoints" / f"checkpoint-{epochs * STEPS}"
        assert tf2dist.load_checkpoint(loaded, path) == epochs * STEPS
        found = [loaded.layers[0].get_table(), *weights(loaded)[-2:]]
        for ours, theirs in zip(found, result["weights"], strict=True):
            np.testing.assert_array_equal(ours, np.asarray(theirs, "float32"))
        evaluated = loaded.evaluate(*sentences(1), verbose=0, return_dict=True)
        assert evaluated == pytest.approx(result["evaluation"], rel=1e-4)
        if update == "sync":
            for ours, theirs in zip(weights(loaded), weights(expected), strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert [step_of(path) for path in list_checkpoints(str(tmp_path / "checkpoints"))][-1] == 4 * STEPS
