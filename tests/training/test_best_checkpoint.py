"""The best checkpoint by a value in the logs is kept and found."""

import os

import keras
import numpy as np
import pytest

import tf2dist
from tests.conftest import quickly, strategies
from tests.models import OPTIMIZERS, classifier, data, weights
from tests.training.interrupted import STEPS, Kill, Killed, fit
from tf2dist.errors import CheckpointError
from tf2dist.training.best_epoch import BestEpoch
from tf2dist.training.checkpoint_files import find_best, list_checkpoints, step_of

strategy = strategies(quickly("one"))


class Logs(keras.callbacks.Callback):
    """Gives each epoch a value of this name."""

    def __init__(self, values, name="val_loss"):
        super().__init__()
        self.values, self.name = values, name

    def on_epoch_end(self, epoch, logs=None):
        if self.values[epoch] is not None:
            logs[self.name] = self.values[epoch]


def steps(directory):
    return [step_of(path) for path in list_checkpoints(str(directory))]


def fitted(strategy, directory, values, *callbacks, name="val_loss", **kwargs):
    checkpoint = tf2dist.Checkpoint(directory, every_steps=STEPS, keep=1, keep_best=name, **kwargs)
    return fit(strategy, Logs(values, name), checkpoint, *callbacks, epochs=len(values))


@pytest.mark.parametrize(
    ("values", "name", "best"),
    [
        ([4.0, 2.0, 3.0, 2.0, 5.0], "val_loss", 2),
        ([0.2, 0.3, 0.1, 0.3], "val_accuracy", 2),
        ([None, 2.0, float("nan"), 3.0], "val_loss", 2),
        ([3.0, 2.0, 1.0], "val_loss", 3),
    ],
)
@pytest.mark.parametrize("in_background", [True, False])
def test_the_best_is_kept_beside_the_newest(strategy, tmp_path, values, name, best, in_background):
    """Its weights are those at the end of its epoch."""
    kept = {}
    at_ends = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: kept.update({epoch: weights(model)}))
    with strategy.scope():
        model = classifier(OPTIMIZERS["adam"]())
    checkpoint = tf2dist.Checkpoint(tmp_path, every_steps=5, keep=1, keep_best=name, in_background=in_background)
    tf2dist.fit(
        model, data(), epochs=len(values), batch_size=16, seed=3, callbacks=[Logs(values, name), checkpoint, at_ends]
    )
    assert steps(tmp_path) == sorted({best * STEPS, len(values) * STEPS})
    fresh = classifier(OPTIMIZERS["adam"]())
    assert tf2dist.load_checkpoint(fresh, tmp_path, best=name) == best * STEPS
    for ours, theirs in zip(weights(fresh), kept[best - 1], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert tf2dist.load_checkpoint(fresh, tmp_path) == len(values) * STEPS


def test_the_next_job_knows_the_best(tf, tmp_path):
    """Also one that was killed just after it."""
    one = tf2dist.make_strategy("one")
    with pytest.raises(Killed):
        fitted(one, tmp_path, [3.0, 1.0, 2.0, 2.0], Kill(3 * STEPS + 2))
    assert steps(tmp_path) == [2 * STEPS, 3 * STEPS]
    fitted(one, tmp_path, [None, None, None, 1.5, 1.2])
    assert steps(tmp_path) == [2 * STEPS, 5 * STEPS]
    fitted(one, tmp_path, [None] * 5 + [0.5, 0.7])
    assert steps(tmp_path) == [6 * STEPS, 7 * STEPS]


def test_weights_that_a_callback_puts_back_are_not_those_of_the_last_epoch(tf, tmp_path):
    """The newest checkpoint has the weights of epoch 2, and not what epoch 4 has in its logs; the best is that of 2."""
    stops = keras.callbacks.EarlyStopping("val_loss", patience=9, restore_best_weights=True)
    one = tf2dist.make_strategy("one")
    with one.scope():
        model = classifier(OPTIMIZERS["adam"]())
    tf2dist.fit(
        model, data(), epochs=4, batch_size=16,
        callbacks=[Logs([3.0, 1.0, 2.0, 2.5]), stops, tf2dist.Checkpoint(tmp_path, keep=1, keep_best="val_loss")],
    )  # fmt: skip
    assert steps(tmp_path) == [2 * STEPS, 4 * STEPS]
    best, last = (classifier(OPTIMIZERS["adam"]()) for _ in range(2))
    assert tf2dist.load_checkpoint(best, tmp_path, best="val_loss") == 2 * STEPS
    assert tf2dist.load_checkpoint(last, tmp_path) == 4 * STEPS
    for a, b, c in zip(weights(best), weights(last), weights(model), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)
    assert find_best(str(tmp_path), "val_loss", "max") == str(tmp_path / f"checkpoint-{2 * STEPS}")


def test_logs_without_it_are_said(tf, tmp_path, caplog):
    fitted(tf2dist.make_strategy("one"), tmp_path, [None, 2.0])
    assert "epoch 1 has no val_loss, by which the best checkpoint is kept; it has accuracy, loss" in caplog.text
    assert "epoch 2 has no" not in caplog.text


@pytest.mark.parametrize(
    ("name", "mode", "expected"),
    [
        ("val_loss", "auto", "min"),
        ("val_accuracy", "auto", "max"),
        ("sparse_categorical_accuracy", "auto", "max"),
        ("mean_squared_error", "auto", "min"),
        ("wer", "min", "min"),
        ("val_loss", "max", "max"),
    ],
)
def test_what_is_better(name, mode, expected):
    best = BestEpoch(name, mode)
    assert best.mode == expected
    assert not best.is_improved_by(float("nan"))
    assert best.is_improved_by(1.0)
    best.value = 1.0
    assert best.is_improved_by(0.5) == (expected == "min")
    assert best.is_improved_by(1.5) == (expected == "max")
    assert not best.is_improved_by(1.0)


@pytest.mark.parametrize(("name", "mode"), [("wer", "auto"), ("loss_accuracy", "auto"), ("val_loss", "least")])
def test_what_does_not_say_what_is_better(tmp_path, name, mode):
    with pytest.raises(ValueError, match=r"mode must be|give mode='min' or mode='max'"):
        tf2dist.Checkpoint(tmp_path, keep_best=name, mode=mode)


# load_checkpoint


def test_a_model_that_is_not_compiled_gets_the_weights(tf, tmp_path):
    model, _ = fit(tf2dist.make_strategy("mirrored", replicas=2), tf2dist.Checkpoint(tmp_path), epochs=1)
    plain = keras.models.clone_model(model)
    (path,) = list_checkpoints(str(tmp_path))
    assert tf2dist.load_checkpoint(plain, path) == STEPS
    for ours, theirs in zip(plain.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_newest_whole_one_is_loaded(tf, tmp_path, caplog):
    fit(tf2dist.make_strategy("one"), tf2dist.Checkpoint(tmp_path, every_steps=STEPS), epochs=2)
    os.remove(tmp_path / f"checkpoint-{2 * STEPS}" / "state.json")
    assert tf2dist.load_checkpoint(classifier(OPTIMIZERS["adam"]()), tmp_path) == STEPS
    assert f"checkpoint-{2 * STEPS} is damaged" in caplog.text


def test_what_cannot_be_loaded(tf, tmp_path):
    fresh = classifier(OPTIMIZERS["adam"]())
    with pytest.raises(CheckpointError, match="there is no checkpoint in /nowhere"):
        tf2dist.load_checkpoint(fresh, "/nowhere")
    fit(tf2dist.make_strategy("one"), tf2dist.Checkpoint(tmp_path), epochs=1)
    with pytest.raises(CheckpointError, match=r"no checkpoint in \S+ has val_loss in its logs"):
        tf2dist.load_checkpoint(fresh, tmp_path, best="val_loss")
    with pytest.raises(CheckpointError, match="is of another optimizer"):
        tf2dist.load_checkpoint(classifier(OPTIMIZERS["sgd"]()), tmp_path)
    with pytest.raises(CheckpointError, match="is of another model"):
        tf2dist.load_checkpoint(classifier(OPTIMIZERS["adam"](), keras.layers.Dense(3)), tmp_path)
    with pytest.raises(ValueError, match="needs a model that is built"):
        tf2dist.load_checkpoint(keras.Sequential([keras.layers.Dense(3)]), tmp_path)
    path = tmp_path / f"checkpoint-{STEPS}"
    (path / "model.weights.h5").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"is damaged: model\.weights\.h5 is not what was written"):
        tf2dist.load_checkpoint(fresh, path)
