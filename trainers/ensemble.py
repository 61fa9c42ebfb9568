"""Classifiers of handwritten digits, trained apart, each on images of its own, whose answers are combined."""

from __future__ import annotations

import time
from typing import Any

_HIDDEN, _STEPS, _BATCH = 64, 300, 64
_RATE, _MOMENTUM = 0.05, 0.9


def train(run, members: int) -> dict:
    """Trains the members and tests them, each alone and all together; their part of the report."""
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
        """A shard: initial weights, and the images to learn, as many as there are, drawn with replacement."""
        initializer = keras.initializers.GlorotUniform(seed=seed * 1000 + number)
        first, last = initializer((images.shape[1], _HIDDEN)), initializer((_HIDDEN, 10))
        weights = first, np.zeros(_HIDDEN, np.float32), last, np.zeros(10, np.float32)
        rows = np.random.default_rng((seed, number)).integers(len(images), size=len(images))
        return weights, rows

    model = keras.Sequential(
        [keras.Input(images.shape[1:]), keras.layers.Dense(_HIDDEN, "relu"), keras.layers.Dense(10)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def learn(shard):
        """A pure function of the shard: the model keeps nothing, so it may run anywhere, and again."""
        weights, rows = list(shard[0]), shard[1]
        moves = [tf.zeros_like(w) for w in weights]  # by momentum; Keras's optimizers keep theirs in variables
        for step in tf.range(_STEPS):
            places = (tf.range(_BATCH) + step * _BATCH) % tf.size(rows)
            batch = tf.gather(rows, places)
            x, y = tf.gather(images, batch), tf.gather(labels, batch)
            with tf.GradientTape() as tape:
                tape.watch(weights)
                logits, _ = model.stateless_call(weights, [], x, training=True)
                cost = loss(y, logits)
            gradients: Any = tape.gradient(cost, weights)
            moves = [_MOMENTUM * m - _RATE * g for m, g in zip(moves, gradients, strict=True)]
            weights = [w + m for w, m in zip(weights, moves, strict=True)]
        logits, _ = model.stateless_call(weights, [], test_images)
        right = tf.reduce_mean(tf.cast(tf.argmax(logits, 1) == test_labels, tf.float64))
        return {"probabilities": tf.nn.softmax(tf.cast(logits, tf.float64)), "accuracies": right[tf.newaxis]}

    def together(a, b):
        return {
            "probabilities": a["probabilities"] + b["probabilities"],
            "accuracies": np.concatenate([a["accuracies"], b["accuracies"]]),
        }

    began = time.perf_counter()
    found = tf2dist.map_reduce(learn, (member(n) for n in range(members)), together, strategy=run.strategy)
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
