"""A checkpoint that is written while training goes on holds what was there when it was due."""

import json
import logging
import threading
import time

import keras
import numpy as np
import pytest

import tf2dist
from tests.conftest import ONE_QUICKLY_CENTRAL_RARELY, strategies
from tests.models import OPTIMIZERS, classifier, data, weights
from tests.training.interrupted import BATCH, STEPS, Killed, fit
from tf2dist.errors import CheckpointError
from tf2dist.training import checkpoint_files
from tf2dist.training.status_file import read_status

strategy = strategies(ONE_QUICKLY_CENTRAL_RARELY)
WAIT = 120  # seconds after which a test has failed


class HeldBack:
    """Writes checkpoints of these steps only when they are let go."""

    def __init__(self, monkeypatch, *steps):
        self.steps, self.begun, self.go = steps, threading.Event(), threading.Event()
        self.write = checkpoint_files.write_checkpoint
        monkeypatch.setattr(checkpoint_files, "write_checkpoint", self)

    def __call__(self, snapshot, directory, **kwargs):
        if snapshot.progress.global_step in self.steps:
            self.begun.set()
            assert self.go.wait(WAIT)
        return self.write(snapshot, directory, **kwargs)


class LetGo(keras.callbacks.Callback):
    """Lets a checkpoint be written, at an update, and notes how many there were then."""

    def __init__(self, held, at, directory):
        super().__init__()
        self.held, self.at, self.directory, self.seen = held, at, directory, None

    def on_train_batch_end(self, batch, logs=None):
        if tf2dist.updates(self.model) == self.at:
            assert self.held.begun.wait(WAIT)
            self.seen = checkpoint_files.list_checkpoints(self.directory)
            self.held.go.set()


def read(strategy, path, optimizer="adam"):
    with strategy.scope():
        model = classifier(OPTIMIZERS[optimizer]())
    tf2dist.evaluate(model, *data(), verbose=0)
    model.optimizer.build(model.trainable_variables)
    progress = checkpoint_files.read_checkpoint(model, path)
    return [*weights(model), *(v.numpy() for v in model.optimizer.variables)], progress


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", pytest.param("sgd", marks=pytest.mark.slow)])
def test_holds_what_was_there_when_it_was_due(strategy, tmp_path, monkeypatch, optimizer):
    """The one of step 3 is written after step 5, and is what would have been written at once."""
    at_once = tf2dist.Checkpoint(tmp_path / "at once", every_steps=3, in_background=False, keep=9)
    fit(strategy, at_once, epochs=1, optimizer=optimizer)
    held, directory = HeldBack(monkeypatch, 3), str(tmp_path / "later")
    let_go = LetGo(held, 5, directory)
    fit(strategy, tf2dist.Checkpoint(directory, every_steps=3, keep=9), let_go, epochs=1, optimizer=optimizer)
    assert let_go.seen == []
    for step in (3, 6, STEPS):
        expected, theirs = read(strategy, tmp_path / "at once" / f"checkpoint-{step}", optimizer)
        found, ours = read(strategy, f"{directory}/checkpoint-{step}", optimizer)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
        assert (ours.global_step, ours.place) == (theirs.global_step, theirs.place) == (step, ours.place)
        for a, b in zip(ours.metric_sums, theirs.metric_sums, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.slow
def test_random_numbers_are_those_of_that_moment(tf, tmp_path, monkeypatch):
    def train(directory, *callbacks, **options):
        with tf2dist.make_strategy("one").scope():
            model = classifier(OPTIMIZERS["sgd"](), keras.layers.Dropout(0.3, seed=4))
        checkpoint = tf2dist.Checkpoint(directory, every_steps=3, keep=9, **options)
        tf2dist.fit(model, data(), batch_size=BATCH, steps_per_execution=1, callbacks=[checkpoint, *callbacks])
        return json.loads((directory / "checkpoint-3" / "state.json").read_text())["seed_states"]

    expected = train(tmp_path / "at once", in_background=False)
    held = HeldBack(monkeypatch, 3)
    assert train(tmp_path / "later", LetGo(held, 5, str(tmp_path / "later"))) == expected


@pytest.mark.slow
def test_training_goes_on_from_what_was_written_when_it_failed(strategy, tmp_path, monkeypatch):
    """Which is waited for; the next job ends with the weights of one that nothing has ended."""
    expected, history = fit(strategy, epochs=2)
    held = HeldBack(monkeypatch, 3)

    class LetGoLater(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if tf2dist.updates(self.model) == 5:
                threading.Timer(0.5, held.go.set).start()
                raise Killed

    with pytest.raises(Killed):
        fit(strategy, tf2dist.Checkpoint(tmp_path, every_steps=3), LetGoLater(), epochs=2)
    assert read_status(tmp_path)[0] == "failed"
    assert [checkpoint_files.step_of(path) for path in checkpoint_files.list_checkpoints(str(tmp_path))] == [3]
    model, after = fit(strategy, tf2dist.Checkpoint(tmp_path), epochs=2)
    for ours, theirs in zip(weights(model), weights(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert after["loss"] == pytest.approx(history["loss"], rel=1e-5)


def test_the_next_one_waits_until_it_is_written(tf, tmp_path, monkeypatch):
    """No two are written at a time, and none is left out."""
    under_way, most, steps, write = [], [], [], checkpoint_files.write_checkpoint

    def slow(snapshot, directory, **kwargs):
        under_way.append(snapshot)
        most.append(len(under_way))
        time.sleep(0.05)
        written = write(snapshot, directory, **kwargs)
        steps.append(snapshot.progress.global_step)
        under_way.remove(snapshot)
        return written

    monkeypatch.setattr(checkpoint_files, "write_checkpoint", slow)
    fit(tf2dist.make_strategy("one"), tf2dist.Checkpoint(tmp_path, every_steps=1, keep=2), epochs=1)
    assert steps == [*range(1, STEPS + 1), STEPS]  # the last one again, when the epoch has ended
    assert max(most) == 1
    assert len(checkpoint_files.list_checkpoints(str(tmp_path))) == 2


@pytest.mark.parametrize("in_background", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_full_disk_ends_no_training_that_does_not_require_it(tf, tmp_path, monkeypatch, caplog, in_background):
    """The next one that is due is written again, and so is the last one."""
    write, tried = checkpoint_files.write_checkpoint, []

    def full(snapshot, directory, **kwargs):
        tried.append(snapshot.progress.global_step)
        if len(tried) in (2, 4, 5):
            raise checkpoint_files.UnwrittenError("checkpoint cannot be written: No space left on device")
        return write(snapshot, directory, **kwargs)

    monkeypatch.setattr(checkpoint_files, "write_checkpoint", full)
    options = {"every_steps": 2, "keep": 9, "in_background": in_background}
    strategy = tf2dist.make_strategy("one")
    with caplog.at_level(logging.WARNING, "tf2dist"):
        model, _ = fit(strategy, tf2dist.Checkpoint(tmp_path, **options, required=False), epochs=1)
    assert tf2dist.updates(model) == STEPS
    assert tried == [2, 4, 6, STEPS, STEPS]
    found = [checkpoint_files.step_of(path) for path in checkpoint_files.list_checkpoints(str(tmp_path))]
    assert found == [2, 6]
    assert caplog.text.count("No space left on device; it is not required, so that training goes on") == 3
    assert read_status(tmp_path)[0] == "done"
    model, _ = fit(strategy, tf2dist.Checkpoint(tmp_path, **options, required=False), epochs=2)
    assert tried[5:] == [8, 10, 12, 14, 14]
    tried.clear()
    with pytest.raises(CheckpointError, match="No space left"):
        fit(strategy, tf2dist.Checkpoint(tmp_path, **options), epochs=4)


class Counts(keras.layers.Layer):
    """Saves what is in no variable of Keras."""

    def build(self, shape):
        self.count = np.zeros([])

    def call(self, x):
        return x

    def save_own_variables(self, store):
        store["count"] = self.count

    def load_own_variables(self, store):
        self.count = store["count"][...]


def test_what_a_layer_saves_by_itself_is_of_the_same_moment(tf, tmp_path):
    """Nobody knows which values it needs, so training waits for it."""
    layer = Counts()

    class Count(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            layer.count += 1

    model = classifier(OPTIMIZERS["adam"](), layer)
    tf2dist.fit(
        model, data(), batch_size=BATCH, steps_per_execution=1,
        callbacks=[Count(), tf2dist.Checkpoint(tmp_path, every_steps=1, keep=99)],
    )  # fmt: skip
    for path in checkpoint_files.list_checkpoints(str(tmp_path)):
        assert checkpoint_files.read_checkpoint(model, path).global_step == layer.count
