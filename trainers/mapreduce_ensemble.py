"""An ensemble of digit classifiers: each trains on its own bootstrap sample, and their probabilities are averaged."""

from __future__ import annotations

import time
from typing import Any

_HIDDEN_UNITS, _STEPS, _BATCH_SIZE = 64, 300, 64
_LEARNING_RATE, _MOMENTUM = 0.05, 0.9


def fit_and_combine(run, members: int) -> dict:
    """Fits the members, tests each alone and all together; returns the trainer's part of the report."""
    import keras
    import numpy as np
    import tensorflow as tf

    import tf2dist
    from tf2dist import data

    def flat(images):
        return np.reshape(images, [len(images), -1]).astype(np.float32) / 255

    (images, labels), (test_images, test_labels) = data.load(data.find("digits"))
    images, test_images = flat(images), flat(test_images)
    seed = run.shared.seed

    def member(number: int):
        """Returns a shard: initial weights, and a bootstrap sample of the training images (their indices)."""
        initializer = keras.initializers.GlorotUniform(seed=seed * 1000 + number)
        first, last = initializer((images.shape[1], _HIDDEN_UNITS)), initializer((_HIDDEN_UNITS, 10))
        weights = first, np.zeros(_HIDDEN_UNITS, np.float32), last, np.zeros(10, np.float32)
        rows = np.random.default_rng((seed, number)).integers(len(images), size=len(images))
        return weights, rows

    model = keras.Sequential(
        [keras.Input(images.shape[1:]), keras.layers.Dense(_HIDDEN_UNITS, "relu"), keras.layers.Dense(10)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def fit_member(shard):
        """Fits one member and tests it. Pure: the model's own variables are not used, so it may run anywhere, again."""
        weights, rows = list(shard[0]), shard[1]
        velocities = [tf.zeros_like(w) for w in weights]  # of momentum; Keras optimizers would keep them in variables
        for step in tf.range(_STEPS):
            positions = (tf.range(_BATCH_SIZE) + step * _BATCH_SIZE) % tf.size(rows)
            batch = tf.gather(rows, positions)
            x, y = tf.gather(images, batch), tf.gather(labels, batch)
            with tf.GradientTape() as tape:
                tape.watch(weights)
                logits, _ = model.stateless_call(weights, [], x, training=True)
                cost = loss(y, logits)
            gradients: Any = tape.gradient(cost, weights)
            velocities = [_MOMENTUM * m - _LEARNING_RATE * g for m, g in zip(velocities, gradients, strict=True)]
            weights = [w + m for w, m in zip(weights, velocities, strict=True)]
        logits, _ = model.stateless_call(weights, [], test_images)
        right = tf.reduce_mean(tf.cast(tf.argmax(logits, 1) == test_labels, tf.float64))
        return {"probabilities": tf.nn.softmax(tf.cast(logits, tf.float64)), "accuracies": right[tf.newaxis]}

    def combine(a, b):
        return {
            "probabilities": a["probabilities"] + b["probabilities"],
            "accuracies": np.concatenate([a["accuracies"], b["accuracies"]]),
        }

    began = time.perf_counter()
    found = tf2dist.map_reduce(fit_member, (member(n) for n in range(members)), combine, strategy=run.strategy)
    accuracies = found["accuracies"]
    accuracy = float(np.mean(np.argmax(found["probabilities"], 1) == test_labels))
    run.say(f"{members} models alone: accuracy {accuracies.mean():.2%} on average, {accuracies.max():.2%} the best")
    run.say(f"together: accuracy {accuracy:.2%} on {len(test_labels)} images")
    return {
        "mean": float(accuracies.mean()),
        "count": members,
        "accuracies": accuracies.tolist(),
        "accuracy": accuracy,
        "test_examples": len(test_labels),
        "seconds": time.perf_counter() - began,
    }
