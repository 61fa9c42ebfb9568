"""What an update does under the mutex of its variable, in the graph of one process."""

import keras
import pytest

from tests.conftest import sampled
from tests.models import OPTIMIZERS, classifier, data
from tests.parameter_server.graphs import before

WRITES = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")


@pytest.mark.parametrize("name", ["momentum", pytest.param("adam", marks=pytest.mark.slow)])
def test_a_mutex_is_held_from_before_the_first_write_until_after_the_last(tf, name):
    """Else another worker writes in between, or reads what is half written."""
    from tf2dist.parameter_server.variable_mutex import one_worker_at_a_time

    model = classifier(OPTIMIZERS[name]())
    model.train_on_batch(*data())  # makes all variables
    weights = model.trainable_variables
    state = [v for v in model.optimizer.variables if len(v.shape)]
    shared = {id(v.value.handle) for v in [*weights, *state]}

    @tf.function
    def update():
        with one_worker_at_a_time(model.optimizer):
            model.optimizer.apply([tf.ones(v.shape) for v in weights], weights)

    graph = update.get_concrete_function().graph
    handles = {inner.name for value, inner in graph.captures if id(value) in shared}
    operations = graph.get_operations()
    writes = {op for op in operations if op.type in WRITES and op.inputs[0].name in handles}
    held = set()
    for end in (op for op in operations if op.type == "ConsumeMutexLock"):
        lock = end.inputs[0].op
        held |= {op for op in before(end) & writes if lock in before(op)}
    assert len(writes) == len(weights) + len(state)
    assert held == writes


def test_rows_are_added_to_under_the_mutex(tf):
    """Else what two workers add to the same row at once may count once. What is dense needs none: it is locked."""
    from tf2dist.parameter_server.variable_mutex import one_worker_at_a_time

    layer = keras.layers.Embedding(4, 2, embeddings_initializer="zeros")
    model = keras.Sequential([keras.Input((3,), dtype="int64"), layer, keras.layers.Flatten(), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.5)
    optimizer.build(model.trainable_variables)
    weights = model.trainable_variables

    @tf.function
    def update():
        slices = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([1, 3]), tf.constant([4, 2]))
        with one_worker_at_a_time(optimizer):
            optimizer.apply([slices, *(tf.ones(v.shape) for v in weights[1:])], weights)

    before_it = layer.get_weights()[0]
    operations = update.get_concrete_function().graph.get_operations()
    (write,) = (op for op in operations if op.type == "ResourceScatterSub")
    (end,) = (op for op in operations if op.type == "ConsumeMutexLock")
    assert write in before(end)
    assert end.inputs[0].op in before(write)
    update()
    assert (layer.get_weights()[0] - before_it).tolist() == [[0, 0], [-0.5, -0.5], [0, 0], [-0.5, -0.5]]


AVERAGED = {"use_ema": True, "ema_overwrite_frequency": 2}
MORE = {
    "average": lambda: keras.optimizers.Adam(**AVERAGED),
    "accumulation": lambda: keras.optimizers.SGD(gradient_accumulation_steps=2),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()),
    "constraint": keras.optimizers.SGD,
}


@pytest.mark.parametrize("name", sampled(MORE, ["constraint", "scaled"], ["average", "accumulation"]))
def test_an_update_that_writes_more_than_its_steps_is_under_one_mutex(tf, name):
    """All that it writes, also in conditions: else what another worker writes in between is lost."""
    from tf2dist.parameter_server.variable_mutex import one_update_at_a_time

    model = classifier(MORE[name]())
    weights = model.trainable_variables
    if name == "constraint":
        weights[0].constraint = keras.constraints.UnitNorm()
    model.train_on_batch(*data())  # makes all variables

    @tf.function
    def update():
        with one_update_at_a_time(model.optimizer, weights):
            model.optimizer.apply([tf.ones(v.shape) for v in weights], weights)

    operations = update.get_concrete_function().graph.get_operations()
    writes = {op for op in operations if op.type in (*WRITES, "If")}
    (end,) = (op for op in operations if op.type == "ConsumeMutexLock")
    assert len(writes) > 1
    assert {op for op in before(end) & writes if end.inputs[0].op in before(op)} == writes


@pytest.mark.slow
def test_plain_updates_of_workers_overlap(tf):
    from tf2dist.parameter_server.variable_mutex import one_update_at_a_time

    model = classifier(OPTIMIZERS["adam"]())

    @tf.function
    def update():
        with one_update_at_a_time(model.optimizer, model.trainable_variables):
            tf.zeros([])

    model.train_on_batch(*data())
    assert "MutexLock" not in [op.type for op in update.get_concrete_function().graph.get_operations()]
