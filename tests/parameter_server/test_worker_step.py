"""What a worker's step does with gradients when they arrive at the servers."""

import types

import keras
import numpy as np
import pytest

import tf2dist
from tests.models import OPTIMIZERS, classifier, data
from tf2dist.parameter_server.worker_step import WorkerStep


def test_gradients_of_a_loss_with_another_scale(tf):
    """Another worker's update may have changed the scale since; Keras divides by the one of now."""
    model = classifier(OPTIMIZERS["sgd"]())
    scale = keras.Variable(8.0, trainable=False)
    step = types.SimpleNamespace(_scales=[scale], _model=model)
    gradients = [2.0 * tf.ones(v.shape) for v in model.trainable_variables]
    rows = tf.IndexedSlices(
        tf.fill([1, *gradients[0].shape[1:]], 2.0), tf.constant([1]), tf.constant(gradients[0].shape)
    )
    for given in (gradients, [rows, *gradients[1:]]):
        found = WorkerStep._rescaled(step, given, [tf.constant(2.0)])
        for gradient in found:
            values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
            np.testing.assert_array_equal(values, np.full(values.shape, 8.0))


def test_local_steps_are_counted_beside_those_of_others(tf):
    """What another worker has counted since the weights were fetched is not overwritten."""
    from tf2dist.execution.keras_train_step import KerasTrainStep
    from tf2dist.parameter_server.local_sgd import LocalSgd

    model = classifier(OPTIMIZERS["adam"]())
    model.train_on_batch(*data())  # makes all variables
    iterations = model.optimizer.iterations

    def apply(update, sent, steps, token):
        iterations.value.assign_add(7)  # of another worker
        update()

    rows, first = tuple(map(tf.constant, data())), tf.zeros([], tf.int64)
    batches = types.SimpleNamespace(take=lambda ahead, number, end: (rows, ahead))
    local = LocalSgd(KerasTrainStep(model), types.SimpleNamespace(apply=apply))
    tf.function(lambda: local.run_round(batches, (), first, tf.constant(3), first, None)[0], autograph=False)()
    assert int(iterations) == 1 + 7 + 3


def test_what_layers_write_travels_with_weights_and_gradients(tf):
    """A step reads nothing but what it was told, and sends one tensor of each dtype."""
    from tf2dist.execution.keras_train_step import KerasTrainStep
    from tf2dist.parameter_server.update_counter import UpdateCounter

    norm, dropout = keras.layers.BatchNormalization, keras.layers.Dropout(0.5, seed=1)
    model = classifier(OPTIMIZERS["adam"](), norm(), dropout, norm())
    model.train_on_batch(*data())  # makes all variables
    own = WorkerStep(KerasTrainStep(model), UpdateCounter(tf2dist.make_strategy("one")))
    held = types.SimpleNamespace(is_valid=lambda: tf.constant(True), count_applied=lambda updates: None)

    def update(x, y, *told):
        return own.update((x, y), held, told)

    told = tf.function(own.begin, autograph=False)()
    assert [t.dtype for t in told] == [tf.float32, tf.int64]
    step = tf.function(update, autograph=False)
    traced = step.get_concrete_function(*map(tf.constant, data()), *told)
    operations = traced.graph.get_operations()
    assert [op.name for op in operations if op.type == "ReadVariableOp"] == []
    (call,) = (op for op in operations if op.type == "StatefulPartitionedCall")
    assert {t.dtype for t in call.inputs if t.dtype != tf.resource} == {tf.float32, tf.int64}
    assert sum(t.dtype != tf.resource for t in call.inputs) == 2
    expected = [np.asarray(v) for v in model.non_trainable_variables]
    _, after = step(*map(tf.constant, data()), *told)
    assert all((tf.reduce_any(a != b)) for a, b in zip(after, told, strict=True))
    for new, old in zip(model.non_trainable_variables, expected, strict=True):
        assert (np.asarray(new) != old).any()


@pytest.mark.parametrize("kept", ["frozen", "table", "user's own", "other dtype"])
def test_what_a_step_may_not_read_or_use_otherwise_stays_where_it_is(tf, kept):
    from tf2dist.parameter_server.worker_step import written_by_layers

    class Counts(keras.layers.Layer):
        def build(self, shape):
            self.seen = self.add_weight(shape=(), dtype="float32", trainable=False)

        def call(self, inputs):
            return inputs

    extra = {
        "frozen": keras.layers.BatchNormalization(trainable=False),
        "table": keras.layers.Embedding(2, 3, trainable=False),
        "user's own": Counts(),
        "other dtype": keras.layers.BatchNormalization(dtype="float64"),
    }[kept]
    parts = keras.Sequential([extra, keras.layers.BatchNormalization(), keras.layers.GaussianNoise(0.1)])
    model = keras.Sequential([keras.Input((4,)), parts, keras.layers.Flatten(), keras.layers.Dense(2)])
    found = sorted(v.path.rsplit("/", 1)[-1] for v in written_by_layers(model, {"float32"}))
    assert found == ["moving_mean", "moving_variance", "seed_generator_state"]
