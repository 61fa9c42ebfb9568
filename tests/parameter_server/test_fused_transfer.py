"""Small tensors travel together and arrive as they were."""

import keras
import numpy as np
import pytest

SHAPES = [(2, 3), (4,), (), (5, 2), (300,)]


@pytest.fixture
def variables(tf):
    random = np.random.default_rng(0)
    made = [keras.Variable(random.normal(size=shape).astype("float32")) for shape in SHAPES]
    return [*made, keras.Variable(np.arange(3), dtype="int64", trainable=False)]


def test_fetches_the_values(tf, variables):
    from tf2dist.parameter_server.fused_transfer import FusedTransfer

    found = tf.function(FusedTransfer(variables, fused_bytes=100).fetch)()
    for value, variable in zip(found, variables, strict=True):
        np.testing.assert_array_equal(value, variable.value)
        assert (value.shape, value.dtype) == (variable.value.shape, variable.value.dtype)


def test_sends_tensors_of_their_shapes(tf, variables):
    from tf2dist.parameter_server.fused_transfer import FusedTransfer

    tensors = [2 * tf.convert_to_tensor(v.value) for v in variables]
    transfer = FusedTransfer(variables, 100)
    sent = transfer.send(tensors)
    assert len(sent) == 3  # the small floats together, the large one, the integers
    for value, tensor in zip(transfer.unpack(sent), tensors, strict=True):
        np.testing.assert_array_equal(value, tensor)


def test_small_ones_travel_together(tf, variables):
    """One concatenation for the four small floats; the large one and the integers travel alone."""
    from tf2dist.parameter_server.fused_transfer import FusedTransfer

    graph = tf.function(FusedTransfer(variables, fused_bytes=100).fetch).get_concrete_function().graph
    assert [len(op.inputs) - 1 for op in graph.get_operations() if op.type == "ConcatV2"] == [4]
