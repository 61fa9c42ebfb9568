"""Trains a recommender, its tables spread over servers: python -m trainers.recommender --strategy=ps --ps=2.

The ratings are made up, so the right answer is known: a rating is the product of a user's and an item's true factors,
of variance 1, plus noise. Nothing predicts ratings better than to the standard deviation of the noise.
"""

import math
import time

from absl import flags

from trainers import job
from trainers.flags import UsageError

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
TEST = 100_000  # ratings that are tested
_A_USERS = 10  # ratings of one user, on the average, in an epoch


def prepare(shared):
    """Checks the flags before anything heavy is imported."""
    if _EPOCHS.value and _STEPS.value:
        raise UsageError(f"--epochs={_EPOCHS.value} and --steps={_STEPS.value} both say how long; give one")
    if not math.isfinite(_LEARNING_RATE.value):
        raise UsageError(f"--learning_rate={_LEARNING_RATE.value} is no number to learn with; give one from 0 on")
    if (replicas := shared.replicas_in_sync()) is not None:
        _batch_size(replicas)


def train(run, prepared):
    """Learns the factors from ratings and tests them on others."""
    import keras

    import tf2dist
    from trainers import chores, logdir

    users, items, rank = _USERS.value, _ITEMS.value, _RANK.value
    batch_size = _batch_size(run.strategy.num_replicas_in_sync)
    per_epoch = _STEPS.value or math.ceil(_A_USERS * users / batch_size)
    epochs = 1 if _STEPS.value else _EPOCHS.value or 15
    ratings = Ratings(users, items, run.shared.seed)
    test = ratings.test()
    baseline = float(test[1].std())  # of who predicts their mean
    run.say(
        f"{users:,} users, {items:,} items, rank {rank}: {rank * (users + items):,} parameters, strategy "
        f"{run.shared.strategy} ({run.shared.layout}), batch {batch_size}"
    )

    with run.strategy.scope():
        # Gradients are of the mean over a batch. Rows that are in it once should not move less in a larger one.
        # The last third is for finding the middle of what noise moves the rows about.
        ends = [round(part * epochs * per_epoch) for part in (0.7, 0.85)]
        rates = [part * _LEARNING_RATE.value * batch_size for part in (1.0, 0.3, 0.1)]
        rate = keras.optimizers.schedules.PiecewiseConstantDecay(ends, rates)
        model = recommender(users, items, rank, keras.optimizers.SGD(rate), seed=run.shared.seed)
    first_step = chores.FirstStep(run.began)
    callbacks = [first_step, chores.EpochLines(run.say, epochs, per_epoch * batch_size)]
    callbacks += logdir.callbacks(run, every_seconds=60, every_steps=1000)

    began = time.perf_counter()
    tf2dist.fit(
        model,
        lambda context: ratings.batches(context, batch_size),
        epochs=epochs,
        steps_per_epoch=per_epoch,
        validation_data=test,
        validation_batch_size=batch_size,
        callbacks=callbacks,
        verbose=0,
    )
    if run.evaluates:
        return {}
    seconds = time.perf_counter() - began
    rmse = tf2dist.evaluate(model, test, batch_size=batch_size)["rmse"]
    rate = first_step.trained * batch_size / seconds
    run.say(
        f"test RMSE {rmse:.4f} on {TEST:,} other ratings; the noise's is {NOISE:.4f}, that of their mean {baseline:.4f}"
    )
    run.say(f"{first_step.trained:,} steps in {seconds:.1f} s, {rate:,.0f} examples/s")
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
        "test_examples": TEST,
        "steps": tf2dist.updates(model),
        "examples_per_second": rate,
        "seconds": seconds,
    }


def recommender(users: int, items: int, rank: int, optimizer, *, seed: int):
    """User i32[b], item i32[b] -> rating f32[b, 1], compiled."""
    import keras

    from tf2dist.layers import ShardedEmbedding

    inputs, factors = {}, []
    for number, (name, rows) in enumerate({"user": users, "item": items}.items()):
        begin = keras.initializers.RandomNormal(stddev=0.1, seed=2 * seed + number)
        inputs[name] = keras.Input((), dtype="int32", name=name)
        factors.append(ShardedEmbedding(rows, rank, begin, name=f"{name}_factors")(inputs[name]))
    model = keras.Model(inputs, keras.layers.Dot(axes=1, dtype="float32")(factors))
    model.compile(optimizer, "mse", metrics=[keras.metrics.RootMeanSquaredError("rmse")])
    return model


class Ratings:
    """Ratings by random users of random items; each batch follows from the seed and its number."""

    def __init__(self, users: int, items: int, seed: int):
        self.users, self.items, self.seed = users, items, seed

    def factors(self):
        """What is to be learned: f32[users, 4] and f32[items, 4]. Made where it is used: it need not travel."""
        import tensorflow as tf

        scale = TRUE_RANK**-0.25  # so that a product of two rows has variance 1
        return [
            scale * tf.random.stateless_uniform([rows, TRUE_RANK], (self.seed, number), -(3**0.5), 3**0.5)
            for number, rows in enumerate((self.users, self.items))
        ]

    def batch(self, factors, number, size: int):
        """Batch `number` i64[]: user and item i32[size], rating f32[size]."""
        import tensorflow as tf

        seeds = tf.unstack(tf.random.experimental.stateless_split(tf.stack([self.seed, number]), 3))
        user = tf.random.stateless_uniform([size], seeds[0], maxval=self.users, dtype=tf.int32)
        item = tf.random.stateless_uniform([size], seeds[1], maxval=self.items, dtype=tf.int32)
        product = tf.reduce_sum(tf.gather(factors[0], user) * tf.gather(factors[1], item), 1)
        return {"user": user, "item": item}, product + NOISE * tf.random.stateless_normal([size], seeds[2])

    def batches(self, context, batch_size: int):
        """A Dataset of one replica's batches, without end; no two replicas or workers get the same ones."""
        import tensorflow as tf

        factors = self.factors()
        size = context.get_per_replica_batch_size(batch_size)
        numbers = tf.data.Dataset.range(1 << 62).shard(context.num_input_pipelines, context.input_pipeline_id)
        return numbers.map(lambda number: self.batch(factors, number, size)).prefetch(tf.data.AUTOTUNE)

    def test(self):
        """Ratings that are in no batch that is trained on, as arrays."""
        import tensorflow as tf

        with tf.device("/cpu:0"):
            batch = self.batch(self.factors(), tf.constant(-1, tf.int64), TEST)
        return tf.nest.map_structure(lambda t: t.numpy(), batch)


def _batch_size(replicas: int) -> int:
    size = _BATCH_SIZE.value
    if size % replicas:
        below = size - size % replicas
        near = f"{below} or {below + replicas}" if below else f"{replicas}"
        raise UsageError(f"--batch_size={size} does not divide among {replicas} replicas; {near} would")
    return size


if __name__ == "__main__":
    job.run(train, prepare)
