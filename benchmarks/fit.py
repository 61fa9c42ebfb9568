"""`tf2dist.fit` beside a hand-written loop of the same steps per execution, and beside `keras.Model.fit`.

The network is the mnist trainer's preset `sigmoid` (784 -> 100 -> 10, SGD), 100 examples a replica, on bytes held in
memory; every contestant reads the same stream of batches and reports loss and accuracy.
"""

from __future__ import annotations

import functools
import time

from benchmarks.rounds import in_turn, table

_STEPS = 2000  # updates in one measurement
_PER_EXECUTION = 100
_PER_REPLICA = 100


def run(rounds: int) -> dict:
    """Measures on one device and on two mirrored ones; returns the figures and the ratios."""
    report = {}
    for strategy, replicas in (("one", 1), ("mirrored", 2)):
        contestants = {
            "tf2dist.fit, steps chosen": (_ours, None),
            f"tf2dist.fit, {_PER_EXECUTION} steps": (_ours, _PER_EXECUTION),
            f"hand-written loop, {_PER_EXECUTION} steps": (_by_hand, _PER_EXECUTION),
            "keras fit, 1 step": (_keras, 1),
        }
        if replicas == 1:  # with several replicas and several steps Keras's own fit fails
            contestants[f"keras fit, {_PER_EXECUTION} steps"] = (_keras, _PER_EXECUTION)
        ready = {name: functools.partial(_ready, strategy, replicas, *how) for name, how in contestants.items()}
        figures = in_turn(ready, rounds)
        title = f"{strategy}: preset sigmoid, batch {_PER_REPLICA} on each of {replicas} device{'s' * (replicas > 1)}"
        report[strategy] = {
            "examples_per_second": figures,
            "chosen_over": table(title, "examples/s", figures, "tf2dist.fit, steps chosen"),
            "fixed_over": table(title, "examples/s", figures, f"tf2dist.fit, {_PER_EXECUTION} steps"),
        }
    return report


def _ready(strategy_name: str, replicas: int, contestant, per_execution: int | None):
    """Makes model and data in this process; returns the function that measures the contestant."""
    from tf2dist.runtime import tensorflow_import

    tensorflow_import.import_tensorflow()
    import tf2dist
    from tf2dist.data import synthetic_dataset
    from trainers.common.image_batches import scale_pixels
    from trainers.mnist_networks import PRESETS

    strategy = tf2dist.make_strategy(strategy_name, replicas=replicas)
    (images, labels), _ = synthetic_dataset.load(train=60_000, test=1)
    feed = tf2dist.Examples((images, labels), _PER_REPLICA * replicas, seed=1, transform=scale_pixels)
    with strategy.scope():
        model = PRESETS["sigmoid"].build(1e-3)
    train = contestant(model, feed, per_execution)

    def measure() -> float:
        began = time.perf_counter()
        train()
        return _STEPS * feed.batch_size / (time.perf_counter() - began)

    return measure


def _ours(model, feed, per_execution):
    import tf2dist

    return lambda: tf2dist.fit(model, feed, steps_per_epoch=_STEPS, steps_per_execution=per_execution, verbose=0)


def _keras(model, feed, per_execution):
    model.compile(model.optimizer, model.loss, metrics=["accuracy"], steps_per_execution=per_execution)
    return lambda: model.fit(_batches(feed), steps_per_epoch=_STEPS, verbose=0)


def _batches(feed):
    from tf2dist.input.batch_slicing import ReplicaSlices

    return feed.training_batches(feed.local_tensors(), ReplicaSlices(), 0)


def _by_hand(model, feed, per_execution):
    import tensorflow as tf

    strategy = model.distribute_strategy
    model.optimizer.build(model.trainable_variables)
    iterator = iter(strategy.experimental_distribute_dataset(_batches(feed)))

    def step(x, y):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = tf.reduce_sum(each) / feed.batch_size
        weights = [v.value for v in model.trainable_variables]
        model.optimizer.apply(tape.gradient(loss, weights), model.trainable_variables)
        right = tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32)
        return tf.reduce_sum(each), tf.reduce_sum(right)

    @tf.function
    def execution(iterator):
        cost = right = tf.constant(0.0)
        for _ in tf.range(per_execution):
            c, r = strategy.run(step, args=next(iterator))
            cost += tf.add_n(strategy.experimental_local_results(c))
            right += tf.add_n(strategy.experimental_local_results(r))
        return cost, right

    def train():
        for _ in range(_STEPS // per_execution):
            _ = [float(total) for total in execution(iterator)]

    return train
