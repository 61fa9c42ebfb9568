"""Trains a recommender, its tables spread over servers: python -m trainers.recommender --strategy=ps --ps=2.

The ratings are synthetic: a rating is the product of a user's and an item's true factors, of variance 1, plus noise. So
the best possible RMSE is known: the standard deviation of the noise.
"""

import math
import time

from absl import flags

from trainers.common import main, training_flags

_MOST = 2**31 - 1  # ids are i32
_USERS = flags.DEFINE_integer("users", 200_000, "Rows of the users' table.", 1, _MOST)
_ITEMS = flags.DEFINE_integer("items", 50_000, "Rows of the items' table.", 1, _MOST)
_RANK = flags.DEFINE_integer("rank", 12, "Columns of both: factors that are learned of a user or item.", lower_bound=1)
_EPOCHS = flags.DEFINE_integer("epochs", None, "Of ten new ratings by each user; 15.", lower_bound=1)
_STEPS = flags.DEFINE_integer("steps", None, "Updates, instead of epochs.", lower_bound=1)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 8192, "Ratings of one update.", lower_bound=1)
_LEARNING_RATE = flags.DEFINE_float(
    "learning_rate", 0.05, "At first: by it times twice the error times the other row, a rating moves a row.",
    lower_bound=0.0,
)  # fmt: skip

NOISE = 0.5  # standard deviation
TRUE_RANK = 4  # factors that ratings are made of
TEST_SIZE = 100_000  # ratings to test on
_RATINGS_PER_USER = 10  # in an epoch, on average


def prepare(shared):
    """Checks the flags, before TensorFlow is imported."""
    training_flags.check_one_length(_EPOCHS.value, _STEPS.value)
    training_flags.check_learning_rate(_LEARNING_RATE.value)
    if (replicas := shared.replicas_in_sync()) is not None:
        training_flags.check_batch_size(_BATCH_SIZE.value, replicas)


def train(run, prepared):
    """Learns the factors from ratings and tests them on other ratings."""
    import keras

    import tf2dist
    from trainers.common import logdir
    from trainers.common.progress_lines import EpochLines
    from trainers.common.training_timer import TrainingTimer

    users, items, rank = _USERS.value, _ITEMS.value, _RANK.value
    batch_size = training_flags.check_batch_size(_BATCH_SIZE.value, run.strategy.num_replicas_in_sync)
    steps_per_epoch = _STEPS.value or math.ceil(_RATINGS_PER_USER * users / batch_size)
    epochs = 1 if _STEPS.value else _EPOCHS.value or 15
    ratings = Ratings(users, items, run.shared.seed)
    test = ratings.test()
    baseline = float(test[1].std())  # RMSE of predicting the mean
    run.say(
        f"{users:,} users, {items:,} items, rank {rank}: {rank * (users + items):,} parameters, strategy "
        f"{run.shared.strategy} ({run.shared.layout}), batch {batch_size}"
    )

    with run.strategy.scope():
        # Gradients are of the mean over a batch: scaled by its size, a row's update does not depend on the size. The
        # rate decays in the last third, which averages out the noise.
        boundaries = [round(fraction * epochs * steps_per_epoch) for fraction in (0.7, 0.85)]
        rates = [factor * _LEARNING_RATE.value * batch_size for factor in (1.0, 0.3, 0.1)]
        schedule = keras.optimizers.schedules.PiecewiseConstantDecay(boundaries, rates)
        optimizer = keras.optimizers.SGD(schedule)
        model = matrix_factorization(users, items, rank, optimizer, seed=run.shared.seed, jit_compile=run.shared.xla)
    timer = TrainingTimer(run.began)
    callbacks = [timer, EpochLines(run.say, epochs, batch_size)]
    callbacks += logdir.callbacks(run, every_seconds=60, every_steps=1000)

    began = time.perf_counter()
    tf2dist.fit(
        model,
        lambda context: ratings.batches(context, batch_size),
        epochs=epochs,
        steps_per_epoch=steps_per_epoch,
        validation_data=test,
        validation_batch_size=batch_size,
        callbacks=callbacks,
        verbose=0,
    )
    if run.evaluates:
        return {}
    seconds = time.perf_counter() - began
    rmse = tf2dist.evaluate(model, test, batch_size=batch_size, return_dict=True, verbose=0)["rmse"]
    rate = timer.updates * batch_size / seconds
    run.say(
        f"test RMSE {rmse:.4f} on {TEST_SIZE:,} other ratings; the noise's is {NOISE:.4f}, "
        f"that of their mean {baseline:.4f}"
    )
    run.say(f"{timer.updates:,} steps in {seconds:.1f} s, {rate:,.0f} examples/s")
    logdir.save_model(run, model)
    return {
        "users": users,
        "items": items,
        "rank": rank,
        "parameters": model.count_params(),
        "batch_size": batch_size,
        "test_rmse": rmse,
        "noise": NOISE,
        "baseline_rmse": baseline,
        "test_examples": TEST_SIZE,
        "steps": tf2dist.updates(model),
        "examples_per_second": rate,
        "seconds": seconds,
    }


def matrix_factorization(users: int, items: int, rank: int, optimizer, *, seed: int, jit_compile: bool):
    """Returns the compiled model: user i32[b], item i32[b] -> rating f32[b, 1]."""
    import keras

    from tf2dist.layers import ShardedEmbedding

    inputs, factors = {}, []
    for number, (name, rows) in enumerate({"user": users, "item": items}.items()):
        initializer = keras.initializers.RandomNormal(stddev=0.1, seed=2 * seed + number)
        inputs[name] = keras.Input((), dtype="int32", name=name)
        factors.append(ShardedEmbedding(rows, rank, initializer, name=f"{name}_factors")(inputs[name]))
    model = keras.Model(inputs, keras.layers.Dot(axes=1, dtype="float32")(factors))
    metrics = [keras.metrics.RootMeanSquaredError("rmse")]
    model.compile(optimizer, "mse", metrics=metrics, jit_compile=jit_compile)
    return model


class Ratings:
    """Ratings by random users of random items; each batch is a function of the seed and its number."""

    def __init__(self, users: int, items: int, seed: int):
        self.users, self.items, self.seed = users, items, seed

    def factors(self):
        """Returns the true factors, f32[users, 4] and f32[items, 4]; every process computes them itself."""
        import tensorflow as tf

        scale = TRUE_RANK**-0.25  # so that a product of two rows has variance 1
        return [
            scale * tf.random.stateless_uniform([rows, TRUE_RANK], (self.seed, number), -(3**0.5), 3**0.5)
            for number, rows in enumerate((self.users, self.items))
        ]

    def batch(self, factors, number, size: int):
        """Returns batch `number` i64[]: user and item i32[size], rating f32[size]."""
        import tensorflow as tf

        seeds = tf.unstack(tf.random.split(tf.stack([self.seed, number]), 3))
        user = tf.random.stateless_uniform([size], seeds[0], maxval=self.users, dtype=tf.int32)
        item = tf.random.stateless_uniform([size], seeds[1], maxval=self.items, dtype=tf.int32)
        product = tf.reduce_sum(tf.gather(factors[0], user) * tf.gather(factors[1], item), 1)
        return {"user": user, "item": item}, product + NOISE * tf.random.stateless_normal([size], seeds[2])

    def batches(self, context, batch_size: int):
        """Returns an endless Dataset of one replica's batches; no two replicas or workers get the same ones."""
        import tensorflow as tf

        factors = self.factors()
        size = context.get_per_replica_batch_size(batch_size)
        numbers = tf.data.Dataset.range(1 << 62).shard(context.num_input_pipelines, context.input_pipeline_id)
        return numbers.map(lambda number: self.batch(factors, number, size)).prefetch(tf.data.AUTOTUNE)

    def test(self):
        """Returns ratings that are in no training batch, as arrays."""
        import tensorflow as tf

        with tf.device("/cpu:0"):
            batch = self.batch(self.factors(), tf.constant(-1, tf.int64), TEST_SIZE)
        return tf.nest.map_structure(lambda t: t.numpy(), batch)


if __name__ == "__main__":
    main.run(train, prepare)
