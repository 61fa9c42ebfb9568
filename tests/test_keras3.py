"""Guards: each test of an upstream fault fails when it is mended, and its workaround can go."""

import subprocess
import sys
import textwrap

import keras
import pytest

import tf2dist
from tests.models import OPTIMIZERS, classifier, data


def operations(tf, variable):
    graph = tf.function(lambda: variable.assign_add(1)).get_concrete_function().graph
    return {operation.type for operation in graph.get_operations()}


def test_upstream_counts_by_reading_and_writing(tf):
    """keras#18624: fails when `keras.Variable.assign_add` is one operation; then AtomicCounter can go."""
    counter = keras.Variable(0, dtype="int64", trainable=False)
    assert "AssignAddVariableOp" not in operations(tf, counter)


def test_ours_counts_in_one_operation(tf):
    from tf2dist import keras3

    model = classifier(OPTIMIZERS["sgd"]())
    model.optimizer.build(model.trainable_variables)
    name, before = model.optimizer.iterations.path, model.optimizer.variables
    keras3.count_atomically(model.optimizer)
    assert "AssignAddVariableOp" in operations(tf, model.optimizer.iterations)
    assert model.optimizer.iterations.path == name
    assert all(a is b for a, b in zip(model.optimizer.variables, before, strict=True))
    model.optimizer.iterations.assign(0)
    model.optimizer.iterations.assign_add(2)
    assert tf2dist.updates(model) == 2


def test_upstream_central_storage_refuses_state_without_aggregation(tf):
    """Fails when Keras gives its states an aggregation; then aggregate_by_default can go."""
    strategy = tf.distribute.experimental.CentralStorageStrategy(["/cpu:0", "/cpu:1"], "/cpu:0")
    with strategy.scope():
        model = classifier(OPTIMIZERS["sgd"](), keras.layers.Dropout(0.5))
    with pytest.raises(ValueError, match="You must specify an aggregation method"):
        tf2dist.fit(model, data(), batch_size=16)


def test_one_mirrored_strategy_for_the_same_devices(tf):
    first = tf2dist.make_strategy("mirrored", replicas=2)
    assert tf2dist.make_strategy("mirrored", replicas=2) is first


def test_upstream_mirrored_strategies_share_collective_keys():
    """Fails when a second MirroredStrategy works beside the first; then make_strategy need not keep one."""
    program = """
        import tensorflow as tf
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2)
        for size in (2, 3):
            strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
            @tf.function
            def total():
                def one():
                    return tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([size]))
                return strategy.run(one)
            total()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "Shape mismatch in the collective instance" in done.stderr
