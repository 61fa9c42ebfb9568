"""`tf2dist.fit` beside a hand-written loop of the same steps per execution, and beside `keras.Model.fit`.

The network is the mnist trainer's preset `sigmoid` (784 -> 100 -> 10, SGD), 100 examples a replica, on bytes held in
memory; every contestant reads the same stream of batches and reports loss and accuracy.
"""

from __future__ import annotations

import time

from benchmarks.rounds import in_turn, table

_STEPS = 2000  # updates in one measurement
_PER_EXECUTION = 100
_PER_REPLICA = 100


def run(rounds: int) -> dict:
    """Measures on one device and on two mirrored ones; returns the figures and the ratios."""
    from tf2dist import devices, quiet

    quiet.import_tensorflow()
    devices.make_virtual_cpus(2)
    report = {}
    for name, replicas in (("one", 1), ("mirrored", 2)):
        contestants = _contestants(name, replicas)
        figures = in_turn(contestants, rounds)
        title = f"{name}: preset sigmoid, batch {_PER_REPLICA} on each of {replicas} device{'s' * (replicas > 1)}"
        report[name] = {
            "examples_per_second": figures,
            "chosen_over": table(title, "examples/s", figures, "tf2dist.fit, steps chosen"),
            "fixed_over": table(title, "examples/s", figures, f"tf2dist.fit, {_PER_EXECUTION} steps"),
        }
    return report


def _contestants(name: str, replicas: int) -> dict:
    import numpy as np
    import tensorflow as tf

    import tf2dist
    from tf2dist.data import synthetic
    from tf2dist.data.feeds import scaled
    from trainers.networks import PRESETS

    strategy = tf2dist.make_strategy(name, replicas=replicas)
    batch = _PER_REPLICA * replicas
    (images, labels), _ = synthetic.load(train=60_000, test=1)

    def model():
        with strategy.scope():
            return PRESETS["sigmoid"].build(1e-3)

    def batches():
        feed = tf2dist.Examples((images, labels), batch, seed=1, transform=scaled)
        from tf2dist.feed import Part

        return feed.stream(feed.tensors(), Part(), 0)

    def measured(train) -> float:
        began = time.perf_counter()
        train()
        return _STEPS * batch / (time.perf_counter() - began)

    def ours(steps):
        mine, feed = model(), tf2dist.Examples((images, labels), batch, seed=1, transform=scaled)
        return lambda: measured(
            lambda: tf2dist.fit(mine, feed, steps_per_epoch=_STEPS, steps_per_execution=steps, verbose=0)
        )

    def keras_fit(steps):
        theirs = model()
        theirs.compile(theirs.optimizer, theirs.loss, metrics=["accuracy"], steps_per_execution=steps)
        return lambda: measured(lambda: theirs.fit(batches(), steps_per_epoch=_STEPS, verbose=0))

    def by_hand():
        plain = model()
        plain.optimizer.build(plain.trainable_variables)
        iterator = iter(strategy.experimental_distribute_dataset(batches()))

        def step(x, y):
            with tf.GradientTape() as tape:
                logits = plain(x, training=True)
                each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
                loss = tf.reduce_sum(each) / batch
            weights = [v.value for v in plain.trainable_variables]
            plain.optimizer.apply(tape.gradient(loss, weights), plain.trainable_variables)
            right = tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32)
            return tf.reduce_sum(each), tf.reduce_sum(right)

        @tf.function
        def execution(iterator):
            cost = right = tf.constant(0.0)
            for _ in tf.range(_PER_EXECUTION):
                c, r = strategy.run(step, args=next(iterator))
                cost += tf.add_n(strategy.experimental_local_results(c))
                right += tf.add_n(strategy.experimental_local_results(r))
            return cost, right

        def train():
            totals = np.zeros(2)
            for _ in range(_STEPS // _PER_EXECUTION):
                totals += [float(t) for t in execution(iterator)]

        return lambda: measured(train)

    found = {
        "tf2dist.fit, steps chosen": ours(None),
        f"tf2dist.fit, {_PER_EXECUTION} steps": ours(_PER_EXECUTION),
        f"hand-written loop, {_PER_EXECUTION} steps": by_hand(),
        "keras fit, 1 step": keras_fit(1),
    }
    if replicas == 1:  # with several replicas and several steps Keras's own fit fails
        found[f"keras fit, {_PER_EXECUTION} steps"] = keras_fit(_PER_EXECUTION)
    return found
