"""Updates of several replicas equal those of one device: every optimizer, with options, on rows that are looked up."""

import keras
import numpy as np
import pytest

import tf2dist
from tf2dist.compat import global_batch_gradients

ROWS, WIDTH = 5, 2
OPTIMIZERS = {
    "sgd": (keras.optimizers.SGD, {"learning_rate": 0.1}),
    "momentum": (keras.optimizers.SGD, {"learning_rate": 0.1, "momentum": 0.9, "nesterov": True}),
    "adadelta": (keras.optimizers.Adadelta, {"learning_rate": 1.0}),
    "adafactor": (keras.optimizers.Adafactor, {"learning_rate": 0.05}),
    "adagrad": (keras.optimizers.Adagrad, {"learning_rate": 0.1}),
    "adam": (keras.optimizers.Adam, {"learning_rate": 0.05, "amsgrad": True}),
    "adamax": (keras.optimizers.Adamax, {"learning_rate": 0.05}),
    "adamw": (keras.optimizers.AdamW, {"learning_rate": 0.05}),
    "ftrl": (keras.optimizers.Ftrl, {"learning_rate": 0.1}),
    "lamb": (keras.optimizers.Lamb, {"learning_rate": 0.05}),
    "lion": (keras.optimizers.Lion, {"learning_rate": 0.01}),
    "muon": (keras.optimizers.Muon, {"learning_rate": 0.01}),
    "nadam": (keras.optimizers.Nadam, {"learning_rate": 0.05}),
    "rmsprop": (keras.optimizers.RMSprop, {"learning_rate": 0.05}),
    "schedule_free": (keras.optimizers.ScheduleFreeAdamW, {"learning_rate": 0.05}),
}
AVERAGED = {"use_ema": True, "ema_momentum": 0.7, "ema_overwrite_frequency": 2}
OPTIONS = {
    "clipnorm, weight_decay": {"clipnorm": 0.5, "weight_decay": 0.02},
    "global_clipnorm, averages": {"global_clipnorm": 0.5, **AVERAGED},
    "loss scale, accumulation, averages": {"gradient_accumulation_steps": 2, "clipvalue": 0.5, **AVERAGED},
}


class Trained:
    """A table, a table of positions and a vector, with one optimizer."""

    def __init__(self, name, options):
        kind, given = OPTIMIZERS[name]
        self.optimizer = kind(**given, **OPTIONS[options])
        if "loss scale" in options:
            self.optimizer = keras.optimizers.LossScaleOptimizer(self.optimizer, 4.0, dynamic_growth_steps=2)
        random = np.random.default_rng(1)
        shapes = {"words": [ROWS, WIDTH], "positions": [ROWS, WIDTH], "bias": [WIDTH]}
        self.weights = [keras.Variable(random.random(s, np.float32), name=n) for n, s in shapes.items()]
        self.weights[0].constraint = keras.constraints.UnitNorm(axis=1)
        self.optimizer.build(self.weights)

    def values(self):
        return {v.path: keras.ops.convert_to_numpy(v) for v in [*self.weights, *self.optimizer.variables]}


def gradients(tf, step, replica, scale):
    """Those of a replica: four words, one of them the same on all; all positions; the vector's."""
    random = np.random.default_rng([step, replica])

    def values(*shape):
        return scale * tf.constant(random.normal(size=shape), tf.float32)

    words = [2, replica, *random.integers(0, ROWS, 2)]
    shape = tf.constant([ROWS, WIDTH])
    return [
        tf.IndexedSlices(values(4, WIDTH), tf.constant(words), shape),
        tf.IndexedSlices(values(ROWS, WIDTH), tf.range(ROWS), shape),
        values(WIDTH),
    ]


def whole(tf, parts):
    """The gradients of the batch that the replicas had parts of."""
    words, positions, bias = zip(*parts, strict=True)
    values, indices = tf.concat([s.values for s in words], 0), tf.concat([s.indices for s in words], 0)
    return [
        tf.IndexedSlices(values, indices, words[0].dense_shape),
        tf.IndexedSlices(tf.add_n([s.values for s in positions]), positions[0].indices, words[0].dense_shape),
        tf.add_n(bias),
    ]


def run(tf, strategy, update):
    """Makes an update in a graph."""
    tf.function(lambda: strategy.run(update))()


QUICK = ("adam", "clipnorm, weight_decay")
SLOW = ("sgd", "momentum", "adagrad", "adam", "adamw", "lion", "schedule_free")  # others are like one of these


def _when(name, options):
    return () if (name, options) == QUICK else pytest.mark.slow if name in SLOW else pytest.mark.exhaustive


@pytest.mark.parametrize(
    ("name", "options"),
    [pytest.param(name, options, marks=_when(name, options)) for name in OPTIMIZERS for options in OPTIONS],
)
def test_equals_one_device(tf, name, options):
    strategy = tf2dist.make_strategy("mirrored", replicas=3)
    alone = Trained(name, options)
    with strategy.scope():
        ours = Trained(name, options)
    for step in range(4):
        scale = float(alone.optimizer.scale_loss(1.0))
        if "loss scale" in options and step in (0, 2):
            scale = np.inf
        parts = [gradients(tf, step, replica, scale) for replica in range(3)]
        alone.optimizer.apply(whole(tf, parts), alone.weights)

        def update(parts=parts):
            mine = parts[tf.distribute.get_replica_context().replica_id_in_sync_group]
            global_batch_gradients.apply_gradients(ours.optimizer, mine, ours.weights)

        strategy.run(update)
    for (path, value), found in zip(alone.values().items(), ours.values().values(), strict=True):
        np.testing.assert_allclose(found, value, 2e-4, 1e-5, err_msg=path)


class Broken(keras.optimizers.SGD):
    """Its updates fail."""

    def update_step(self, gradient, variable, learning_rate):
        raise NotImplementedError("no update")


def test_update_that_raises_leaves_the_optimizer_as_it_was(tf):
    strategy = tf2dist.make_strategy("mirrored", replicas=2)
    with strategy.scope():
        weight = keras.Variable([1.0])
        inner = Broken(0.1, **AVERAGED)
        optimizer = keras.optimizers.LossScaleOptimizer(inner)
        optimizer.build([weight])
    before = [dict(vars(o)) for o in (optimizer, inner)]
    with pytest.raises(NotImplementedError, match="no update"):
        run(tf, strategy, lambda: global_batch_gradients.apply_gradients(optimizer, [tf.ones([1])], [weight]))
    assert [dict(vars(o)) for o in (optimizer, inner)] == before
    assert inner.ema_overwrite_frequency == 2


def test_overwriting_gradients_are_a_maximum(tf):
    """As the scales of float8, which are neither summed nor divided by the scale of the loss."""
    strategy = tf2dist.make_strategy("mirrored", replicas=2)
    with strategy.scope():
        largest, weight = keras.Variable([0.0]), keras.Variable([1.0])
        largest.overwrite_with_gradient = True
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=4.0)
        optimizer.build([largest, weight])

    def update():
        measured = tf.gather([[-3.0], [-2.0]], tf.distribute.get_replica_context().replica_id_in_sync_group)
        gradients = [measured, tf.constant([2.0])]
        global_batch_gradients.apply_gradients(optimizer, gradients, [largest, weight])

    run(tf, strategy, update)
    assert float(keras.ops.convert_to_numpy(largest)[0]) == -2.0
    assert float(keras.ops.convert_to_numpy(weight)[0]) == 0.0


@pytest.mark.parametrize(("examples", "rows"), [(1, [0, 1, 2]), (2, [0, 1, 2] * 4)])
def test_positions_that_each_example_looks_up_stay_apart(tf, examples, rows):
    """All replicas have the same rows, but an optimizer sees each lookup by itself, as on one device."""
    strategy = tf2dist.make_strategy("mirrored", replicas=2)
    with strategy.scope():
        table = keras.Variable(np.zeros((3, WIDTH)))

    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def total(batch):
        def of_replica():
            positions = tf.tile(tf.range(3), tf.shape(batch)[:1])
            slices = tf.IndexedSlices(tf.ones([tf.size(positions), WIDTH]), positions, tf.constant([3, WIDTH]))
            return global_batch_gradients.sum_over_replicas([slices], [table])[0].indices

        return strategy.experimental_local_results(strategy.run(of_replica))[0]

    assert total(tf.zeros([examples, 3])).numpy().tolist() == rows


def test_rows_of_positions_are_told_from_those_of_words(tf):
    from tf2dist.compat.replica_sparse_gradients import lookups_for_all

    found, of_fixed_length = {}, 2**31 - 1
    held, table = tf.range(4), tf.Variable([3, 1])

    def look(batch):
        found["words"] = lookups_for_all(tf.reshape(batch, [-1]))
        found["static words"] = lookups_for_all(tf.reshape(tf.ensure_shape(batch, [2, 2]), [-1]))
        found["positions"] = lookups_for_all(tf.range(4))
        found["positions of any length"] = lookups_for_all(tf.range(tf.size(tf.where(batch))))
        positions = tf.range(tf.size(tf.where(batch)))
        found["positions twice"] = lookups_for_all(tf.concat([positions, tf.reshape(positions[::-1], [-1])], 0))
        found["positions and words"] = lookups_for_all(tf.concat([positions, tf.reshape(batch, [-1])], 0))
        found["held positions"] = lookups_for_all(held + 0)
        found["positions in a variable"] = lookups_for_all(tf.identity(table))
        found["drawn"] = lookups_for_all(tf.random.uniform([4], 0, 3, tf.int32))
        return batch

    @tf.function
    def loop(data):
        for batch in data:
            look(batch)

    loop(tf.data.Dataset.from_tensor_slices([[1, 2], [3, 4]]).batch(2))
    assert found == {
        "words": 0,
        "static words": 0,
        "positions": of_fixed_length,
        "positions of any length": 1,
        "positions twice": 2,
        "positions and words": 0,
        "held positions": of_fixed_length,
        "positions in a variable": of_fixed_length,
        "drawn": 0,
    }
