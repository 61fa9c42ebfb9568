"""Metric sums over many steps keep every count."""

import pytest


class Step:
    """As many examples in a step as make three steps more than a float32 counts, and as an int32 holds."""

    def __init__(self, tf):
        self._tf = tf

    def zero_sums(self):
        return [self._tf.zeros([]), self._tf.zeros([2], self._tf.int32)]

    def add_sums(self, sums, more):
        return [t + m for t, m in zip(sums, more, strict=True)]

    def sums(self):
        return [self._tf.constant(2.0**23 + 1), self._tf.constant([2**30, 1])]


@pytest.fixture
def step(tf):
    return Step(tf)


def test_no_count_is_lost(tf, step):
    from tf2dist.parameter_server import worker_metric_sums

    examples, counts = tf.function(lambda n: worker_metric_sums.repeat(step, step.sums, n))(tf.constant(3))
    assert examples.numpy() == 3 * 2**23 + 3
    assert counts.numpy().tolist() == [3 * 2**30, 3]
