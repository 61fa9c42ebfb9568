"""Sparse and ragged rows as a Dataset of batches."""

import numpy as np
import pytest
import scipy.sparse

ROWS, BATCH = 10, 4


def numbers(tf, kind):
    """Rows of which each holds its own number."""
    if kind == "ragged":
        return tf.ragged.constant([[n] * (1 + n % 3) for n in range(1, ROWS + 1)])
    dense = np.diag(np.arange(1, ROWS + 1))
    return scipy.sparse.csr_matrix(dense) if kind == "SciPy" else tf.sparse.from_dense(dense)


def found(batch, kind):
    """The number of each row of a batch."""
    return [int(row[0]) for row in batch] if kind == "ragged" else batch.values.numpy().tolist()


@pytest.mark.parametrize("kind", ["ragged", "sparse", "SciPy"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_pass_has_every_row_once(tf, kind, shuffle):
    """The last batch, of two rows, among them; with labels beside them."""
    from tf2dist.input.sparse_ragged_rows import batches_of_rows

    labels = np.arange(1, ROWS + 1)
    batches = list(batches_of_rows((numbers(tf, kind), labels), BATCH, shuffle=shuffle, seed=1))
    rows = [found(x, kind) for x, _ in batches]
    assert [len(y) for _, y in batches] == [4, 4, 2]
    assert [y.numpy().tolist() for _, y in batches] == rows
    order = [number for batch in rows for number in batch]
    assert sorted(order) == labels.tolist()
    assert (order == labels.tolist()) == (not shuffle)
