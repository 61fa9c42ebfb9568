"""A batch fails in the middle of a worker's execution: the batches before it are applied and counted, and no others."""

import pickle

import numpy as np
import pytest

from tests.jobs import run_program
from tests.models import OPTIMIZERS, classifier, data

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("bad", [0, 5, 11])
def test_batches_before_one_that_fails_are_applied(tf, tmp_path, servers, bad):
    """Also those of the same turn of the worker's loop, whose updates may be under way when the next batch is read."""
    run_program([f"--ps={servers}", "--workers=1"], "bad_batches", tmp_path / "found", bad)
    error, updates, weights = pickle.loads((tmp_path / "found").read_bytes())
    assert (error, updates) == ("InvalidArgumentError", bad)
    model = classifier(OPTIMIZERS["adam"]())
    for begin in range(0, 8 * bad, 8):
        model.train_on_batch(*(array[begin : begin + 8] for array in data()))
    for ours, theirs in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=5e-4, atol=2e-5)
