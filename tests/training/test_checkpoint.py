"""`tf2dist.Checkpoint`: training goes on where it was, checkpoints are whole or not there, an evaluator follows."""

import functools
import json
import logging
import os
import threading

import keras
import numpy as np
import pytest

import tf2dist
from tests.conftest import SINGLE_PROCESS_SLOWLY, strategies
from tests.models import OPTIMIZERS, ROWS, classifier, data, weights
from tf2dist.cluster.heartbeat import TaskLostError
from tf2dist.cluster.roles import Role
from tf2dist.errors import CheckpointError
from tf2dist.training import checkpoint_files
from tf2dist.training.checkpoint_files import list_checkpoints
from tf2dist.training.training_status import read_status

strategy = strategies(SINGLE_PROCESS_SLOWLY)

BATCH = 16
STEPS = -(-ROWS // BATCH)


class Killed(Exception):
    """Stands for what ends a job in the middle."""


class Kill(keras.callbacks.Callback):
    def __init__(self, at):
        super().__init__()
        self.at = at

    def on_train_batch_end(self, batch, logs=None):
        if tf2dist.updates(self.model) >= self.at:
            raise Killed


def fit(strategy, *callbacks, optimizer="adam", epochs=4, **kwargs):
    with strategy.scope():
        model = classifier(OPTIMIZERS[optimizer]())
    kwargs = {"batch_size": BATCH, "seed": 3, "steps_per_execution": 1} | kwargs
    return model, tf2dist.fit(model, data(), epochs=epochs, callbacks=callbacks, **kwargs).history


@pytest.mark.parametrize(
    "at", [pytest.param(STEPS, marks=pytest.mark.slow), STEPS + 3, pytest.param(3 * STEPS + 5, marks=pytest.mark.slow)]
)
def test_goes_on_where_it_was(strategy, tmp_path, at):
    """Weights, and the logs of the epoch that was cut in two, are those of a training that nothing has ended."""
    expected, history = fit(strategy)
    with pytest.raises(Killed):
        fit(strategy, tf2dist.Checkpoint(tmp_path, every_steps=1), Kill(at))
    assert read_status(tmp_path)[0] == "failed"
    model, after = fit(strategy, tf2dist.Checkpoint(tmp_path, every_steps=1))
    assert tf2dist.updates(model) == 4 * STEPS
    for ours, theirs in zip(weights(model), weights(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert after["loss"] == pytest.approx(history["loss"][-len(after["loss"]) :], rel=1e-5)
    assert read_status(tmp_path)[0] == "done"


def test_numbers_of_batches_go_on(tf, tmp_path):
    """In an epoch that was cut in two, hooks are told the numbers of the batches that it still needs."""

    class See(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.begun, self.ended = [], []

        def on_train_batch_begin(self, batch, logs=None):
            self.begun.append(batch)

        def on_train_batch_end(self, batch, logs=None):
            self.ended.append(batch)

    strategy, see = tf2dist.make_strategy("one"), See()
    with pytest.raises(Killed):
        fit(strategy, tf2dist.Checkpoint(tmp_path, every_steps=5), Kill(6), epochs=1)
    fit(strategy, tf2dist.Checkpoint(tmp_path), see, epochs=1)
    assert see.begun == see.ended == list(range(5, STEPS))


def test_a_finished_training_is_not_trained_again(tf, tmp_path):
    strategy = tf2dist.make_strategy("one")
    model, _ = fit(strategy, tf2dist.Checkpoint(tmp_path))
    again, history = fit(strategy, tf2dist.Checkpoint(tmp_path))
    assert history == {}
    assert tf2dist.updates(again) == 4 * STEPS
    for ours, theirs in zip(weights(again), weights(model), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    more, history = fit(strategy, tf2dist.Checkpoint(tmp_path), epochs=6)
    assert len(history["loss"]) == 2
    assert tf2dist.updates(more) == 6 * STEPS


@pytest.mark.parametrize(("every", "keep", "left"), [(5, 3, [15, 20, 21]), (7, 2, [14, 21]), (100, 3, [21])])
def test_how_often_and_how_many(tf, tmp_path, every, keep, left):
    fit(tf2dist.make_strategy("one"), tf2dist.Checkpoint(tmp_path, every_steps=every, keep=keep), epochs=3)
    assert [os.path.basename(path) for path in list_checkpoints(tmp_path)] == [f"checkpoint-{n}" for n in left]


def test_the_last_one_holds_what_training_ended_with(tf, tmp_path):
    """Also where one of the last update is there when the averages become the weights."""
    model = classifier(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9))
    callbacks = [tf2dist.Checkpoint(tmp_path, every_steps=STEPS)]
    tf2dist.fit(model, data(), batch_size=BATCH, epochs=2, callbacks=callbacks)
    plain = classifier(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9))
    plain.load_weights(os.path.join(list_checkpoints(tmp_path)[-1], "model.weights.h5"))
    for ours, theirs in zip(weights(plain), weights(model), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_every_so_many_seconds(tf, tmp_path):
    fit(tf2dist.make_strategy("one"), tf2dist.Checkpoint(tmp_path, every_seconds=1e-9, keep=100), epochs=1)
    assert len(list_checkpoints(tmp_path)) == STEPS


def test_plain_keras_reads_it(tf, tmp_path):
    model, _ = fit(tf2dist.make_strategy("mirrored"), tf2dist.Checkpoint(tmp_path))
    plain = classifier(OPTIMIZERS["adam"]())
    plain.load_weights(os.path.join(list_checkpoints(tmp_path)[-1], "model.weights.h5"))
    for ours, theirs in zip(weights(plain), weights(model), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_what_a_killed_writer_left_is_removed(tf, tmp_path):
    unfinished = tmp_path / ".checkpoint-3.0123.part"
    unfinished.mkdir()
    (unfinished / "model.weights.h5").write_bytes(b"half")
    fit(tf2dist.make_strategy("one"), tf2dist.Checkpoint(tmp_path), epochs=1)
    assert sorted(os.listdir(tmp_path)) == [f"checkpoint-{STEPS}", "status.json"]


@pytest.mark.parametrize("name", ["model.weights.h5", "state.json"])
def test_a_damaged_checkpoint_is_said_and_the_one_before_is_used(tf, tmp_path, caplog, name):
    strategy = tf2dist.make_strategy("one")
    fit(strategy, tf2dist.Checkpoint(tmp_path, every_steps=STEPS), epochs=2)
    damaged = os.path.join(list_checkpoints(tmp_path)[-1], name)
    with open(damaged, "r+b") as file:
        file.truncate(100)
    model, history = fit(strategy, tf2dist.Checkpoint(tmp_path), epochs=2)
    assert f"checkpoint-{2 * STEPS} is damaged" in caplog.text
    assert len(history["loss"]) == 1
    assert tf2dist.updates(model) == 2 * STEPS


def test_a_checkpoint_of_another_model_is_refused(tf, tmp_path):
    strategy = tf2dist.make_strategy("one")
    fit(strategy, tf2dist.Checkpoint(tmp_path), epochs=1)
    before = {path: os.stat(path).st_mtime for path in list_checkpoints(tmp_path)}
    with strategy.scope():
        model = classifier(OPTIMIZERS["adam"](), keras.layers.Dense(5))
    with pytest.raises(CheckpointError, match="is of another model, name another directory or remove it"):
        tf2dist.fit(model, data(), callbacks=[tf2dist.Checkpoint(tmp_path)])
    with pytest.raises(CheckpointError, match="is of another optimizer"):
        fit(strategy, tf2dist.Checkpoint(tmp_path), optimizer="sgd", epochs=1)
    assert before == {path: os.stat(path).st_mtime for path in list_checkpoints(tmp_path)}


def test_a_full_disk(tf, tmp_path, monkeypatch):
    """What was saved before stays, and no half of a checkpoint is left."""
    strategy = tf2dist.make_strategy("one")
    fit(strategy, tf2dist.Checkpoint(tmp_path), epochs=1)

    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_files, "flush", full)
    with pytest.raises(OSError, match="No space left"):
        fit(strategy, tf2dist.Checkpoint(tmp_path), epochs=2)
    assert sorted(os.listdir(tmp_path)) == [f"checkpoint-{STEPS}", "status.json"]


@pytest.mark.parametrize("wrong", [{"every_steps": 0}, {"every_seconds": -1.0}, {"keep": 0}])
def test_numbers_that_make_no_sense(tf, tmp_path, wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=f"{name} must be positive, found"):
        tf2dist.Checkpoint(tmp_path, **wrong)


def test_an_evaluator_waits_as_long_as_the_others_do(tmp_path, monkeypatch):
    from tf2dist.runtime import session
    from tf2dist.training import evaluator

    monkeypatch.setenv("TF2DIST_START_TIMEOUT", "0.3")
    with pytest.raises(TaskLostError, match=r"no training has begun in .* within 0\.3 s"):
        next(evaluator._new_checkpoints(str(tmp_path)))
    monkeypatch.setattr(session, "_current", session.Session(start_timeout=0.2))  # what `join` was told
    with pytest.raises(TaskLostError, match=r"within 0\.2 s"):
        next(evaluator._new_checkpoints(str(tmp_path)))


def test_an_evaluator_follows(tf, tmp_path, monkeypatch, caplog):
    """Every checkpoint once, in order, with the numbers that training had; then it ends."""
    from tf2dist.runtime import session

    caplog.set_level(logging.INFO, "tf2dist")
    strategy = tf2dist.make_strategy("one")
    with strategy.scope():
        model = classifier(OPTIMIZERS["adam"]())
    found = {}

    def evaluator():
        history = tf2dist.fit(model, data(), validation_data=data(), callbacks=[tf2dist.Checkpoint(tmp_path)])
        found.update(history.history, updates=history.epoch)

    monkeypatch.setattr(session, "_current", session.Session(role=Role.EVALUATOR))
    thread = threading.Thread(target=evaluator)
    thread.start()
    trained = classifier(OPTIMIZERS["adam"]())
    from tf2dist.input.make_adapter import make_data_adapter, make_finite_adapter
    from tf2dist.training import loop  # the training itself, beside the evaluator: `fit` would evaluate
    from tf2dist.training.callbacks import make_callback_list
    from tf2dist.training.prepared_model import prepare

    program = prepare(trained)
    feed = make_data_adapter(data(), batch_size=BATCH)
    program.build(feed)
    callbacks = [tf2dist.Checkpoint(tmp_path, every_steps=STEPS, keep=100)]
    hooks = make_callback_list(trained, callbacks, epochs=3, steps=STEPS, add_history=True)
    validate = functools.partial(program.evaluate, make_finite_adapter(data()), hooks)
    history = loop.TrainingLoop(program, feed, hooks, STEPS, program.tuner(1)).run(0, 3, validate, 1)
    thread.join(120)
    assert not thread.is_alive()
    assert found["updates"] == [STEPS, 2 * STEPS, 3 * STEPS]
    assert found["loss"] == pytest.approx(history.history["val_loss"], rel=1e-5)
    assert caplog.text.count("evaluation after") == 3
    assert list((tmp_path / "evaluation").glob("events*"))


@pytest.mark.slow
def test_a_checkpoint_of_an_earlier_step_is_left_alone(tf, tmp_path, caplog):
    """What has been trained since is not undone, nor by a second checkpoint that was written less often."""
    strategy = tf2dist.make_strategy("one")
    expected, _ = fit(strategy, epochs=4)
    model, _ = fit(strategy, tf2dist.Checkpoint(tmp_path / "a"), epochs=2)
    more = {"batch_size": BATCH, "seed": 3}
    tf2dist.fit(model, data(), initial_epoch=2, epochs=3, **more)
    tf2dist.fit(model, data(), initial_epoch=3, epochs=4, callbacks=[tf2dist.Checkpoint(tmp_path / "a")], **more)
    assert f"checkpoint-{2 * STEPS} is of step {2 * STEPS}, and training begins at {3 * STEPS}" in caplog.text
    both = [
        tf2dist.Checkpoint(tmp_path / "b", every_steps=1),
        tf2dist.Checkpoint(tmp_path / "c", every_steps=STEPS + 1),
    ]
    with pytest.raises(Killed):
        fit(strategy, *both, Kill(2 * STEPS))
    again, _ = fit(strategy, *both)
    for trained in (model, again):
        assert tf2dist.updates(trained) == 4 * STEPS
        for ours, theirs in zip(weights(trained), weights(expected), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_averages_become_the_weights_though_it_was_killed_after_the_last_update(tf, tmp_path):
    def averaged(*callbacks):
        model = classifier(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9))
        tf2dist.fit(model, data(), batch_size=BATCH, seed=3, callbacks=callbacks)
        return model

    class KillAtTheEnd(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise Killed

    expected = averaged()
    with pytest.raises(Killed):
        averaged(tf2dist.Checkpoint(tmp_path, every_steps=STEPS), KillAtTheEnd())
    ends = [averaged(tf2dist.Checkpoint(tmp_path, every_steps=STEPS))]  # has nothing left to train
    ends.append(classifier(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9)))
    ends[1].load_weights(os.path.join(list_checkpoints(tmp_path)[-1], "model.weights.h5"))
    for model in ends:
        for ours, theirs in zip(weights(model), weights(expected), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_what_trained_nothing_saves_nothing(tf, tmp_path):
    strategy = tf2dist.make_strategy("one")
    fit(strategy, tf2dist.Checkpoint(tmp_path), epochs=2, initial_epoch=3)
    assert list_checkpoints(tmp_path) == []


def test_first_names_in_the_state_are_read(tf, tmp_path):
    strategy = tf2dist.make_strategy("one")
    fit(strategy, tf2dist.Checkpoint(tmp_path), epochs=1)
    path = os.path.join(list_checkpoints(tmp_path)[-1], "state.json")
    with open(path) as file:
        state = json.load(file)
    with open(path, "w") as file:
        json.dump({"position": state["global_step"], "totals": state["metric_sums"], "shapes": state["shapes"]}, file)
    model, _ = fit(strategy, tf2dist.Checkpoint(tmp_path), epochs=2)
    assert tf2dist.updates(model) == 2 * STEPS
    assert [os.path.basename(p) for p in list_checkpoints(tmp_path)] == [f"checkpoint-{n * STEPS}" for n in (1, 2)]
