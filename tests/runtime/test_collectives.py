"""What is summed over the peers arrives as it was."""

import subprocess
import sys
import textwrap

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


@pytest.mark.slow
def test_sixths_of_a_count_add_up_to_it():
    """Each replica contributes an equal part of its peer's sum; six of 1/6 are a little less than 1."""
    program = """
        import tf2dist
        strategy = tf2dist.join("mirrored", replicas=6)
        import tensorflow as tf
        from tf2dist.runtime import collectives
        counts = tf.range(200)
        print(bool(tf.reduce_all(tf.function(lambda: collectives.all_reduce(strategy, [counts]))()[0] == counts)))
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "True\n"


@pytest.fixture
def two_peers(strategy, monkeypatch):
    """Two replicas stand in for two peers of one replica each, with the same values; this is the first."""
    from tf2dist.runtime import collectives

    monkeypatch.setattr(collectives, "peers", lambda strategy: (2, 0))
    return collectives


def test_broadcasts_in_dtypes_that_every_nccl_adds_up(tf, strategy, two_peers, monkeypatch):
    """And for which GPUs have what TensorFlow makes around it: `tests/gpu/test_kernels.py`."""
    import ml_dtypes
    import numpy as np

    added, add = set(), tf.distribute.ReplicaContext.all_reduce

    def all_reduce(context, reduce_op, value, options=None):
        added.add(value.dtype.name)
        return add(context, reduce_op, value, options)

    monkeypatch.setattr(tf.distribute.ReplicaContext, "all_reduce", all_reduce)
    sent = [
        np.linspace(-3e38, 3e38, 1001).astype(ml_dtypes.bfloat16),
        np.array([0.5, -448.0], ml_dtypes.float8_e4m3fn),
        np.array([True, False]),
        np.array([[-(2**63), -(2**53) - 1, -1], [0, 2**53 + 1, 2**63 - 1]]),
        np.array(2**64 - 1, np.uint64),
        np.array([-7], np.int8),
        np.array([1.5], np.float16),
        np.float32(1 / 3),
        np.array([1 / 3]),
    ]
    for array, found in zip(sent, two_peers.broadcast(strategy, sent), strict=True):
        assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert added == {"float16", "float32", "float64"}


@pytest.mark.parametrize("data", [b"", b"a", bytes(range(256))])
def test_gathers_bytes(strategy, two_peers, data):
    assert two_peers.all_gather(strategy, data) == [data, data]
