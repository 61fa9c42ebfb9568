"""Evaluation and prediction in shards, with a pool whose only worker is this process."""

import math

import numpy as np
import pytest

from tests.models import OPTIMIZERS, classifier, data


class Here:
    """A pool of one worker: this process."""

    count = 1

    def __init__(self):
        self.scheduled = 0

    def schedule(self, function, args):
        self.scheduled += 1
        return function(*args)

    def first_ended(self, remotes, limit=math.inf):
        return len(remotes) - 1  # the last one first

    def fetch(self, remote):
        import tensorflow as tf

        return [np.asarray(t) for t in tf.nest.flatten(remote)]

    def has_idle_worker(self):
        return False

    def abandon(self, remotes):
        assert not remotes

    def open_iterators(self, make_dataset, arrays=(), *, on_host):
        import tensorflow as tf

        assert on_host  # all of the data is one element: no GPU is to prefetch it
        return iter(make_dataset(tf.nest.map_structure(tf.constant, arrays)))


@pytest.fixture
def pool():
    return Here()


@pytest.fixture
def passes(tf, pool):
    from tf2dist.parameter_server.sharded_evaluate_predict import ShardedPass

    return ShardedPass(pool)


def test_shards_that_wait_for_others_are_steps(tf, passes):
    """Nothing of a prediction is yielded before all of it is there, and a job that moves must not count as stalled."""
    from tf2dist.execution.predict_step import PredictStep
    from tf2dist.input.make_adapter import make_finite_adapter
    from tf2dist.runtime import session

    x, _ = data()
    outputs = passes.predict(PredictStep(classifier(OPTIMIZERS["sgd"]())), make_finite_adapter(x, batch_size=2))
    before = session.current().progress.count
    next(outputs)
    assert session.current().progress.count == before + 4  # shards of the only worker


@pytest.mark.slow
def test_a_dataset_is_read_once_however_long_it_is(tf, pool, passes):
    """And batch by batch the results are those of each batch, in order."""
    from tf2dist.execution.keras_train_step import KerasTrainStep
    from tf2dist.execution.predict_step import PredictStep
    from tf2dist.input.make_adapter import make_finite_adapter

    model = classifier(OPTIMIZERS["sgd"]())
    x, y = data()
    model.evaluate(x, y, verbose=0)  # makes its metrics
    read = tf.Variable(0)

    def note(*rows):
        read.assign_add(1)
        return rows

    dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat(8).map(note).batch(3)
    adapter = make_finite_adapter(dataset)
    step = KerasTrainStep(model)
    whole = list(passes.evaluate(step, adapter, one_by_one=False))
    assert int(read) == 8 * len(x)
    each = list(passes.evaluate(step, adapter, one_by_one=True))
    found = np.concatenate(list(passes.predict(PredictStep(model), adapter)))
    assert int(read) == 3 * 8 * len(x)
    assert pool.scheduled < 3 * 12  # not one by one
    np.testing.assert_allclose(found, np.tile(model(x), (8, 1)), rtol=1e-5, atol=1e-6)
    assert [steps for steps, _ in each] == [1] * adapter.steps == [1] * sum(steps for steps, _ in whole)
    for ours, theirs in zip(np.sum([sums for _, sums in each], 0), np.sum([sums for _, sums in whole], 0), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    of_arrays = list(passes.evaluate(step, make_finite_adapter((x, y), batch_size=3), one_by_one=True))
    for (_, ours), (_, theirs) in zip(each[: len(x) // 3], of_arrays, strict=False):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_a_dataset_that_ends_early(tf, passes):
    from tf2dist.execution.keras_train_step import KerasTrainStep
    from tf2dist.input.make_adapter import make_finite_adapter

    model = classifier(OPTIMIZERS["sgd"]())
    model.evaluate(*data(), verbose=0)
    ends = tf.data.Dataset.from_tensor_slices(data()).filter(lambda x, y: True).batch(8)
    with pytest.raises(tf.errors.OutOfRangeError, match="the dataset has"):
        list(passes.evaluate(KerasTrainStep(model), make_finite_adapter(ends, steps=1000), one_by_one=False))


def test_arrays_take_the_place_of_others_of_their_shape(passes):
    """The function of the first arrays computes with the second ones, and not with what the workers still hold."""
    from tf2dist.execution.predict_step import PredictStep
    from tf2dist.input.make_adapter import make_finite_adapter

    model, (x, _) = classifier(OPTIMIZERS["sgd"]()), data()
    step = PredictStep(model)
    for rows in (x, 2 * x, x):
        found = np.concatenate(list(passes.predict(step, make_finite_adapter(rows, batch_size=10))))
        np.testing.assert_allclose(found, model(rows), rtol=1e-5, atol=1e-6)


class Slow(Here):
    """A pool of which a worker is idle, and the other so slow that shards are computed by both."""

    def __init__(self):
        super().__init__()
        self.asked, self.abandoned = 0, []

    def has_idle_worker(self):
        return True

    def first_ended(self, remotes, limit=math.inf):
        self.asked += 1
        return None if self.asked == 1 else 0

    def abandon(self, remotes):
        self.abandoned += remotes


@pytest.mark.parametrize("one_by_one", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_shard_that_two_workers_compute_counts_once(tf, one_by_one):
    from tf2dist.execution.keras_train_step import KerasTrainStep
    from tf2dist.input.make_adapter import make_finite_adapter
    from tf2dist.parameter_server.sharded_evaluate_predict import ShardedPass

    model, rows = classifier(OPTIMIZERS["sgd"]()), data()
    model.evaluate(*rows, verbose=0)
    adapter = make_finite_adapter(rows, batch_size=8)
    pools = Here(), Slow()
    expected, found = (
        [*ShardedPass(pool).evaluate(KerasTrainStep(model), adapter, one_by_one=one_by_one)] for pool in pools
    )
    assert pools[1].scheduled > pools[0].scheduled
    assert pools[1].abandoned
    assert sum(steps for steps, _ in found) == sum(steps for steps, _ in expected) == adapter.steps
    together = [np.sum([sums[0] for _, sums in each]) for each in (found, expected)]
    assert together[0] == pytest.approx(together[1])


def test_outputs_with_unequal_numbers_of_rows(tf, passes):
    """Boxes of images, say: their rows are put together as they belong, whatever the shards are."""
    import keras

    from tf2dist.execution.predict_step import PredictStep
    from tf2dist.input.make_adapter import make_finite_adapter

    class Boxes(keras.Model):
        def call(self, x):
            return {"boxes": tf.repeat(x, 3, axis=0), "scores": x[:, 0]}

    x = np.arange(80, dtype=np.float32).reshape(40, 2)
    adapter = make_finite_adapter(x, batch_size=1)
    found = list(passes.predict(PredictStep(Boxes()), adapter))
    assert len(found) == 40
    np.testing.assert_array_equal(np.concatenate([f["boxes"] for f in found]), np.repeat(x, 3, axis=0))
    np.testing.assert_array_equal(np.concatenate([f["scores"] for f in found]), x[:, 0])


def test_outputs_that_are_longer_in_some_batches(tf, passes):
    """Words of sentences, say, which are padded to the longest of their batch."""
    import keras

    from tf2dist.execution.predict_step import PredictStep
    from tf2dist.input.make_adapter import make_finite_adapter

    class Twice(keras.Model):
        def call(self, x):
            return {"words": 2 * x, "pairs": tf.stack([x, -x], axis=-1), "sums": keras.ops.sum(x, axis=1)}

    sentences = [np.full([2, 1 + number % 3], number, np.float32) for number in range(12)]
    dataset = tf.data.Dataset.from_generator(
        lambda: iter(sentences), output_signature=tf.TensorSpec([None, None], tf.float32)
    )
    found = list(passes.predict(PredictStep(Twice()), make_finite_adapter(dataset, steps=12)))
    for outputs, x in zip(found, sentences, strict=True):
        np.testing.assert_array_equal(outputs["words"], 2 * x)
        np.testing.assert_array_equal(outputs["pairs"], np.stack([x, -x], axis=-1))
        np.testing.assert_array_equal(outputs["sums"], x.sum(axis=1))
