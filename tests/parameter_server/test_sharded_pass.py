"""Evaluation and prediction in shards, with a pool whose only worker is this process."""

import numpy as np
import pytest

from tests.models import OPTIMIZERS, classifier, data


class Here:
    """A pool of one worker: this process."""

    count = 1

    def schedule(self, function, args):
        return function(*args)

    def fetch(self, remote):
        import tensorflow as tf

        return [np.asarray(t) for t in tf.nest.flatten(remote)]

    def open_iterators(self, make_dataset):
        return iter(make_dataset())

    def first_replica(self, element):
        return element


@pytest.fixture
def passes(tf):
    from tf2dist.parameter_server.sharded_pass import ShardedPass

    return ShardedPass(Here())


def test_arrays_take_the_place_of_others_of_their_shape(passes):
    """The function of the first arrays computes with the second ones, and not with what the workers still hold."""
    from tf2dist.execution.predict_step import PredictStep
    from tf2dist.input.make_adapter import make_finite_adapter

    model, (x, _) = classifier(OPTIMIZERS["sgd"]()), data()
    step = PredictStep(model)
    for rows in (x, 2 * x, x):
        found = np.concatenate(list(passes.predict(step, make_finite_adapter(rows, batch_size=10))))
        np.testing.assert_allclose(found, model(rows), rtol=1e-5, atol=1e-6)
