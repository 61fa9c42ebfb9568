"""What is summed over the peers arrives as it was."""

import pytest

import tf2dist


@pytest.fixture
def strategy(tf):
    return tf2dist.make_strategy("mirrored", replicas=2)


def test_sums_keep_integers_and_doubles(tf, strategy):
    from tf2dist.runtime import collectives

    sent = [tf.constant(2**24 + 1), tf.constant([2**40 + 1, 3], tf.int64), tf.constant(1 / 3, tf.float64), tf.zeros([])]
    found = tf.function(lambda: collectives.all_reduce(strategy, sent))()
    assert [t.dtype for t in found] == [t.dtype for t in sent]
    assert [t.numpy().tolist() for t in found] == [t.numpy().tolist() for t in sent]
