"""An optimizer on tensors makes the updates that it makes on variables."""

import keras
import numpy as np

from tests.conftest import every_third
from tests.parameter_server.cases import OPTIMIZERS

STEPS, ROWS = 5, (0, 3, 0, 1)  # three of them after one that overflows; a row that a gradient has twice


def made(name):
    """An optimizer that is built, and its two weights."""
    values = np.random.default_rng(0).normal(size=(2, 5, 2)).astype(np.float32)
    weights = [keras.Variable(v, name=n) for v, n in zip(values, ("kernel", "bias_of_rows"), strict=True)]
    optimizer = OPTIMIZERS[name]()
    optimizer.build(weights)
    return optimizer, weights


def gradients(tf, step, scale):
    """A tensor, and slices; too large to be finite in the second step."""
    random = np.random.default_rng(step)
    dense, rows = random.normal(size=(5, 2)), random.normal(size=(4, 2))
    scale = np.inf if step == 1 and scale > 1000 else scale
    slices = tf.IndexedSlices(tf.constant(rows * scale, tf.float32), tf.constant(ROWS), tf.constant([5, 2]))
    return [tf.constant(dense * scale, tf.float32), slices]


@every_third("name", OPTIMIZERS)
def test_equals_the_same_on_variables(tf, name):
    from tf2dist.compat.stateless_optimizer import on_tensors

    def scale_of(optimizer):
        return float(optimizer.scale_loss(tf.ones([])))

    optimizer, weights = made(name)
    mapping = [(v, tf.convert_to_tensor(v.value)) for v in [*weights, *optimizer.variables]]
    for step in range(STEPS):
        with keras.StatelessScope(mapping) as scope:
            arrived = gradients(tf, step, scale_of(optimizer))
            with on_tensors(optimizer):
                optimizer.apply(arrived, weights)
        mapping = [(v, scope.get_current_value(v)) for v, _ in mapping]
    theirs, expected = made(name)
    for variable, untouched in zip(weights, expected, strict=True):
        np.testing.assert_array_equal(variable.numpy(), untouched.numpy())
    for step in range(STEPS):
        theirs.apply(gradients(tf, step, scale_of(theirs)), expected)
    for (variable, ours), their in zip(mapping, [*expected, *theirs.variables], strict=True):
        np.testing.assert_allclose(ours, their.numpy(), rtol=1e-5, atol=1e-7, err_msg=variable.path)
