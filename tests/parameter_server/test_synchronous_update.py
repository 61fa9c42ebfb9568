"""What becomes of the contributions to a synchronous update."""

import numpy as np
import pytest

from tf2dist.parameter_server.synchronous_update import _mean


@pytest.mark.parametrize(
    ("values", "weights", "mean"),
    [((2.0, 6.0), (0.75, 0.25), 3.0), ((2.0, np.nan), (1.0, 0.0), 2.0), ((2.0, 6.0), (0.0, 0.0), 9.0)],
)
def test_what_layers_write_is_weighed_by_slices(tf, values, weights, mean):
    """A slice that stands in for an empty one says nothing; without any other the value stays."""
    found = _mean([*map(tf.constant, values)], [*map(tf.constant, weights)], tf.constant(9.0))
    assert float(found) == pytest.approx(mean)
