"""Results of metrics become logs as Keras makes them."""

import numpy as np

from tf2dist.execution.flat_logs import as_logs, flat_results


def test_dictionaries_are_flattened_in_the_order_of_names(tf):
    results = {"loss": tf.constant(0.5), "both": {"mean": tf.constant(2.0), "a": 1}, "each": tf.constant([1.0, 2.0])}
    logs = as_logs(results)
    assert list(logs) == ["a", "mean", "each", "loss"]
    assert (logs["a"], logs["mean"], logs["loss"]) == (1.0, 2.0, 0.5)
    np.testing.assert_array_equal(logs["each"], [1.0, 2.0])


def test_names_that_are_no_text():
    assert flat_results(flat_results({"per_class": {0: 1.0, 1: 2.0}, "loss": 3.0})) == {"loss": 3.0, 0: 1.0, 1: 2.0}
