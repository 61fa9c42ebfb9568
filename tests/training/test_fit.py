"""`fit` and `evaluate` on the strategies of one process: exact numbers, Keras's meaning, callbacks, errors."""

import contextlib
import dataclasses
import gc
import weakref

import keras
import numpy as np
import pytest

import tf2dist
from tests.conftest import SINGLE_PROCESS_SLOWLY, sampled, strategies
from tests.models import FEATURES, OPTIMIZERS, ROWS, classifier, data, weights
from tf2dist.errors import UsageError

strategy = strategies(SINGLE_PROCESS_SLOWLY)

BATCH = 16
STEPS = -(-ROWS // BATCH)


def fitted(strategy, optimizer="adam", *extra, epochs=3, regularizer=None, **kwargs):
    with strategy.scope():
        model = classifier(OPTIMIZERS[optimizer](), *extra, regularizer=regularizer)
    kwargs = {"batch_size": BATCH, "seed": 3} | kwargs
    history = tf2dist.fit(model, kwargs.pop("data", data()), epochs=epochs, verbose=0, **kwargs)
    return model, history.history


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["one"], indirect=True)
def test_logs_that_lack_updates_are_said_to(strategy, monkeypatch, caplog):
    """As where a worker is killed that has made updates, and not told what it measured."""
    from tf2dist.execution.replica_dispatcher import ReplicaDispatcher

    next_result, lost = ReplicaDispatcher.next_result, []

    def loses_the_second(dispatcher):
        result = next_result(dispatcher)
        lost.append(result)
        return dataclasses.replace(result, sums=None) if len(lost) == 2 else result

    monkeypatch.setattr(ReplicaDispatcher, "next_result", loses_the_second)
    model, history = fitted(strategy, steps_per_execution=2)
    assert (tf2dist.updates(model), len(history["loss"])) == (3 * STEPS, 3)
    assert [r.getMessage() for r in caplog.records if "logs" in r.message] == [
        f"epoch 1 made {STEPS} updates, and its logs have the loss and metrics of {STEPS - 2}: those of the others are "
        "lost with workers that were killed or stopped"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["one"], indirect=True)
@pytest.mark.parametrize("said", [0, 5])
def test_hooks_count_the_batches_that_were_used_after_a_loss(strategy, monkeypatch, said):
    """A lost execution of two steps, both applied, says that it made none, or more than there were."""
    from tf2dist.execution.replica_dispatcher import ReplicaDispatcher

    next_result, lost, seen = ReplicaDispatcher.next_result, [], []

    def loses_the_second(dispatcher):
        result = next_result(dispatcher)
        lost.append(result)
        return dataclasses.replace(result, steps=said, sums=None) if len(lost) == 2 else result

    class Seen(tf2dist.ExecutionCallback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(batch)

    monkeypatch.setattr(ReplicaDispatcher, "next_result", loses_the_second)
    fitted(strategy, steps_per_execution=2, callbacks=[Seen()])
    assert [batch for batch in seen if batch >= STEPS - 1] == [STEPS - 1] * 3


@pytest.mark.parametrize("strategy", ["one"], indirect=True)
def test_a_wrong_call_that_is_found_in_a_traced_function(strategy, tf):
    """AutoGraph lets the error through, which the launcher shows in one line."""
    x, y = data()
    with strategy.scope():
        inputs = keras.Input(x.shape[1:])
        model = keras.Model(inputs, [keras.layers.Dense(3)(inputs), keras.layers.Dense(3)(inputs)])
        model.compile("sgd", "sparse_categorical_crossentropy")
    dataset = tf.data.Dataset.from_tensor_slices((x, (y, y))).batch(BATCH)
    with pytest.raises(UsageError, match="class_weight is for models with one output"):
        tf2dist.fit(model, dataset, class_weight={0: 1.0, 1: 2.0})


def plain_loop(tf, batches, learning_rate=0.1):
    """A hand-written TensorFlow loop of the same network, without Keras's layers, losses or optimizers."""
    k1, b1, k2, b2 = [tf.Variable(w) for w in weights(classifier(OPTIMIZERS["sgd"]()))]
    losses = []
    for x, y in batches:
        with tf.GradientTape() as tape:
            logits = tf.tanh(x @ k1 + b1) @ k2 + b2
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = tf.reduce_mean(each)
        for v, g in zip((k1, b1, k2, b2), tape.gradient(loss, (k1, b1, k2, b2)), strict=True):
            v.assign_sub(learning_rate * g)
        losses += each.numpy().tolist()
    return [v.numpy() for v in (k1, b1, k2, b2)], losses


def test_equals_a_plain_tensorflow_loop(strategy, tf):
    x, y = data()
    once = [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, ROWS, BATCH)]
    expected, losses = plain_loop(tf, once * 3)
    model, history = fitted(strategy, "sgd", shuffle=False)
    for ours, theirs in zip(weights(model), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(history["loss"][-1], np.mean(losses[-ROWS:]), rtol=1e-5)


@pytest.mark.parametrize("optimizer", sampled(OPTIMIZERS, ["adam"], [name for name in OPTIMIZERS if name != "adam"]))
@pytest.mark.parametrize(
    ("name", "replicas"),
    [
        ("mirrored", 2),
        pytest.param("central", 2, marks=pytest.mark.slow),
        pytest.param("central", 3, marks=pytest.mark.exhaustive),
    ],
)
def test_replicas_equal_one_device(tf, name, replicas, optimizer):
    """The last batch of a pass has 7 rows: 2 replicas hold 3 and 4, 3 replicas 2, 2 and 3.

    (A process has one size of collective group: TensorFlow cannot have 2 and 3 mirrored replicas in one.)
    """
    expected, history = fitted(tf2dist.make_strategy("one"), optimizer)
    model, ours = fitted(tf2dist.make_strategy(name, replicas=replicas), optimizer)
    for a, b in zip(weights(model), weights(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(ours["loss"], history["loss"], rtol=1e-5)
    assert ours["accuracy"] == history["accuracy"]


@pytest.mark.slow
def test_fewer_rows_than_replicas(tf):
    """A batch of 2 rows on 4 replicas: two of them have nothing of their own to do, and do no harm."""
    few = tuple(a[:2] for a in data())
    expected, _ = fitted(tf2dist.make_strategy("one"), "sgd", data=few)
    model, history = fitted(tf2dist.make_strategy("central", replicas=4), "sgd", data=few)
    for a, b in zip(weights(model), weights(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert history["accuracy"][0] in (0.0, 0.5, 1.0)


def test_equals_keras(tf):
    """Against `keras.Model.fit` on one device, where it works: the same weights and the same history."""
    x, y = data()
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    theirs = classifier(OPTIMIZERS["adam"](), regularizer=keras.regularizers.L2(0.01))
    expected = theirs.fit(dataset, epochs=3, verbose=0, validation_data=dataset).history
    model, history = fitted(
        tf2dist.make_strategy("one"),
        regularizer=keras.regularizers.L2(0.01),
        data=dataset,
        batch_size=None,
        validation_data=dataset,
    )
    assert history.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(history[name], expected[name], rtol=1e-4)
    for a, b in zip(weights(model), weights(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_updates_and_examples_are_counted_exactly(strategy):
    seen = []

    class Count(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(batch)

    model, history = fitted(strategy, "adam", callbacks=[Count()], epochs=4, steps_per_execution=3)
    assert tf2dist.updates(model) == 4 * STEPS
    assert seen == [2, 5, 6] * 4  # the last step of each execution
    assert len(history["loss"]) == 4
    correct = np.array(history["accuracy"]) * ROWS
    np.testing.assert_allclose(correct, np.round(correct), atol=1e-3)


@pytest.mark.slow
def test_steps_per_epoch_goes_on_through_the_data(strategy):
    model, history = fitted(strategy, epochs=5, steps_per_epoch=3)
    assert tf2dist.updates(model) == 15
    assert len(history["loss"]) == 5


def test_evaluate_counts_every_example_once(strategy, tf):
    x, y = data()
    model, _ = fitted(strategy)
    logits = keras.ops.convert_to_numpy(model(x))
    logs = tf2dist.evaluate(model, (x, y), batch_size=BATCH, return_dict=True)
    assert round(logs["accuracy"] * ROWS) == (logits.argmax(1) == y).sum()
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits).numpy()
    np.testing.assert_allclose(logs["loss"], each.mean(), rtol=1e-5)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    assert tf2dist.evaluate(model, dataset, return_dict=True) == pytest.approx(logs, rel=1e-5)


@pytest.mark.slow
def test_dataset_of_global_batches(strategy, tf):
    """The strategies cut a dataset's batches as they cut arrays."""
    x, y = data()
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    expected, _ = fitted(strategy, "sgd", shuffle=False)
    model, _ = fitted(strategy, "sgd", data=dataset, batch_size=None)
    for a, b in zip(weights(model), weights(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_dataset_of_unknown_size(strategy, tf):
    x, y = data()
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda x, y: True).batch(BATCH)
    model, _ = fitted(strategy, data=dataset, batch_size=None, epochs=2)
    assert tf2dist.updates(model) == 2 * STEPS


def test_sample_weights(strategy, tf):
    """A weight of zero takes an example out of the loss, as in Keras."""
    x, y = data()
    weight = (np.arange(ROWS) % 3).astype(np.float32)
    theirs = classifier(OPTIMIZERS["sgd"]())
    theirs.fit(tf.data.Dataset.from_tensor_slices((x, y, weight)).batch(BATCH), epochs=2, verbose=0)
    model, _ = fitted(strategy, "sgd", data=(x, y, weight), shuffle=False, epochs=2)
    for a, b in zip(weights(model), weights(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_layers_with_state(strategy):
    """Dropout and BatchNormalization, whose state is updated inside of the replicas."""
    extra = keras.layers.BatchNormalization(), keras.layers.Dropout(0.2)
    model, history = fitted(strategy, "adam", *extra, epochs=8)
    assert history["loss"][-1] < history["loss"][0]
    moved = [keras.ops.convert_to_numpy(v) for v in model.non_trainable_variables if "moving_mean" in v.path]
    assert np.abs(moved[0]).max() > 0


@pytest.mark.parametrize("outputs", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_dropout_is_anew_at_each_step(tf, outputs):
    """As under Keras; the losses of several outputs are tracked one by one, beside the states of layers."""

    def made():
        keras.utils.set_random_seed(0)
        inputs = keras.Input((FEATURES,))
        hidden = keras.layers.Dropout(0.5, seed=1)(keras.layers.Dense(8, "tanh")(inputs))
        model = keras.Model(inputs, [keras.layers.Dense(1)(hidden) for _ in range(outputs)])
        model.compile("sgd", ["mse"] * outputs)
        return model

    x, y = data()
    y = [np.float32(y)] * outputs
    theirs, model = made(), made()
    theirs.fit(x, y, batch_size=BATCH, shuffle=False, epochs=2, verbose=0)
    tf2dist.fit(model, x, y, batch_size=BATCH, shuffle=False, epochs=2, verbose=0)
    for ours, expected in zip(model.variables, theirs.variables, strict=True):
        np.testing.assert_allclose(np.asarray(ours), np.asarray(expected), rtol=1e-4, atol=1e-5, err_msg=ours.path)


@pytest.mark.slow
def test_xla(tf):
    for name in ("one", "mirrored"):
        strategy = tf2dist.make_strategy(name)
        expected, _ = fitted(strategy, "sgd")
        with strategy.scope():
            model = classifier(OPTIMIZERS["sgd"]())
            model.compile("sgd", model.loss, metrics=["accuracy"], jit_compile=True)
            model.optimizer.learning_rate = 0.1
        tf2dist.fit(model, data(), batch_size=BATCH, seed=3, epochs=3, verbose=0)
        for a, b in zip(weights(model), weights(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_xla_is_refused_where_variables_are_elsewhere(tf):
    strategy = tf2dist.make_strategy("central", replicas=2)
    with strategy.scope():
        model = classifier(OPTIMIZERS["sgd"]())
        model.compile("sgd", model.loss, jit_compile=True)
    with pytest.raises(ValueError, match="jit_compile"):
        tf2dist.fit(model, data())


@pytest.mark.slow
def test_a_callback_stops_training(strategy):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch >= 2

    model, history = fitted(strategy, callbacks=[Stop()], epochs=5, steps_per_execution=1)
    assert tf2dist.updates(model) == 3
    assert len(history["loss"]) == 1


@pytest.mark.slow
def test_logs_of_batches_are_those_of_the_epoch_so_far(strategy):
    logs_seen = []

    class See(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            logs_seen.append(dict(logs))

    _, history = fitted(strategy, callbacks=[See()], epochs=1, steps_per_execution=2)
    assert len(logs_seen) == 4
    assert logs_seen[-1] == pytest.approx({name: values[0] for name, values in history.items()})


@pytest.mark.slow
def test_fit_goes_on_where_it_was_told_to(strategy):
    """Two fits of 2 epochs each see the same batches as one fit of 4."""
    expected, _ = fitted(strategy, "sgd", epochs=4)
    with strategy.scope():
        model = classifier(OPTIMIZERS["sgd"]())
    for first, last in ((0, 2), (2, 4)):
        tf2dist.fit(model, data(), batch_size=BATCH, seed=3, initial_epoch=first, epochs=last, verbose=0)
    assert tf2dist.updates(model) == 4 * STEPS
    for a, b in zip(weights(model), weights(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_fit_goes_on_in_the_data_too(tf):
    """Where an epoch is shorter than a pass, Keras would begin with the data anew; here two calls equal one."""
    strategy = tf2dist.make_strategy("one")
    expected, _ = fitted(strategy, "sgd", epochs=4, steps_per_epoch=3)
    model = classifier(OPTIMIZERS["sgd"]())
    for first, last in ((0, 1), (1, 4)):
        tf2dist.fit(model, data(), batch_size=BATCH, seed=3, initial_epoch=first, epochs=last, steps_per_epoch=3)
    for a, b in zip(weights(model), weights(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "replicas"),
    sampled([("adam", 1), ("adam", 2), ("averaged", 1), ("scaled", 1)], [("adam", 1)], [("adam", 2), ("averaged", 1)]),
)
def test_ours_and_kerass_fit_continue_each_other(tf, optimizer, replicas):
    """On the same model, in both orders, with the numbers of Keras's own fit on one device."""

    def made():
        make = {
            "adam": OPTIMIZERS["adam"],
            "averaged": lambda: keras.optimizers.SGD(0.1, momentum=0.9, use_ema=True, ema_overwrite_frequency=3),
            "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), initial_scale=64.0),
        }
        return classifier(make[optimizer](), keras.layers.Dropout(0.0))

    x, y = data()
    dataset = tf.data.Dataset.from_tensor_slices((x[:96], y[:96])).batch(BATCH)  # Keras's slices must be even
    theirs = made()
    expected = [theirs.fit(dataset, verbose=0).history["loss"][0] for _ in range(4)]
    fits = (lambda m: tf2dist.fit(m, dataset), lambda m: m.fit(dataset, verbose=0))
    strategy = tf2dist.make_strategy("mirrored" if replicas > 1 else "one", replicas=replicas if replicas > 1 else None)
    for first in (0, 1):
        with strategy.scope():
            model = made()
        found = [fits[(first + turn) % 2](model).history["loss"][0] for turn in range(4)]
        np.testing.assert_allclose(found, expected, rtol=1e-4)
        for a, b in zip(model.variables, theirs.variables, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["trained", "failed"])
def test_a_trained_model_is_freed(strategy, end):
    """And the data that it was trained on."""

    class Fail(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if end == "failed":
                raise RuntimeError

    x, y = (np.array(a) for a in data())
    with strategy.scope():
        model = classifier(OPTIMIZERS["adam"]())
    with contextlib.suppress(RuntimeError):
        tf2dist.fit(model, (x, y), validation_data=(x, y), callbacks=[Fail()])
    tf2dist.evaluate(model, (x, y), return_dict=True)
    tf2dist.predict(model, x)
    freed = [weakref.ref(thing) for thing in (model, x, y, model.layers[0])]
    del model, x, y
    gc.collect()
    assert [ref() is None for ref in freed] == [True] * len(freed)


@pytest.mark.slow
def test_a_model_compiled_anew_is_trained_by_its_new_optimizer(strategy):
    model, _ = fitted(strategy, "sgd", epochs=1)
    before = weights(model)
    with strategy.scope():
        model.compile(keras.optimizers.SGD(0.0), model.loss)
    tf2dist.fit(model, data(), batch_size=BATCH, verbose=0)
    for a, b in zip(weights(model), before, strict=True):
        np.testing.assert_array_equal(a, b)
    assert tf2dist.updates(model) == STEPS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": (np.zeros((0, 12), np.float32), np.zeros(0, np.int64))}, "empty"),
        ({"data": (np.zeros((4, 12), np.float32), np.zeros(5, np.int64))}, "number of rows, found x of 4, y of 5"),
        ({"data": "rows"}, "found str"),
        ({"batch_size": 0}, "batch_size must be at least 1, found 0"),
        ({"steps_per_execution": 0}, "steps_per_execution must be at least 1, found 0"),
    ],
)
def test_wrong_arguments(tf, change, message):
    with pytest.raises(ValueError, match=message):
        fitted(tf2dist.make_strategy("one"), **change)


def test_a_model_that_is_not_compiled(tf):
    with pytest.raises(ValueError, match="not compiled"):
        tf2dist.fit(keras.Sequential([keras.Input((12,)), keras.layers.Dense(3)]), data())


def test_an_endless_dataset_needs_a_length(tf):
    dataset = tf.data.Dataset.from_tensor_slices(data()).batch(BATCH).repeat()
    with pytest.raises(ValueError, match="steps_per_epoch"):
        fitted(tf2dist.make_strategy("one"), data=dataset, batch_size=None)
    model, _ = fitted(tf2dist.make_strategy("one"), data=dataset, batch_size=None, steps_per_epoch=4, epochs=2)
    assert tf2dist.updates(model) == 8


@pytest.mark.slow
@pytest.mark.parametrize(("name", "replicas"), [("mirrored", 2), ("central", 3)])
def test_the_way_to_accelerators(tf, monkeypatch, name, replicas):
    """Replicas on GPUs get their parts through tf.distribute's iterators; here virtual CPU devices take that way."""
    from tf2dist.runtime import devices

    expected, _ = fitted(tf2dist.make_strategy("one"), "momentum", validation_data=data())
    monkeypatch.setattr(devices, "on_accelerators", lambda strategy: True)
    model, _ = fitted(tf2dist.make_strategy(name, replicas=replicas), "momentum", validation_data=data())
    for a, b in zip(weights(model), weights(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def test_without_any_strategy(tf):
    """A model made outside of a scope trains on TensorFlow's default strategy."""
    model = classifier(OPTIMIZERS["sgd"]())
    tf2dist.fit(model, data(), batch_size=BATCH, seed=3, epochs=3, verbose=0)
    expected, _ = fitted(tf2dist.make_strategy("one"), "sgd")
    for a, b in zip(weights(model), weights(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_several_outputs_with_statistics_and_random_numbers(tf):
    """Statistics move and seeds go on, though the losses of outputs are measured apart."""

    def made():
        keras.utils.set_random_seed(1)
        x = keras.Input((12,))
        hidden = keras.layers.Dropout(0.2)(keras.layers.BatchNormalization(momentum=0.8)(x))
        model = keras.Model(x, [keras.layers.Dense(3)(hidden) for _ in range(2)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), [loss, loss])
        return model

    x, y = data()
    dataset = tf.data.Dataset.from_tensor_slices((x, (y, y))).batch(BATCH)
    theirs, model = made(), made()
    theirs.fit(dataset, verbose=0)
    tf2dist.fit(model, dataset)
    for ours, their in zip(model.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(ours, their, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_several_outputs_with_losses_of_layers(strategy, tf):
    """The losses of outputs are tracked while layers add theirs, and regularizers look at the weights."""

    def made():
        x = keras.Input((12,))
        hidden = keras.layers.Dense(8, "tanh", kernel_regularizer="l2", kernel_initializer=keras.initializers.Ones())(x)
        hidden = keras.layers.ActivityRegularization(l2=0.05)(hidden)
        heads = [
            keras.layers.Dense(3, name=name, kernel_initializer=keras.initializers.GlorotUniform(seed=seed))(hidden)
            for seed, name in enumerate("ab")
        ]
        model = keras.Model(x, dict(zip("ab", heads, strict=True)))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), {"a": loss, "b": loss}, loss_weights={"a": 1.0, "b": 0.5})
        return model

    x, y = data()
    dataset = tf.data.Dataset.from_tensor_slices((x, {"a": y, "b": y})).batch(BATCH)
    theirs = made()
    expected = theirs.fit(dataset, epochs=2, verbose=0).history
    with strategy.scope():
        model = made()
    history = tf2dist.fit(model, dataset, epochs=2).history
    for ours, their in zip(weights(model), weights(theirs), strict=True):
        np.testing.assert_allclose(ours, their, rtol=1e-4, atol=1e-5)
    assert history.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(history[name], expected[name], rtol=1e-4)


def test_compiled_anew_with_the_same_optimizer(tf):
    """And without a loss, so that nothing else of what `compile` makes is another."""

    class OwnLoss(keras.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return keras.ops.mean((keras.ops.cast(y, "float32")[:, None] - y_pred) ** 2)

    x, y = data()
    inputs = keras.Input(x.shape[1:])
    model = OwnLoss(inputs, keras.layers.Dense(1)(keras.layers.Dense(3, name="frozen")(inputs)))
    optimizer = keras.optimizers.SGD(0.01)
    model.compile(optimizer)
    tf2dist.fit(model, x, y)
    model.get_layer("frozen").trainable = False
    model.compile(optimizer)
    before = model.get_layer("frozen").get_weights(), weights(model)
    tf2dist.fit(model, x, y)
    np.testing.assert_array_equal(model.get_layer("frozen").get_weights()[0], before[0][0])
    assert any(np.any(now != then) for now, then in zip(weights(model), before[1], strict=True))


@pytest.mark.slow
def test_random_numbers_without_a_seed_of_their_own(tf):
    """They follow from Keras's generator, and are others in each step, also where a step is computed in a scope."""

    class Drops(keras.layers.Layer):
        def call(self, x):
            return keras.random.dropout(x, 0.5)

    x, y = data()
    losses = []
    for ours in (False, True):
        keras.utils.set_random_seed(5)
        inputs = keras.Input(x.shape[1:])
        dropped = Drops()(inputs)
        model = keras.Model(inputs, [keras.layers.Dense(1)(dropped), keras.layers.Dense(1)(dropped)])
        model.compile(keras.optimizers.SGD(0.0), ["mse", "mse"])
        arguments = {"batch_size": ROWS, "epochs": 4, "shuffle": False, "verbose": 0}
        fitted = tf2dist.fit(model, x, [y, y], **arguments) if ours else model.fit(x, [y, y], **arguments)
        losses.append(fitted.history["loss"])
    assert len(set(losses[0])) == 4
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


@pytest.mark.parametrize("widths", [[3, 3, 3], [3, 1, 2]])
def test_predictions_of_unlike_shapes(tf, widths):
    """Ragged where they are in Keras: of sentences that are padded to the longest of their batch."""

    class Pairs(keras.Model):
        def call(self, x):
            return {"pairs": tf.stack([x, -x], axis=-1), "sums": keras.ops.sum(x, axis=1)}

    batches = [np.arange(2.0 * width, dtype=np.float32).reshape(2, width) for width in widths]
    dataset = tf.data.Dataset.from_generator(
        lambda: iter(batches), output_signature=tf.TensorSpec([None, None], tf.float32)
    )
    expected = Pairs().predict(dataset, verbose=0)
    found = tf2dist.predict(Pairs(), dataset, steps=3)
    np.testing.assert_array_equal(found["sums"], expected["sums"])
    assert isinstance(found["pairs"], tf.RaggedTensor) == isinstance(expected["pairs"], tf.RaggedTensor)
    if isinstance(expected["pairs"], tf.RaggedTensor):
        assert found["pairs"].shape.as_list() == expected["pairs"].shape.as_list()
        assert found["pairs"].to_list() == expected["pairs"].to_list()
    else:
        np.testing.assert_array_equal(found["pairs"], expected["pairs"])


@pytest.mark.slow
def test_limits_of_trial_runs(tf, monkeypatch):
    """Keras has them for all programs: KERAS_MAX_EPOCHS and KERAS_MAX_STEPS_PER_EPOCH."""
    model = classifier(OPTIMIZERS["sgd"]())
    x, y = data()
    before = keras.config.max_epochs(), keras.config.max_steps_per_epoch()
    keras.config.set_max_epochs(2)
    keras.config.set_max_steps_per_epoch(3)
    try:
        history = tf2dist.fit(model, x, y, batch_size=BATCH, epochs=5, validation_data=(x, y))
        assert history.epoch == [0, 1]
        assert tf2dist.updates(model) == 6
        assert len(tf2dist.predict(model, x, batch_size=BATCH)) == 3 * BATCH
        limited = tf2dist.evaluate(model, x, y, batch_size=BATCH)
    finally:
        keras.config.set_max_epochs(before[0])
        keras.config.set_max_steps_per_epoch(before[1])
    assert history.history["val_loss"][-1] == pytest.approx(limited[0])
    assert limited == pytest.approx(tf2dist.evaluate(model, x[: 3 * BATCH], y[: 3 * BATCH], batch_size=BATCH))
    keras.config.set_max_steps_per_epoch(100)
    try:  # no pass becomes longer by it
        tf2dist.fit(model, x, y, batch_size=BATCH)
        assert tf2dist.updates(model) == 6 + -(-ROWS // BATCH)
        endless = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH).filter(lambda *_: True)  # of unknown length
        assert tf2dist.evaluate(model, endless) == pytest.approx(tf2dist.evaluate(model, x, y, batch_size=BATCH))
    finally:
        keras.config.set_max_steps_per_epoch(before[1])
