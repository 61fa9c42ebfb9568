"""What TensorFlow 2.21 has no part of left: there is nothing to run beside ours."""

import pytest

from tf2dist.migrate import concepts


@pytest.mark.parametrize("row", ["estimators", "contrib-distribute", "horovod"])
def test_gone(tf, row):
    """No symbol of the row is there, but for tf.distribute, which is what strategies are made of."""
    (concept,) = [c for c in concepts.CONCEPTS if c.row == row]
    there = []
    for name in concept.symbols.split():
        found = tf.compat.v1
        for part in name.removesuffix(".*").split("."):
            found = getattr(found, part, None)
        if found is not None:
            there.append(name)
    assert there == {"estimators": ["tpu.*"], "contrib-distribute": ["distribute.*"], "horovod": []}[row]
