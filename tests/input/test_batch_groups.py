"""Batches that are put together and taken apart again."""

import numpy as np
import pytest

ROWS = [4, 4, 2, 0, 3]


def batches(tf, make):
    return [make(n, number) for number, n in enumerate(ROWS)]


def kinds(tf):
    return {
        "tensor": lambda n, k: tf.fill([n, 2], k),
        "labels": lambda n, k: (tf.fill([n], 1.0 * k), {"y": tf.fill([n, 1], k), "weight": tf.ones([n])}),
        "words": lambda n, k: tf.constant([f"{k} {i}" for i in range(n)], tf.string, shape=[n]),
        "lengths": lambda n, k: (tf.fill([n, 1 + k % 2], k), tf.fill([n], k)),
        "ranks": lambda n, k: (tf.fill([n] + [1] * (k % 2), k), tf.constant(k)),
        "nodes and edges": lambda n, k: (tf.fill([2 * n, 3], k), tf.fill([n + 1, 2], k)),
        "numbers": lambda n, k: (tf.fill([n], k), tf.constant(1.5 * k)),
        "ragged": lambda n, k: tf.ragged.constant([[k] * i for i in range(n)], dtype=tf.int32, ragged_rank=1),
        "sparse": lambda n, k: tf.sparse.from_dense(tf.fill([n, 2], k)),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["tensor", "labels", "words", "lengths", "ranks", "nodes and edges", "numbers", "ragged", "sparse"]
)
@pytest.mark.parametrize("most", [1, 3, 100])
def test_batches_come_back_as_they_were(tf, kind, most):
    from tf2dist.input.batch_groups import group_signature, grouped, single_batches

    given = batches(tf, kinds(tf)[kind])
    spec = {
        "lengths": (tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)),
        "ranks": (tf.TensorSpec(None, tf.int32), tf.TensorSpec(None, tf.int32)),
        "ragged": tf.RaggedTensorSpec([None, None], tf.int32, ragged_rank=1),
        "sparse": tf.SparseTensorSpec([None, 2], tf.int32),
    }.get(kind)
    if spec is None:
        spec = tf.nest.map_structure(
            lambda t: tf.TensorSpec([None, *t.shape[1:]] if t.shape.rank else [], t.dtype), given[0]
        )

    @tf.function(input_signature=group_signature(spec))
    def flat(together, shapes):
        dataset = single_batches(together, shapes, spec)
        assert dataset.element_spec == spec
        joined = tf.constant("")
        for batch in dataset:
            parts = [tf.io.serialize_tensor(t) for t in tf.nest.flatten(batch, expand_composites=True)]
            joined = tf.strings.join([joined, *parts])
        return joined

    found = list(grouped(given, most))
    assert [n for n, *_ in found] == ({1: [1] * 5, 3: [3, 2], 100: [5]}[most] if kind != "ranks" else [1] * 5)
    ours = b"".join(flat(together, shapes).numpy() for _, together, shapes in found)
    parts = [
        tf.io.serialize_tensor(t).numpy() for batch in given for t in tf.nest.flatten(batch, expand_composites=True)
    ]
    assert ours == b"".join(parts)


def test_a_group_is_not_larger_than_a_message_should_be(tf, monkeypatch):
    from tf2dist.input import batch_groups

    monkeypatch.setattr(batch_groups, "_MAX_BYTES", 100)
    given = [tf.constant(np.zeros(10, np.float32))] * 7
    assert [n for n, *_ in batch_groups.grouped(given, 50)] == [2, 2, 2, 1]
    given = [tf.constant(["twenty characters, no"] * 2)] * 4
    assert [n for n, *_ in batch_groups.grouped(given, 50)] == [2, 2]
    group = batch_groups.Group(at_least=3)
    for n in range(4):
        assert group.takes([given[0]], 60) == (n < 3)
        group.add([given[0]], 60)
