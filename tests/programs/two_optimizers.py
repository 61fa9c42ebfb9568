"""Peers that train a model with a step and a second optimizer of its own, and go on when they are run again.

python -m tests.programs.two_optimizers OUT EPOCHS LAST_BATCH

The process ends after batch LAST_BATCH of epoch 1, if there is one. Else each peer writes what it ended with.
"""

import json
import os
import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

import tf2dist

out, epochs, last_batch = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
strategy = tf2dist.join("multiworker")
rank = strategy.cluster_resolver.task_id


class Die(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self.epoch == 1 and batch == last_batch:
            os._exit(1)


class TwoOptimizers(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)
        self.second_optimizer = keras.optimizers.Adam(0.01)

    def call(self, x):
        return self.second(self.first(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        variables = [*self.first.trainable_variables, *self.second.trainable_variables]
        gradients = list(zip(tape.gradient(loss, variables), variables, strict=True))
        self.optimizer.apply_gradients(gradients[:2])
        self.second_optimizer.apply_gradients(gradients[2:])
        return {"loss": loss}


keras.utils.set_random_seed(1)
with strategy.scope():
    model = TwoOptimizers()
    model.compile(keras.optimizers.Adam(0.01), "mse")
x = np.random.default_rng(2).normal(size=[64, 3]).astype(np.float32)
history = tf2dist.fit(
    model, x, x[:, :1], batch_size=8, epochs=epochs, verbose=2, seed=3, steps_per_execution=1,
    callbacks=[tf2dist.Checkpoint(out / "saved", every_steps=3),
               keras.callbacks.ModelCheckpoint(out / "best.weights.h5", "loss", save_weights_only=True), Die()],
)  # fmt: skip
state = [*model.weights, *model.optimizer.variables, *model.second_optimizer.variables]
local = [strategy.experimental_local_results(v.value)[0].numpy().tolist() for v in state]
(out / f"peer-{rank}.json").write_text(json.dumps({"state": local, "loss": history.history["loss"]}))
