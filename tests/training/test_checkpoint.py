"""`tf2dist.Checkpoint`: training goes on where it was, checkpoints are whole or not there, an evaluator follows."""

import functools
import json
import logging
import os
import shutil
import socket
import subprocess
import threading
import time

import keras
import numpy as np
import pytest

import tf2dist
from tests.conftest import every_third, quickly, sampled, strategies
from tests.models import OPTIMIZERS, classifier, data, weights
from tests.training.interrupted import BATCH, STEPS, Kill, Killed, fit
from tf2dist.cluster.heartbeat import TaskLostError
from tf2dist.cluster.roles import Role
from tf2dist.errors import CheckpointError
from tf2dist.execution.replica_dispatcher import ReplicaDispatcher
from tf2dist.runtime import session
from tf2dist.training import checkpoint_files
from tf2dist.training.checkpoint_files import list_checkpoints
from tf2dist.training.status_file import read_status, write_status

strategy = strategies(quickly("one"))


@pytest.mark.slow
def test_random_numbers_go_on_where_they_were(strategy, tmp_path):
    """Those of dropout, which Keras leaves out of a model's weights: it is the same training, bit for bit."""

    def train(epochs, *callbacks):
        with strategy.scope():
            model = classifier(OPTIMIZERS["adam"](), keras.layers.Dropout(0.3, seed=4))
        tf2dist.fit(model, data(), batch_size=BATCH, seed=3, epochs=epochs, callbacks=list(callbacks), verbose=0)
        return weights(model)

    expected = train(2)
    train(1, tf2dist.Checkpoint(tmp_path))
    for ours, theirs in zip(train(2, tf2dist.Checkpoint(tmp_path)), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "at",
    [pytest.param(STEPS, marks=pytest.mark.slow), STEPS + 3, pytest.param(3 * STEPS + 5, marks=pytest.mark.exhaustive)],
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


@pytest.mark.slow
@pytest.mark.parametrize("metrics", [[], ["accuracy", "sparse_categorical_crossentropy"]])
def test_goes_on_with_other_metrics(tf, tmp_path, caplog, metrics):
    """In the middle of an epoch, whose logs then are those of the batches that were left."""
    strategy = tf.distribute.get_strategy()
    expected, _ = fit(strategy, epochs=2)
    with pytest.raises(Killed):
        fit(strategy, tf2dist.Checkpoint(tmp_path, every_steps=1), Kill(STEPS + 2))
    model = classifier(OPTIMIZERS["adam"]())
    model.compile(model.optimizer, model.loss, metrics=metrics)
    with caplog.at_level(logging.WARNING, "tf2dist"):
        logs = tf2dist.fit(
            model, data(), epochs=2, batch_size=BATCH, seed=3, callbacks=[tf2dist.Checkpoint(tmp_path)]
        ).history
    assert f"the logs of this epoch are of its batches from step {STEPS + 1} on" in caplog.text
    assert len(logs) == 1 + len(metrics)
    assert np.isfinite(list(logs.values())).all()
    np.testing.assert_allclose(
        np.concatenate([w.ravel() for w in weights(model)]),
        np.concatenate([w.ravel() for w in weights(expected)]),
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.slow
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


def test_a_finished_training_is_not_trained_again(tf, tmp_path, caplog):
    strategy = tf2dist.make_strategy("one")
    model, _ = fit(strategy, tf2dist.Checkpoint(tmp_path))
    with caplog.at_level(logging.INFO, "tf2dist"):
        again, history = fit(strategy, tf2dist.Checkpoint(tmp_path))
    assert history == {}
    (said,) = [record.getMessage() for record in caplog.records if "is complete" in record.getMessage()]
    assert f"checkpoint-{4 * STEPS}" in said
    assert tf2dist.updates(again) == 4 * STEPS
    for ours, theirs in zip(weights(again), weights(model), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    more, history = fit(strategy, tf2dist.Checkpoint(tmp_path), epochs=6)
    assert len(history["loss"]) == 2
    assert tf2dist.updates(more) == 6 * STEPS


@pytest.mark.slow
def test_other_batches_in_an_epoch_are_said(tf, tmp_path, caplog):
    """Another batch size, or more data: the same step is in another epoch then."""
    strategy = tf2dist.make_strategy("one")
    fit(strategy, tf2dist.Checkpoint(tmp_path), epochs=2)
    with caplog.at_level(logging.WARNING, "tf2dist"):
        fit(strategy, tf2dist.Checkpoint(tmp_path), epochs=3)
    assert not caplog.records
    with caplog.at_level(logging.WARNING, "tf2dist"):
        model, _ = fit(strategy, tf2dist.Checkpoint(tmp_path), epochs=3, batch_size=2 * BATCH)
    (said,) = [record.getMessage() for record in caplog.records]
    assert f"checkpoint-{3 * STEPS} is of epochs of {STEPS} updates" in said
    assert f"has {-(-STEPS // 2)}" in said
    assert tf2dist.updates(model) == 3 * STEPS


@pytest.mark.slow
def test_more_updates_in_the_only_epoch_are_not_said(tf, tmp_path, caplog):
    """As a training without end counts them, which goes on to a later update."""
    strategy = tf2dist.make_strategy("one")
    fit(strategy, tf2dist.Checkpoint(tmp_path), epochs=1, steps_per_epoch=4)
    with caplog.at_level(logging.WARNING, "tf2dist"):
        model, _ = fit(strategy, tf2dist.Checkpoint(tmp_path), epochs=1, steps_per_epoch=STEPS)
    assert not caplog.records
    assert tf2dist.updates(model) == STEPS


@every_third(("every", "keep", "left"), [(5, 3, [15, 20, 21]), (7, 2, [14, 21]), (100, 3, [21])])
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


@pytest.mark.slow
@pytest.mark.parametrize("every", [2, 1000])
def test_none_is_written_while_batches_before_its_step_are_missing(tf, tmp_path, monkeypatch, every):
    """As when a worker was lost just before a callback has stopped the training."""
    monkeypatch.setattr(ReplicaDispatcher, "has_gaps", property(lambda self: self.global_step < 5))

    class Stops(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = True

    checkpoint = tf2dist.Checkpoint(tmp_path, every_steps=every, keep=100)
    fit(tf2dist.make_strategy("one"), Stops(), checkpoint, steps_per_epoch=50, steps_per_execution=1)
    assert [int(path.rpartition("-")[2]) for path in list_checkpoints(str(tmp_path))] == [5]


@pytest.mark.slow
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


def _truncate(path):
    with open(path, "r+b") as file:
        file.truncate(100)


def _fill_with_garbage(path):
    with open(path, "wb") as file:
        file.write(b"\xff\x00 garbage" * 10)


def _change_one_byte(path):
    with open(path, "r+b") as file:
        file.seek(-9, os.SEEK_END)
        byte = file.read(1)
        file.seek(-9, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))


def _write_other_json(path):
    with open(path, "w") as file:
        json.dump([1, 2], file)


DAMAGES = {
    "truncated weights": ("model.weights.h5", _truncate),
    "no weights": ("model.weights.h5", os.remove),
    "one byte of the weights": ("model.weights.h5", _change_one_byte),
    "truncated state": ("state.json", _truncate),
    "no state": ("state.json", os.remove),
    "garbage for a state": ("state.json", _fill_with_garbage),
    "another state": ("state.json", _write_other_json),
}


def _names(directory):
    return [os.path.basename(path) for path in list_checkpoints(directory)]


@pytest.mark.parametrize("what", sampled(DAMAGES, ["truncated state"], [d for d in DAMAGES if d != "truncated state"]))
def test_a_damaged_checkpoint_is_said_and_the_one_before_is_used(tf, tmp_path, caplog, what):
    name, damage = DAMAGES[what]
    strategy = tf2dist.make_strategy("one")
    fit(strategy, tf2dist.Checkpoint(tmp_path, every_steps=STEPS), epochs=2)
    damage(os.path.join(list_checkpoints(tmp_path)[-1], name))
    model, history = fit(strategy, tf2dist.Checkpoint(tmp_path), epochs=2)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 1
    assert f"checkpoint-{2 * STEPS} is damaged" in said[0]
    assert "\n" not in said[0]
    assert len(history["loss"]) == 2  # one was written before the first epoch's callbacks, which are called again
    assert tf2dist.updates(model) == 2 * STEPS
    assert _names(tmp_path) == [f"checkpoint-{n * STEPS}" for n in (1, 2)]


@pytest.mark.parametrize("keep", sampled([1, 2], (), [1]))
def test_a_damaged_checkpoint_is_none_of_those_that_are_kept(tf, tmp_path, keep):
    """It is of a later step than those that are written next, and they stay; one that is killed goes on from them."""
    strategy = tf2dist.make_strategy("one")
    fit(strategy, tf2dist.Checkpoint(tmp_path, every_steps=STEPS), epochs=3)
    _truncate(os.path.join(list_checkpoints(tmp_path)[-1], "model.weights.h5"))
    with pytest.raises(Killed):
        fit(strategy, tf2dist.Checkpoint(tmp_path, every_steps=1, keep=keep), Kill(2 * STEPS + 3))
    # The third update ends with the exception, and what it has made is not saved any more.
    assert _names(tmp_path) == [f"checkpoint-{2 * STEPS + n}" for n in (1, 2)][-keep:]
    assert (tmp_path / f"damaged-checkpoint-{3 * STEPS}").is_dir()
    callback = tf2dist.Checkpoint(tmp_path, every_steps=1, keep=keep)
    begin, found = callback.begin, []
    callback.begin = lambda *args: found.append(begin(*args)) or found[-1]
    model, _ = fit(strategy, callback)
    assert found[0].global_step == 2 * STEPS + 2
    assert tf2dist.updates(model) == 4 * STEPS
    assert _names(tmp_path) == [f"checkpoint-{4 * STEPS - n}" for n in range(keep)][::-1]


@pytest.mark.slow
def test_where_all_are_damaged_training_begins_with_the_weights_it_had(tf, tmp_path, caplog):
    strategy = tf2dist.make_strategy("one")
    fit(strategy, tf2dist.Checkpoint(tmp_path), epochs=1)
    for path in list_checkpoints(tmp_path):
        _change_one_byte(os.path.join(path, "model.weights.h5"))
    model, _ = fit(strategy, tf2dist.Checkpoint(tmp_path), epochs=2)
    assert "training begins anew" in caplog.records[-1].getMessage()
    assert "the one before" not in caplog.text
    expected, _ = fit(strategy, epochs=2)
    for ours, theirs in zip(weights(model), weights(expected), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_what_was_to_be_replaced_is_put_back(tf, tmp_path):
    """Of a job that was killed between two renames of a checkpoint of the same step."""
    fit(tf2dist.make_strategy("one"), tf2dist.Checkpoint(tmp_path), epochs=1)
    (path,) = list_checkpoints(tmp_path)
    os.rename(path, tmp_path / f".checkpoint-{STEPS}.replaced")
    _, history = fit(tf2dist.make_strategy("one"), tf2dist.Checkpoint(tmp_path), epochs=1)
    assert history == {}
    assert sorted(os.listdir(tmp_path)) == [f"checkpoint-{STEPS}", "status.json"]


@pytest.mark.slow
def test_the_last_good_one_stays_until_another_is_in_its_place(tf, tmp_path, monkeypatch):
    """A checkpoint of the same step, that of the averages, cannot be put in its place."""
    model = classifier(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9))
    rename = os.rename

    def broken(source, target):
        if str(source).endswith(".part") and os.path.isdir(tmp_path / f".checkpoint-{STEPS}.replaced"):
            raise OSError(5, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", broken)
    with pytest.raises(CheckpointError, match="Input/output error"):
        tf2dist.fit(model, data(), batch_size=BATCH, callbacks=[tf2dist.Checkpoint(tmp_path, every_steps=1, keep=1)])
    assert sorted(os.listdir(tmp_path)) == [f"checkpoint-{STEPS}", "status.json"]


@pytest.mark.slow
def test_a_model_whose_layers_are_elsewhere_is_refused(tf, tmp_path):
    """Its variables have the same shapes, and Keras loads what it finds; that must not be trained on, nor set aside."""
    strategy = tf2dist.make_strategy("one")
    fit(strategy, tf2dist.Checkpoint(tmp_path, every_steps=STEPS), epochs=2)
    plain = classifier(OPTIMIZERS["adam"]())
    with strategy.scope():
        inner = keras.Sequential([keras.Input(plain.input_shape[1:]), keras.layers.Dense(8, "tanh")])
        model = keras.Sequential([keras.Input(plain.input_shape[1:]), inner, keras.layers.Dense(3)])
        model.compile(OPTIMIZERS["adam"](), plain.loss)
    with pytest.raises(CheckpointError, match=rf"checkpoint-{2 * STEPS} cannot be restored; it may be of another"):
        tf2dist.fit(model, data(), callbacks=[tf2dist.Checkpoint(tmp_path)])
    assert _names(tmp_path) == [f"checkpoint-{n * STEPS}" for n in (1, 2)]


@pytest.mark.slow
def test_an_older_checkpoint_without_a_checksum(tf, tmp_path):
    strategy = tf2dist.make_strategy("one")
    fit(strategy, tf2dist.Checkpoint(tmp_path, every_steps=STEPS), epochs=2)
    for path in list_checkpoints(tmp_path):
        with open(os.path.join(path, "state.json")) as file:
            state = json.load(file)
        del state["weights_sha256"]
        with open(os.path.join(path, "state.json"), "w") as file:
            json.dump(state, file)
    _truncate(os.path.join(list_checkpoints(tmp_path)[-1], "model.weights.h5"))
    _, history = fit(strategy, tf2dist.Checkpoint(tmp_path), epochs=2)
    assert len(history["loss"]) == 2  # of the epoch whose callbacks are called again, and the next


def test_a_checkpoint_that_cannot_be_read_now_ends_the_job(tf, tmp_path, monkeypatch):
    """It is no damaged one, which would be set aside."""
    strategy = tf2dist.make_strategy("one")
    fit(strategy, tf2dist.Checkpoint(tmp_path), epochs=1)
    error = PermissionError(13, "Permission denied")

    def refuse(path):
        raise error

    monkeypatch.setattr(checkpoint_files, "_sha256", refuse)
    with pytest.raises(CheckpointError, match=r"checkpoint-\d+ cannot be read: Permission denied"):
        fit(strategy, tf2dist.Checkpoint(tmp_path), epochs=2)
    assert _names(tmp_path) == [f"checkpoint-{STEPS}"]


def test_a_checkpoint_of_another_model_is_refused(tf, tmp_path):
    strategy = tf2dist.make_strategy("one")
    fit(strategy, tf2dist.Checkpoint(tmp_path), epochs=1)
    before = {path: os.stat(path).st_mtime for path in list_checkpoints(tmp_path)}
    with strategy.scope():
        model = classifier(OPTIMIZERS["adam"](), keras.layers.Dense(5))
    unlike = r"is of another model, name another directory or remove it: .* in the place of \S*kernel, of shape \["
    with pytest.raises(CheckpointError, match=unlike):
        tf2dist.fit(model, data(), callbacks=[tf2dist.Checkpoint(tmp_path)])
    unlike = r"is of another optimizer, .*: it has 10 variables, and the SGD here has 2$"
    with pytest.raises(CheckpointError, match=unlike):
        fit(strategy, tf2dist.Checkpoint(tmp_path), optimizer="sgd", epochs=1)
    assert before == {path: os.stat(path).st_mtime for path in list_checkpoints(tmp_path)}


def test_a_full_disk(tf, tmp_path, monkeypatch):
    """What was saved before stays, and no half of a checkpoint is left."""
    strategy = tf2dist.make_strategy("one")
    fit(strategy, tf2dist.Checkpoint(tmp_path), epochs=1)

    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_files, "flush", full)
    with pytest.raises(OSError, match="No space left") as raised:
        fit(strategy, tf2dist.Checkpoint(tmp_path), epochs=2)
    assert sorted(os.listdir(tmp_path)) == [f"checkpoint-{STEPS}", "status.json"]
    status, line = session.current().explain(raised.value)
    assert status == 1
    assert f"checkpoint-{2 * STEPS} cannot be written: No space left on device" in line


@pytest.mark.slow
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")  # as which pytest has HDF5's tracebacks
@pytest.mark.parametrize("left", [4096, 65536])
def test_a_disk_that_is_really_full(tf, tmp_path, capfd, left):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        strategy = tf2dist.make_strategy("one")
        fit(strategy, tf2dist.Checkpoint(disk), epochs=1)
        (disk / "filler").write_bytes(b"0" * (os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize - left))
        capfd.readouterr()
        with pytest.raises(
            CheckpointError, match=r"checkpoint-\d+ cannot be written: No space left on device"
        ) as raised:
            fit(strategy, tf2dist.Checkpoint(disk), epochs=2)
        assert "\n" not in str(raised.value)
        assert "Traceback" not in capfd.readouterr().err
        assert [n for n in sorted(os.listdir(disk)) if n != "filler"] == [f"checkpoint-{STEPS}", "status.json"]
        os.remove(disk / "filler")
        model, history = fit(strategy, tf2dist.Checkpoint(disk), epochs=2)
        assert (len(history["loss"]), tf2dist.updates(model)) == (1, 2 * STEPS)
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("wrong", [{"every_steps": 0}, {"every_seconds": -1.0}, {"keep": 0}])
def test_numbers_that_make_no_sense(tf, tmp_path, wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=f"{name} must be positive, found"):
        tf2dist.Checkpoint(tmp_path, **wrong)


@pytest.mark.parametrize("wrong", [{"every_steps": 1.5}, {"every_steps": "10"}, {"keep": 2.5}, {"keep": True}])
def test_numbers_that_are_not_whole(tf, tmp_path, wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=f"{name} must be a whole number, found"):
        tf2dist.Checkpoint(tmp_path, **wrong)


@pytest.mark.parametrize("full", ["from the beginning", "at the end"])
def test_a_full_disk_for_the_status(tf, tmp_path, monkeypatch, caplog, full):
    """Nobody needs it where a checkpoint is not required."""
    from tf2dist.training import checkpoint, one_training_per_directory

    def no_room(directory, state, **kwargs):
        if full == "from the beginning" or state == "done":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(one_training_per_directory, "write_status", no_room)
    monkeypatch.setattr(checkpoint, "write_status", no_room)
    one = tf2dist.make_strategy("one")
    with caplog.at_level(logging.WARNING, "tf2dist"):
        model, _ = fit(one, tf2dist.Checkpoint(tmp_path, required=False), epochs=1)
    assert tf2dist.updates(model) == STEPS
    assert len(list_checkpoints(tmp_path)) == 1
    assert [r.getMessage() for r in caplog.records if "status.json cannot be written: No space left" in r.getMessage()]
    with pytest.raises(CheckpointError, match=r"status\.json cannot be written: No space left on device"):
        fit(one, tf2dist.Checkpoint(tmp_path), epochs=2)


def test_another_training_that_is_under_way_is_said_at_once(tf, tmp_path, caplog):
    with subprocess.Popen(["sleep", "100"]) as process:
        write_status(str(tmp_path), "training", writer=f"process {process.pid} of {socket.gethostname()}")
        fit(tf2dist.make_strategy("one"), tf2dist.Checkpoint(tmp_path), epochs=1)
        process.kill()
    assert f"process {process.pid} of {socket.gethostname()} writes checkpoints to {tmp_path} too" in caplog.text
    caplog.clear()
    write_status(str(tmp_path), "training", writer=f"process {process.pid} of {socket.gethostname()}")
    fit(tf2dist.make_strategy("one"), tf2dist.Checkpoint(tmp_path), epochs=2)
    assert "too" not in caplog.text  # that one is dead


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("how", ["fit", "load_checkpoint"])
def test_a_layer_makes_constants_of_what_was_read(tf, tmp_path, sharded, how):
    """`Normalization` those of its mean, which it was not adapted to in the next job."""
    x, y = data()

    def made(adapts):
        normalization = keras.layers.Normalization()
        model = keras.Sequential([keras.Input(x.shape[1:]), normalization, keras.layers.Dense(3)])
        if adapts:
            normalization.adapt(3 * x + 5)
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(True))
        return model

    first, second = made(True), made(False)
    tf2dist.fit(first, x, y, callbacks=[tf2dist.Checkpoint(tmp_path, sharded=sharded)])
    if how == "fit":
        tf2dist.fit(second, x, y, callbacks=[tf2dist.Checkpoint(tmp_path, sharded=sharded)])
    else:
        tf2dist.load_checkpoint(second, tmp_path)
    np.testing.assert_allclose(second.predict(x, verbose=0), first.predict(x, verbose=0), rtol=1e-6)


@pytest.mark.parametrize("sharded", [False, True])
def test_other_optimizers_that_a_model_holds(tf, tmp_path, sharded):
    """Those of a GAN, say: without their variables it would begin anew, and what is good is not set aside for that."""

    class Two(keras.Sequential):
        second = None

    def made():
        model = Two([keras.Input((12,)), keras.layers.Dense(3)])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(True))
        return model

    first = made()
    tf2dist.fit(first, data(), callbacks=[tf2dist.Checkpoint(tmp_path, sharded=sharded)])
    second = made()
    second.second = keras.optimizers.Adam()
    second.second.build(second.trainable_variables)
    before = list_checkpoints(tmp_path)
    with pytest.raises(CheckpointError, match="is of a model with other optimizers"):
        tf2dist.load_checkpoint(second, tmp_path)
    with pytest.raises(CheckpointError, match="is of a model with other optimizers"):
        tf2dist.fit(second, data(), callbacks=[tf2dist.Checkpoint(tmp_path, sharded=sharded)])
    assert list_checkpoints(tmp_path) == before


@pytest.mark.parametrize("sharded", [False, True])
def test_an_optimizer_that_is_built_is_not_built_again(tf, tmp_path, sharded):
    """A `LossScaleOptimizer` would make its variables twice."""

    def made():
        model = classifier(OPTIMIZERS["adam"]())
        model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()), model.loss)
        return model

    model, other = made(), made()
    tf2dist.fit(model, data(), callbacks=[tf2dist.Checkpoint(tmp_path, sharded=sharded)])
    for each in (model, other, other):
        steps = tf2dist.load_checkpoint(each, tmp_path)
    tf2dist.fit(other, data(), epochs=2, callbacks=[tf2dist.Checkpoint(tmp_path, sharded=sharded)])
    assert tf2dist.updates(other) == 2 * steps


def test_averages_of_a_train_step_of_ones_own_are_in_the_last_one(tf, tmp_path):
    """Also where one of the last step was written before they were put in the weights' place."""

    class Own(keras.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    def made():
        model = Own([keras.Input((12,)), keras.layers.Dense(3)])
        model.compile(keras.optimizers.Adam(use_ema=True), keras.losses.SparseCategoricalCrossentropy(True))
        return model

    model, last = made(), made()
    tf2dist.fit(model, data(), batch_size=BATCH, callbacks=[tf2dist.Checkpoint(tmp_path, every_steps=STEPS)])
    assert tf2dist.load_checkpoint(last, tmp_path) == STEPS
    for ours, theirs in zip(weights(last), weights(model), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("happens", ["removed", "replaced"])
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


def test_a_directory_that_is_a_url(tf, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"directory=s3://bucket/x is a URL, .*; mount it and give the path"):
        tf2dist.Checkpoint("s3://bucket/x")
    assert os.listdir(tmp_path) == []


def test_an_evaluator_waits_as_long_as_the_others_do(tmp_path, monkeypatch):
    from tf2dist.runtime import session
    from tf2dist.training import evaluator_task

    monkeypatch.setenv("TF2DIST_START_TIMEOUT", "0.3")
    with pytest.raises(TaskLostError, match=r"no training has begun in .* within 0\.3 s"):
        next(evaluator_task._new_checkpoints(str(tmp_path)))
    monkeypatch.setattr(session, "_current", session.Session(start_timeout=0.2))  # what `join` was told
    with pytest.raises(TaskLostError, match=r"within 0\.2 s"):
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
    assert found["loss"] == pytest.approx(history.history["val_loss"], rel=1e-5)
    assert caplog.text.count("evaluation after") == 3
    assert list((tmp_path / "evaluation").glob("events*"))


@pytest.mark.slow
def test_an_evaluator_passes_over_what_is_damaged_or_removed(tf, tmp_path, monkeypatch, caplog):
    from tf2dist.training import evaluator_task

    strategy = tf2dist.make_strategy("one")
    fit(strategy, tf2dist.Checkpoint(tmp_path, every_steps=STEPS), epochs=2)
    first, last = list_checkpoints(tmp_path)
    _truncate(os.path.join(first, "model.weights.h5"))
    monkeypatch.setattr(evaluator_task, "_new_checkpoints", lambda _: [first, str(tmp_path / "checkpoint-1"), last])
    monkeypatch.setattr(session, "_current", session.Session(role=Role.EVALUATOR))
    model = classifier(OPTIMIZERS["adam"]())
    history = tf2dist.fit(model, data(), validation_data=data(), callbacks=[tf2dist.Checkpoint(tmp_path)])
    assert history.epoch == [2 * STEPS]
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 1
    assert f"checkpoint-{STEPS} is damaged" in said[0]


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


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_two_trainings_in_one_directory_are_said(tmp_path, caplog, monkeypatch):
    """By both, once; one alone, and one after another that was killed, say nothing."""
    from tf2dist.training import one_training_per_directory as module

    monkeypatch.setattr(module, "STATUS_SECONDS", 0.01)
    module.write_status(str(tmp_path), "training", writer="process 1 of a host that is gone")
    with caplog.at_level(logging.WARNING, "tf2dist"):
        ours = module.StatusUpdates(str(tmp_path))
        time.sleep(0.5)
        assert not caplog.records
        monkeypatch.setattr(module.socket, "gethostname", lambda: "elsewhere")
        theirs = module.StatusUpdates(str(tmp_path))
        deadline = time.monotonic() + 30
        while len(caplog.records) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.5)
        ours.end("done")
        theirs.end("done")
    said = sorted(record.getMessage() for record in caplog.records)
    assert len(said) == 2
    assert f"of {socket.gethostname()} writes checkpoints to {tmp_path} too" in "".join(said)
    assert f"process {os.getpid()} of elsewhere writes" in said[0] + said[1]


def test_an_evaluator_has_a_name_for_each_number(tf):
    from tf2dist.training import evaluator_task

    found = evaluator_task._numbers({"loss": 0.5, "f1": np.array([0.25, 0.75])})
    assert found == {"loss": 0.5, "f1_0": 0.25, "f1_1": 0.75}


@every_third("first", ["the checkpoint", "the others"])
@every_third("kind", ["best weights", "own callback"])
def test_the_last_one_holds_what_callbacks_have_left(tf, tmp_path, first, kind):
    """The end of training is also a step at which it is due, so that the weights before the end were saved."""
    x, y = data()
    model = classifier(OPTIMIZERS["sgd"]())
    if kind == "best weights":  # those of the first epoch: from then on the monitored value grows
        other = keras.callbacks.EarlyStopping("learned", mode="min", patience=5, restore_best_weights=True)
        grows = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(learned=epoch))
        others = [grows, other]
    else:
        halved = lambda logs: model.set_weights([w / 2 for w in model.get_weights()])  # noqa: E731
        others = [keras.callbacks.LambdaCallback(on_train_end=halved)]
    checkpoint = tf2dist.Checkpoint(str(tmp_path), every_steps=len(x) // 10)
    callbacks = [checkpoint, *others] if first == "the checkpoint" else [*others, checkpoint]
    tf2dist.fit(model, (x[: len(x) // 10 * 10], y[: len(x) // 10 * 10]), batch_size=10, epochs=3, callbacks=callbacks)
    newest = checkpoint_files.list_checkpoints(str(tmp_path))[-1]
    assert checkpoint_files.step_of(newest) == tf2dist.updates(model)
    other = classifier(OPTIMIZERS["sgd"]())
    other.optimizer.build(other.trainable_variables)
    checkpoint_files.read_checkpoint(other, newest)
    for ours, theirs in zip(weights(model), weights(other), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def rate(model):
    return float(keras.ops.convert_to_numpy(model.optimizer.learning_rate))


@pytest.mark.parametrize("every_steps", [3, STEPS])
def test_a_schedule_of_rates_goes_on_where_it_was(strategy, tmp_path, every_steps):
    """A hook at the beginning of an epoch, or a scheduler, that goes by the last rate has done so before."""
    halves = functools.partial(keras.callbacks.LearningRateScheduler, lambda epoch, rate: rate / 2)
    expected, _ = fit(strategy, halves(), optimizer="sgd")
    checkpoint = functools.partial(tf2dist.Checkpoint, tmp_path, every_steps=every_steps)
    with pytest.raises(Killed):
        fit(strategy, halves(), checkpoint(), Kill(STEPS + 4), optimizer="sgd")
    model, _ = fit(strategy, halves(), checkpoint(), optimizer="sgd")
    assert rate(model) == pytest.approx(rate(expected))
    for ours, theirs in zip(weights(model), weights(expected), strict=True):
        np.testing.assert_array_equal(ours, theirs)
