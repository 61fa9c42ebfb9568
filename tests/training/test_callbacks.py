"""Keras's callbacks around `fit`, on each strategy of one process."""

import csv

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf2dist
from tests.conftest import ONE_QUICKLY, sampled, strategies
from tests.models import OPTIMIZERS, ROWS, classifier, data, weights

strategy = strategies(ONE_QUICKLY)


def slowly_on(name):
    """Marks a test: slow on this strategy, and tried on the other when all are asked for."""
    return pytest.mark.parametrize("strategy", sampled(("one", "mirrored"), (), (name,)), indirect=True)


slowly_on_one, slowly_on_mirrored = map(slowly_on, ("one", "mirrored"))

BATCH = 16
STEPS = -(-ROWS // BATCH)


def fitted(strategy, *callbacks, optimizer="sgd", **kwargs):
    with strategy.scope():
        model = classifier(OPTIMIZERS[optimizer]())
    kwargs = {"batch_size": BATCH, "seed": 3, "epochs": 3, "validation_data": data()} | kwargs
    history = tf2dist.fit(model, data(), callbacks=callbacks, **kwargs)
    return model, history.history


@slowly_on_one
def test_model_checkpoint(strategy, tmp_path):
    best = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", monitor="val_loss", save_best_only=True)
    each = keras.callbacks.ModelCheckpoint(tmp_path / "step-{batch}.weights.h5", save_weights_only=True, save_freq=6)
    model, _ = fitted(strategy, best, each, steps_per_execution=2)
    assert sorted(p.name for p in tmp_path.glob("step-*")) != []
    for ours, theirs in zip(weights(keras.saving.load_model(tmp_path / "best.keras")), weights(model), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@slowly_on_mirrored
def test_a_model_that_is_saved_every_few_batches(strategy, tmp_path):
    """As often as by Keras, whatever the executions would be."""
    each = keras.callbacks.ModelCheckpoint(tmp_path / "{batch}.weights.h5", save_weights_only=True, save_freq=2)
    fitted(strategy, each, epochs=1)
    assert sorted(int(path.name.split(".")[0]) for path in tmp_path.iterdir()) == list(range(2, STEPS + 1, 2))


@slowly_on_mirrored
def test_early_stopping_restores_the_best_weights(strategy):
    stop = keras.callbacks.EarlyStopping("val_loss", mode="max", patience=1, restore_best_weights=True)
    model, history = fitted(strategy, stop, epochs=10)
    assert len(history["loss"]) == 2  # a loss that falls is not what mode="max" wants
    after_one, _ = fitted(strategy, epochs=1)
    for ours, theirs in zip(weights(model), weights(after_one), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@slowly_on_mirrored
def test_learning_rates(strategy):
    rates = []

    class See(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            rates.append(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)))

    schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.1 / 2**epoch)
    fitted(strategy, schedule, See())
    np.testing.assert_allclose(rates, [0.1, 0.05, 0.025], rtol=1e-6)
    rates.clear()
    plateau = keras.callbacks.ReduceLROnPlateau("val_loss", mode="max", factor=0.5, patience=1, min_delta=0.0)
    fitted(strategy, plateau, See())
    np.testing.assert_allclose(rates, [0.1, 0.1, 0.05], rtol=1e-6)


@slowly_on_one
def test_logs_in_files(strategy, tmp_path):
    fitted(
        strategy,
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        keras.callbacks.TensorBoard(tmp_path / "board", histogram_freq=1, update_freq="batch"),
    )
    with open(tmp_path / "log.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    assert set(rows[0]) == {"epoch", "accuracy", "loss", "val_accuracy", "val_loss"}
    assert list((tmp_path / "board" / "train").glob("events*"))
    assert list((tmp_path / "board" / "validation").glob("events*"))


@pytest.mark.slow
def test_terminate_on_nan_and_without(strategy):
    x, y = data()
    x = x.copy()
    x[50] = np.nan
    with strategy.scope():
        model = classifier(OPTIMIZERS["sgd"]())
    history = tf2dist.fit(model, (x, y), batch_size=BATCH, shuffle=False, epochs=3, steps_per_execution=1,
                          callbacks=[keras.callbacks.TerminateOnNaN()])  # fmt: skip
    assert tf2dist.updates(model) == 4  # row 50 is in the fourth batch
    assert len(history.history["loss"]) == 1
    with strategy.scope():
        model = classifier(OPTIMIZERS["sgd"]())
    with pytest.raises(ValueError, match=r"loss is NaN after 4 updates.*lower the learning rate"):
        tf2dist.fit(model, (x, y), batch_size=BATCH, shuffle=False, epochs=3, steps_per_execution=1)


class Killed(Exception):
    """Stands for what ends a job in the middle."""


@slowly_on_one
def test_backup_and_restore(strategy, tmp_path):
    class Kill(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise Killed

    def backup():
        return keras.callbacks.BackupAndRestore(tmp_path / "backup")

    expected, history = fitted(strategy, optimizer="adam", epochs=4)
    with pytest.raises(Killed):
        fitted(strategy, backup(), Kill(), optimizer="adam", epochs=4)
    model, after = fitted(strategy, backup(), optimizer="adam", epochs=4)
    assert after["loss"] == pytest.approx(history["loss"][2:], rel=1e-4)
    for ours, theirs in zip(weights(model), weights(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_hooks_come_in_keras_order(strategy):
    """With every batch of training and validation, and without a wish for steps an execution."""
    calls = []

    class See(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            for name in dir(keras.callbacks.Callback):
                if name.startswith("on_") and "predict" not in name and name not in ("on_batch_begin", "on_batch_end"):
                    setattr(self, name, lambda *args, name=name, **kwargs: calls.append((name, *args[:1])))

    def with_numbers():
        return [(name, *(a for a in args if isinstance(a, int))) for name, *args in calls]

    fitted(strategy, See(), epochs=2)
    ours = with_numbers()
    calls.clear()
    model = classifier(OPTIMIZERS["sgd"]())
    model.fit(*data(), batch_size=BATCH, epochs=2, validation_data=data(), callbacks=[See()], verbose=0)
    assert ours == with_numbers()


@pytest.mark.parametrize("hook", ["on_train_begin", pytest.param("on_epoch_begin", marks=pytest.mark.slow)])
def test_training_that_is_stopped_before_a_batch_makes_that_batch(tf, hook):
    """As Keras, which looks after a batch."""
    found = []
    for ours in (False, True):
        model = classifier(OPTIMIZERS["sgd"]())
        stop = keras.callbacks.LambdaCallback()
        setattr(stop, hook, lambda *args, model=model, **kwargs: setattr(model, "stop_training", True))
        arguments = {"batch_size": BATCH, "epochs": 3, "shuffle": False, "verbose": 0, "callbacks": [stop]}
        history = tf2dist.fit(model, *data(), **arguments) if ours else model.fit(*data(), **arguments)
        found.append((tf2dist.updates(model), history.epoch, history.history["loss"]))
    assert found[1][:2] == found[0][:2]
    assert found[1][2] == pytest.approx(found[0][2], rel=1e-5)


@slowly_on_mirrored
def test_metrics_hold_what_was_measured(strategy):
    """During callbacks and after, as Keras's own fit leaves them."""

    def results(ours):
        seen = []
        see = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: seen.append(see.model.get_metrics_result()),
            on_test_begin=lambda logs: seen.append(see.model.get_metrics_result()),
        )
        model = classifier(OPTIMIZERS["sgd"]())
        model.compile(model.optimizer, model.loss, metrics=[keras.metrics.SparseCategoricalAccuracy(name="hits")])
        arguments = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0, "callbacks": [see]}
        if ours:
            tf2dist.fit(model, *data(), **arguments)
            tf2dist.evaluate(model, *data(), batch_size=5)
        else:
            model.fit(*data(), **arguments)
            model.evaluate(*data(), batch_size=5, verbose=0)
        return [{name: float(value) for name, value in each.items()} for each in [*seen, model.get_metrics_result()]]

    expected = results(ours=False)
    with strategy.scope():
        found = results(ours=True)
    assert len(found) == len(expected) == 3
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)


class _Counts(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.training, self.evaluation = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.training.append((batch, logs["loss"]))

    def on_test_batch_end(self, batch, logs=None):
        self.evaluation.append((batch, logs["loss"]))


class _CountsExecutions(_Counts, tf2dist.ExecutionCallback):
    pass


class _SeesExecutions(tf2dist.ExecutionCallback):
    def __init__(self, seen):
        super().__init__()
        self._seen = seen

    def on_train_batch_end(self, batch, logs=None):
        self._seen.append(batch)


@slowly_on_mirrored
def test_each_batch_has_its_logs(strategy, caplog):
    caplog.set_level("INFO", "tf2dist")
    ours, theirs = _Counts(), _Counts()
    trained, _ = fitted(strategy, ours, epochs=2, shuffle=False)
    assert "_Counts acts on every batch: training takes one step an execution" in caplog.text
    model = classifier(OPTIMIZERS["sgd"]())
    model.fit(*data(), batch_size=BATCH, epochs=2, validation_data=data(), shuffle=False, callbacks=[theirs], verbose=0)
    np.testing.assert_allclose(ours.training, theirs.training, rtol=1e-4)
    np.testing.assert_allclose(ours.evaluation, theirs.evaluation, rtol=1e-4)
    again = _Counts()
    tf2dist.evaluate(trained, data(), batch_size=BATCH, callbacks=[again])
    np.testing.assert_allclose(again.evaluation, ours.evaluation[-STEPS:], rtol=1e-5)


@slowly_on_one
def test_a_callback_of_executions_does_not_slow_training_down(strategy):
    counts = _CountsExecutions()
    fitted(strategy, counts, epochs=20)
    assert len(counts.training) < 20 * STEPS  # the first executions take a step each
    assert [batch for batch, _ in counts.training if batch == STEPS - 1] == [STEPS - 1] * 20
    assert [batch for batch, _ in counts.evaluation] == [STEPS - 1] * 20
    with_steps = _Counts()
    fitted(strategy, with_steps, epochs=1, steps_per_execution=STEPS)
    assert [batch for batch, _ in with_steps.training] == [STEPS - 1]


@slowly_on_one
def test_board_of_batches_sees_each_batch(strategy, tmp_path):
    seen = []

    fitted(strategy, keras.callbacks.TensorBoard(tmp_path, update_freq="batch"), _SeesExecutions(seen), epochs=1)
    assert seen == list(range(STEPS))
    seen.clear()
    fitted(strategy, keras.callbacks.TensorBoard(tmp_path), _SeesExecutions(seen), epochs=20)
    assert len(seen) < 20 * STEPS


@slowly_on_mirrored
def test_a_callback_ends_evaluation_and_prediction(strategy):
    model, _ = fitted(strategy, epochs=1)

    class Stop(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            self.model.stop_evaluating = batch == 1

        def on_predict_batch_end(self, batch, logs=None):
            self.model.stop_predicting = batch == 1

    x, y = data()
    expected = tf2dist.evaluate(model, x[: 2 * BATCH], y[: 2 * BATCH], batch_size=BATCH)
    for _ in range(2):  # neither is stopped for good
        np.testing.assert_allclose(tf2dist.evaluate(model, x, y, batch_size=BATCH, callbacks=Stop()), expected)
        assert len(tf2dist.predict(model, x, batch_size=BATCH, callbacks=Stop())) == 2 * BATCH
    assert len(tf2dist.predict(model, x, batch_size=BATCH)) == ROWS


class Scaled(keras.layers.Layer):
    """Its inputs times a number, of which a callback says what it is."""

    def build(self, shape):
        self.factor = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        return x * self.factor


class SetsFactor(keras.callbacks.Callback):
    """What its hooks do before a batch counts for that batch."""

    def __init__(self):
        super().__init__()
        self.begun = []

    def on_test_batch_begin(self, batch, logs=None):
        self.begun.append(batch)
        self.model.layers[-1].factor.assign(float(batch))

    on_predict_batch_begin = on_test_batch_begin


@pytest.mark.parametrize("kind", sampled(["arrays", "dataset", "dataset of unknown length"], ["arrays"]))
def test_a_batch_of_evaluation_or_prediction_begins_before_it_is_computed(strategy, kind):
    rows = np.ones((8, 1), np.float32)

    def dataset(*arrays):
        made = tf.data.Dataset.from_tensor_slices(arrays if len(arrays) > 1 else arrays[0]).batch(2)
        return made.filter(lambda *_: True) if "unknown" in kind else made

    def results(made, evaluate, predict):
        found = []
        for call, arrays in ((evaluate, (rows, 0 * rows)), (predict, (rows,))):
            callback = SetsFactor()
            given = (*arrays,) if kind == "arrays" else (dataset(*arrays),)
            size = {"batch_size": 2} if kind == "arrays" else {}
            value = call(made, *given, verbose=0, callbacks=[callback], **size)
            found.append((np.ravel(value).tolist(), callback.begun[:4]))
        return found

    def model():
        made = keras.Sequential([keras.Input((1,)), Scaled()])
        made.compile("sgd", "mse")
        return made

    with strategy.scope():
        ours = results(model(), tf2dist.evaluate, tf2dist.predict)
    assert ours == results(model(), keras.Model.evaluate, keras.Model.predict)
    assert ours[0] == ([3.5], [0, 1, 2, 3])


@slowly_on_mirrored
def test_lambda_callback_and_swapped_averages(strategy):
    seen = []
    with strategy.scope():
        model = classifier(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5))
    tf2dist.fit(
        model,
        data(),
        epochs=2,
        validation_data=data(),
        callbacks=[
            keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append((epoch, sorted(logs)))),
            keras.callbacks.SwapEMAWeights(),
        ],
    )
    assert seen == [(n, ["accuracy", "loss", "val_accuracy", "val_loss"]) for n in range(2)]


@pytest.mark.slow
def test_averages_become_the_weights_of_a_training_that_was_stopped(tf):
    """They are the weights of a training that came to its end there."""

    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = True

    ends = []
    for epochs, callbacks in ((1, []), (3, [Stop()])):
        model = classifier(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9))
        tf2dist.fit(model, data(), batch_size=BATCH, epochs=epochs, callbacks=callbacks)
        ends.append(weights(model))
    for ours, expected in zip(*ends, strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_what_is_no_callback_is_refused(tf):
    with pytest.raises(ValueError, match=r"must be keras.callbacks.Callback objects, found function"):
        fitted(tf2dist.make_strategy("one"), lambda epoch: None)


@slowly_on_mirrored
@pytest.mark.parametrize(("hook", "name"), [("on_train_batch_end", "loss"), ("on_test_batch_end", "val_loss")])
def test_hooks_of_lambda_callbacks_get_logs(strategy, hook, name):
    """They are attributes of the callback, and no methods of its class; one hook needs no other."""
    seen, callback = [], keras.callbacks.LambdaCallback()
    setattr(callback, hook, lambda batch, logs: seen.append(logs["loss"]))
    _, history = fitted(strategy, callback, epochs=1)
    assert seen[-1] == pytest.approx(history[name][0])


@pytest.mark.slow
def test_steps_are_what_keras_says_they_are(tf):
    """A dataset that does not say how long it is has no steps, though we count its batches."""
    steps = []

    class See(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            steps.append(self.params["steps"])

        def on_test_begin(self, logs=None):
            steps.append(self.params["steps"])

    x, y = data()
    known = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    unknown = tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda x, y: True).batch(BATCH)
    for dataset, arguments in ((unknown, {}), (known, {}), (unknown.repeat(), {"steps_per_epoch": 3})):
        found = []
        for ours in (False, True):
            steps.clear()
            model = classifier(OPTIMIZERS["sgd"]())
            if ours:
                tf2dist.fit(model, dataset, callbacks=[See()], **arguments)
                tf2dist.evaluate(model, dataset.take(9), callbacks=[See()], return_dict=True)
            else:
                model.fit(dataset, callbacks=[See()], verbose=0, **arguments)
                model.evaluate(dataset.take(9), callbacks=[See()], verbose=0)
            found.append(list(steps))
        assert found[0] == found[1]


@pytest.mark.slow
def test_a_hook_of_evaluation_alone_gets_logs(tf):
    """It needs no hook of training beside it."""
    seen, callback, (x, y) = [], keras.callbacks.Callback(), data()
    callback.on_test_batch_end = lambda batch, logs: seen.append(logs.get("loss"))
    model = classifier(OPTIMIZERS["sgd"]())
    loss, _ = tf2dist.evaluate(model, x, y, batch_size=BATCH, verbose=0, callbacks=[callback])
    assert len(seen) == STEPS
    assert seen[-1] == pytest.approx(loss)


def test_evaluations_by_the_models_own_method(strategy):
    """Of a last batch whose slices are unlike; afterwards the method is Keras's again."""
    found = []

    class Evaluates(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            found.append(self.model.evaluate(*data(), batch_size=17, verbose=0, return_dict=True))

    def made():
        model = classifier(OPTIMIZERS["sgd"]())
        model.compile(OPTIMIZERS["sgd"](), model.loss, metrics=["accuracy"])
        return model

    with strategy.scope():
        model = made()
    tf2dist.fit(model, *data(), batch_size=16, epochs=2, shuffle=False, callbacks=[Evaluates()], verbose=0)
    ours, found[:] = found[:], []
    made().fit(*data(), batch_size=16, epochs=2, shuffle=False, callbacks=[Evaluates()], verbose=0)
    for got, wanted in zip(ours, found, strict=True):
        assert got == pytest.approx(wanted, rel=1e-4)
    assert "evaluate" not in vars(model)
