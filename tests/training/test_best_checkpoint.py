"""The best checkpoint by a value in the logs is kept and found."""

import os

import keras
import numpy as np
import pytest

import tf2dist
from tests.conftest import ONE_QUICKLY_CENTRAL_RARELY, every_third, strategies
from tests.models import OPTIMIZERS, classifier, data, weights
from tests.training.interrupted import STEPS, Kill, Killed, fit
from tf2dist.errors import CheckpointError
from tf2dist.training import checkpoint_files
from tf2dist.training.best_epoch import BestEpoch
from tf2dist.training.checkpoint_files import find_best, list_checkpoints, step_of

strategy = strategies(ONE_QUICKLY_CENTRAL_RARELY)


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


def best_steps(directory, name="val_loss"):
    """Of what is kept as the best."""
    return sorted(int(each.rpartition("-")[2]) for each in os.listdir(directory) if each.startswith(f"best-{name}-"))


def fitted(strategy, directory, values, *callbacks, name="val_loss", **kwargs):
    checkpoint = tf2dist.Checkpoint(directory, every_steps=STEPS, keep=1, keep_best=name, **kwargs)
    return fit(strategy, Logs(values, name), checkpoint, *callbacks, epochs=len(values))


@every_third(
    ("values", "name", "best"),
    [
        ([4.0, 2.0, 3.0, 2.0, 5.0], "val_loss", 2),
        ([0.2, 0.3, 0.1, 0.3], "val_accuracy", 2),
        ([None, 2.0, float("nan"), 3.0], "val_loss", 2),
        ([3.0, 2.0, 1.0], "val_loss", 3),
    ],
)
@pytest.mark.parametrize("in_background", [True, pytest.param(False, marks=pytest.mark.slow)])
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
    assert steps(tmp_path) == [len(values) * STEPS]
    assert best_steps(tmp_path, name) == [best * STEPS]
    fresh = classifier(OPTIMIZERS["adam"]())
    assert tf2dist.load_checkpoint(fresh, tmp_path, best=name) == best * STEPS
    for ours, theirs in zip(weights(fresh), kept[best - 1], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert tf2dist.load_checkpoint(fresh, tmp_path) == len(values) * STEPS


@pytest.mark.slow
def test_the_next_job_knows_the_best(tf, tmp_path):
    """Also one that was killed just after it, and one that trains nothing."""
    one = tf2dist.make_strategy("one")
    with pytest.raises(Killed):
        fitted(one, tmp_path, [3.0, 1.0, 2.0, 2.0], Kill(3 * STEPS + 2))
    assert best_steps(tmp_path) == [2 * STEPS]
    fitted(one, tmp_path, [None, None, None, 1.5, 1.2])
    assert best_steps(tmp_path) == [2 * STEPS]
    fitted(one, tmp_path, [None] * 5 + [0.5, 0.7])
    assert (best_steps(tmp_path), steps(tmp_path)) == ([6 * STEPS], [7 * STEPS])
    fitted(one, tmp_path, [None] * 5 + [0.5, 0.7])
    assert find_best(str(tmp_path), "val_loss") == (str(tmp_path / f"best-val_loss-{6 * STEPS}"), 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["restored", "averages", "swapped"])
def test_it_is_what_was_there_when_the_epoch_ended(tf, tmp_path, kind):
    """Whatever weights the end of training puts in their place."""
    one, seen = tf2dist.make_strategy("one"), {}
    averages = {} if kind == "restored" else {"use_ema": True, "ema_momentum": 0.7}
    with one.scope():
        model = classifier(keras.optimizers.Adam(**averages))
    others = {
        "restored": [keras.callbacks.EarlyStopping("loss", mode="max", patience=9, restore_best_weights=True)],
        "averages": [],
        "swapped": [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)],
    }[kind]
    note = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.update({epoch: weights(model)}))
    callbacks = [Logs([0.1, 0.2, 0.9], "val_accuracy"), *others, note]
    callbacks += [tf2dist.Checkpoint(tmp_path, keep_best="val_accuracy")]
    tf2dist.fit(model, data(), epochs=3, batch_size=16, callbacks=callbacks)
    with one.scope():
        best, last = (classifier(keras.optimizers.Adam(**averages)) for _ in range(2))
    assert tf2dist.load_checkpoint(best, tmp_path, best="val_accuracy") == 3 * STEPS
    assert tf2dist.load_checkpoint(last, tmp_path) == 3 * STEPS
    differs = False
    for ours, expected, newest, trained in zip(weights(best), seen[2], weights(last), weights(model), strict=True):
        np.testing.assert_array_equal(ours, expected)
        np.testing.assert_array_equal(newest, trained)
        differs = differs or not np.array_equal(ours, newest)
    assert differs == (kind != "swapped")  # which puts the averages there when the epoch ends


@pytest.mark.slow
@pytest.mark.parametrize("callback", ["swaps", "stops"])
def test_what_training_goes_on_from_is_the_same_without_it(tf, tmp_path, callback):
    """It is written after callbacks were told of the epoch's end, and they do not go on from there."""

    class Stops(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = epoch == 1

    class StopsAndIsKilled(Stops):
        def on_train_end(self, logs=None):
            raise Killed

    found = {}
    for name in (None, "val_loss"):
        directory = tmp_path / str(name)
        one = tf2dist.make_strategy("one")

        def train(*more, name=name, directory=directory, one=one):
            with one.scope():
                model = classifier(keras.optimizers.Adam(use_ema=True, ema_momentum=0.7))
            own = [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)] if callback == "swaps" else []
            checkpoint = tf2dist.Checkpoint(directory, every_steps=STEPS, keep_best=name)
            tf2dist.fit(
                model, data(), epochs=4, batch_size=16, seed=3, steps_per_execution=1,
                callbacks=[Logs([4.0, 3.0, 2.0, 1.0]), *own, checkpoint, *more],
            )  # fmt: skip
            return model

        with pytest.raises(Killed):
            train(Kill(2 * STEPS + 2) if callback == "swaps" else StopsAndIsKilled())
        model = train(*([] if callback == "swaps" else [Stops()]))
        found[name] = tf2dist.updates(model), weights(model)
    assert found[None][0] == found["val_loss"][0] == (4 if callback == "swaps" else 2) * STEPS
    for ours, theirs in zip(found["val_loss"][1], found[None][1], strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_a_damaged_best_one_is_set_aside(tf, tmp_path, caplog):
    """It is nothing to beat."""
    one = tf2dist.make_strategy("one")
    fitted(one, tmp_path, [3.0, 1.0])
    (tmp_path / f"best-val_loss-{2 * STEPS}" / "model.weights.h5").write_bytes(b"")
    fitted(one, tmp_path, [None, None, 1.5, 1.7])
    assert f"best-val_loss-{2 * STEPS} is damaged" in caplog.text
    assert best_steps(tmp_path) == [3 * STEPS]
    assert os.path.isdir(tmp_path / f"damaged-best-val_loss-{2 * STEPS}")


@pytest.mark.parametrize("in_background", [True, False])
def test_what_could_not_be_written_is_not_the_best(tf, tmp_path, monkeypatch, in_background):
    write, tried = checkpoint_files.write_best, []

    def full(*args, **kwargs):
        tried.append(args)
        if len(tried) == 2:
            raise checkpoint_files.UnwrittenError("No space left on device")
        return write(*args, **kwargs)

    monkeypatch.setattr(checkpoint_files, "write_best", full)
    fitted(tf2dist.make_strategy("one"), tmp_path, [3.0, 1.0, 2.0, 2.5], in_background=in_background, required=False)
    assert best_steps(tmp_path) == [3 * STEPS]


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
        ("val_score_mae", "auto", "min"),
        ("val_AUC", "auto", "max"),
        ("mean_io_u", "auto", "max"),
        ("f1_score", "auto", "max"),
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


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("wer", "auto"),
        ("brier_score", "auto"),
        ("accumulated_cost", "auto"),
        ("accuracy_mae", "auto"),
        ("val_loss", "least"),
    ],
)
def test_what_does_not_say_what_is_better(tmp_path, name, mode):
    with pytest.raises(ValueError, match=r"mode must be|give mode='min' or mode='max'"):
        tf2dist.Checkpoint(tmp_path, keep_best=name, mode=mode)


# load_checkpoint


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_a_model_that_is_not_compiled_gets_the_weights(tf, tmp_path, sharded):
    checkpoint = tf2dist.Checkpoint(tmp_path, sharded=sharded)
    model, _ = fit(tf2dist.make_strategy("mirrored", replicas=2), checkpoint, epochs=1)
    plain = keras.Sequential.from_config(model.get_config())
    assert not hasattr(plain, "optimizer")
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
    with pytest.raises(CheckpointError, match=r"no checkpoint in \S+ was kept as the best by val_loss"):
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


@pytest.mark.slow
def test_a_best_that_was_to_be_replaced_is_put_back(tf, tmp_path):
    """Of a job that was killed between two renames of a best checkpoint of the same step."""
    strategy = tf.distribute.get_strategy()
    fitted(strategy, tmp_path, [1.0])
    best, _ = find_best(str(tmp_path), "val_loss")
    os.rename(best, tmp_path / f".{os.path.basename(best)}.replaced")
    assert find_best(str(tmp_path), "val_loss") is None
    fitted(strategy, tmp_path, [1.0, 2.0])
    assert find_best(str(tmp_path), "val_loss") == (best, 1.0)
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]
