"""`tf2dist.Checkpoint`: training goes on where it was, checkpoints are whole or not there, an evaluator follows."""

import functools
import json
import logging
import os

import keras
import numpy as np
import pytest

import tf2dist
from tests.conftest import ONE_QUICKLY_CENTRAL_RARELY, every_third, sampled, strategies
from tests.models import OPTIMIZERS, classifier, data, weights
from tests.training.interrupted import BATCH, STEPS, Kill, Killed, fit
from tf2dist.errors import CheckpointError
from tf2dist.execution.replica_dispatcher import ReplicaDispatcher
from tf2dist.training import checkpoint_files
from tf2dist.training.checkpoint_files import list_checkpoints
from tf2dist.training.status_file import read_status

strategy = strategies(ONE_QUICKLY_CENTRAL_RARELY)


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


@pytest.mark.slow
@pytest.mark.parametrize("place", [0.3, 0.6, 0.95])
def test_one_byte_anywhere_in_a_large_file(tf, tmp_path, place):
    """Of weights of some megabytes, which are compared as a whole."""

    def train(epochs):
        model = keras.Sequential([keras.Input((900,)), keras.layers.Dense(1000)])
        model.compile("sgd", "mse")
        x, y = np.ones([4, 900], "float32"), np.zeros([4, 1000], "float32")
        callback = tf2dist.Checkpoint(tmp_path, every_steps=1)
        return tf2dist.fit(model, x, y, batch_size=4, epochs=epochs, callbacks=[callback], verbose=0)

    train(2)
    path = os.path.join(list_checkpoints(tmp_path)[-1], "model.weights.h5")
    assert os.path.getsize(path) > 3_000_000
    with open(path, "r+b") as file:
        file.seek(int(place * os.path.getsize(path)))
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    assert train(2).epoch == [0, 1]  # the first one's end had not come when the checkpoint before was written


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


def test_a_directory_that_is_a_url(tf, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"directory=s3://bucket/x is a URL, .*; mount it and give the path"):
        tf2dist.Checkpoint("s3://bucket/x")
    assert os.listdir(tmp_path) == []


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


class OwnStep(keras.Sequential):
    """With a step that leaves the end of an epoch no sums to be saved."""

    def train_step(self, batch):
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=batch[1], y_pred=self(batch[0], training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


@every_third("first", ["the checkpoint", "the others"])
@every_third("kind", ["best weights", "best weights, own step", "own callback"])
def test_the_last_one_holds_what_callbacks_have_left(tf, tmp_path, first, kind):
    """The end of training is also a step at which it is due, so that the weights before the end were saved."""
    x, y = data()
    model = classifier(OPTIMIZERS["sgd"]())
    if kind == "best weights, own step":
        model = OwnStep([keras.Input(x.shape[1:]), *model.layers])
        model.compile(OPTIMIZERS["sgd"](), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    if kind.startswith("best weights"):  # those of the first epoch: from then on the monitored value grows
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


@pytest.mark.slow
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
