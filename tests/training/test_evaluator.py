"""The evaluator: it follows the checkpoints of a training, whatever happens to them, and ends with it."""

import functools
import json
import logging
import os
import shutil
import threading

import numpy as np
import pytest

import tf2dist
from tests.models import OPTIMIZERS, classifier, data
from tests.training.interrupted import BATCH, STEPS, fit
from tf2dist.cluster.heartbeat import TaskLostError
from tf2dist.cluster.roles import Role
from tf2dist.errors import CheckpointError
from tf2dist.runtime import session
from tf2dist.training import checkpoint_files
from tf2dist.training.checkpoint_files import list_checkpoints


@pytest.mark.parametrize("happens", ["removed", pytest.param("replaced", marks=pytest.mark.slow)])
def test_an_evaluator_is_not_disturbed_by_what_happens_while_it_reads(tf, tmp_path, monkeypatch, happens):
    from tf2dist.training import evaluator_task

    fit(tf2dist.make_strategy("one"), tf2dist.Checkpoint(tmp_path), epochs=1)
    (path,) = list_checkpoints(str(tmp_path))
    read, begun = checkpoint_files.read_checkpoint, []

    def reads(model, path):
        begun.append(path)
        if len(begun) == 1:
            os.rename(path, f"{path}-old")
            if happens == "replaced":
                shutil.copytree(f"{path}-old", path)
            raise CheckpointError("it cannot be restored; it may be of another model")
        return read(model, path)

    monkeypatch.setattr(checkpoint_files, "read_checkpoint", reads)
    model = classifier(OPTIMIZERS["adam"]())
    model.optimizer.build(model.trainable_variables)
    progress = evaluator_task._read(model, path)
    assert (progress is None) == (happens == "removed")
    if progress is not None:
        assert progress.global_step == STEPS


def test_an_evaluator_waits_as_long_as_the_others_do(tmp_path, monkeypatch):
    from tf2dist.runtime import session
    from tf2dist.training import evaluator_task

    monkeypatch.setenv("TF2DIST_START_TIMEOUT", "0.3")
    with pytest.raises(TaskLostError, match=r"no training has begun in .* within 0\.3 s"):
        next(evaluator_task._new_checkpoints(str(tmp_path)))
    monkeypatch.setattr(session, "_current", session.Session(start_timeout=0.2))  # what `join` was told
    with pytest.raises(TaskLostError, match=r"within 0\.2 s"):
        next(evaluator_task._new_checkpoints(str(tmp_path)))


def _ended(directory, state, when=None):
    """A directory in which a training wrote one checkpoint, and ended: now, or at a Unix time."""
    from tf2dist.training import status_file

    path = directory / "checkpoint-3"
    path.mkdir()
    status_file.write_status(str(directory), state)
    if when is not None:
        status = directory / status_file.STATUS_FILE
        status.write_text(json.dumps(json.loads(status.read_text()) | {"time": when}))
    return str(path)


def test_an_evaluator_whose_training_is_done_before_it_is_ready_evaluates_at_once(tmp_path):
    from tf2dist.training import evaluator_task

    path = _ended(tmp_path, "done")  # after this process began
    assert list(evaluator_task._new_checkpoints(str(tmp_path))) == [path]


def test_an_evaluator_that_was_started_after_the_training_was_done_evaluates_what_is_there(
    tmp_path, monkeypatch, caplog
):
    from tf2dist.training import evaluator_task

    monkeypatch.setenv("TF2DIST_START_TIMEOUT", "0.3")
    path = _ended(tmp_path, "done", when=1e9)
    assert list(evaluator_task._new_checkpoints(str(tmp_path))) == [path]
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 1
    assert "the last one is done: its checkpoints are evaluated" in said[0]


@pytest.mark.parametrize("state", ["training", "failed", "preempted"])
def test_an_evaluator_does_not_take_an_old_training_that_was_not_done_for_its_own(tmp_path, monkeypatch, state):
    from tf2dist.training import evaluator_task

    monkeypatch.setenv("TF2DIST_START_TIMEOUT", "0.3")
    _ended(tmp_path, state, when=1e9)
    with pytest.raises(TaskLostError, match=rf"no training has begun in .* the last one is {state}"):
        next(evaluator_task._new_checkpoints(str(tmp_path)))


@pytest.mark.slow
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
    from tf2dist.training import fit_loop  # the training itself, beside the evaluator_task: `fit` would evaluate
    from tf2dist.training.callbacks import make_callback_list
    from tf2dist.training.prepared_model import prepare

    program = prepare(trained)
    feed = make_data_adapter(data(), batch_size=BATCH)
    program.build(feed)
    callbacks = [tf2dist.Checkpoint(tmp_path, every_steps=STEPS, keep=100)]
    hooks = make_callback_list(trained, callbacks, epochs=3, steps=STEPS, add_history=True)
    validate = functools.partial(program.evaluate, make_finite_adapter(data()), hooks)
    history = fit_loop.TrainingLoop(program, feed, hooks, STEPS, program.tuner(1)).run(0, 3, validate, 1)
    thread.join(120)
    assert not thread.is_alive()
    assert found["updates"] == [STEPS, 2 * STEPS, 3 * STEPS]
    assert found["loss"] == found["val_loss"] == pytest.approx(history.history["val_loss"], rel=1e-5)
    assert caplog.text.count("evaluation after") == 3
    assert list((tmp_path / "evaluation").glob("events*"))


@pytest.mark.slow
def test_an_evaluator_passes_over_what_is_damaged_or_removed(tf, tmp_path, monkeypatch, caplog):
    from tf2dist.training import evaluator_task

    strategy = tf2dist.make_strategy("one")
    fit(strategy, tf2dist.Checkpoint(tmp_path, every_steps=STEPS), epochs=2)
    first, last = list_checkpoints(tmp_path)
    os.truncate(os.path.join(first, "model.weights.h5"), 1000)
    monkeypatch.setattr(evaluator_task, "_new_checkpoints", lambda _: [first, str(tmp_path / "checkpoint-1"), last])
    monkeypatch.setattr(session, "_current", session.Session(role=Role.EVALUATOR))
    model = classifier(OPTIMIZERS["adam"]())
    history = tf2dist.fit(model, data(), validation_data=data(), callbacks=[tf2dist.Checkpoint(tmp_path)])
    assert history.epoch == [2 * STEPS]
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 1
    assert f"checkpoint-{STEPS} is damaged" in said[0]


def test_an_evaluator_evaluates_once_what_is_written_twice(tf, tmp_path, monkeypatch):
    """As the last checkpoint of an epoch is, when the epoch has ended; and again what has other weights."""
    from tf2dist.training import evaluator_task

    strategy = tf2dist.make_strategy("one")
    fit(strategy, tf2dist.Checkpoint(tmp_path / "one", every_steps=STEPS), epochs=2)
    fit(strategy, tf2dist.Checkpoint(tmp_path / "other", every_steps=STEPS), epochs=2, seed=8)
    first, last = list_checkpoints(tmp_path / "one")
    other = list_checkpoints(tmp_path / "other")[-1]
    monkeypatch.setattr(evaluator_task, "_new_checkpoints", lambda _: [first, last, last, other])
    monkeypatch.setattr(session, "_current", session.Session(role=Role.EVALUATOR))
    model = classifier(OPTIMIZERS["adam"]())
    history = tf2dist.fit(model, data(), validation_data=data(), callbacks=[tf2dist.Checkpoint(tmp_path / "one")])
    assert history.epoch == [STEPS, 2 * STEPS, 2 * STEPS]


def test_an_evaluator_evaluates_again_what_was_replaced(tmp_path, monkeypatch):
    """The last checkpoint is written again with averaged weights, under the same name."""
    from tf2dist.training import evaluator_task, status_file

    monkeypatch.setattr(evaluator_task, "_POLL_SECONDS", 0.01)
    path = tmp_path / "checkpoint-3"
    path.mkdir()
    status_file.write_status(str(tmp_path), "training")
    found = evaluator_task._new_checkpoints(str(tmp_path))
    monkeypatch.setattr(evaluator_task.time, "time", lambda: 0.0)
    assert next(found) == str(path)
    path.rename(tmp_path / "old")
    path.mkdir()
    assert next(found) == str(path)
    status_file.write_status(str(tmp_path), "done")
    assert next(found, None) is None


def test_an_evaluator_has_a_name_for_each_number(tf):
    from tf2dist.training import evaluator_task

    found = evaluator_task._numbers({"loss": 0.5, "f1": np.array([0.25, 0.75])})
    assert found == {"loss": 0.5, "f1_0": 0.25, "f1_1": 0.75}
