"""Run in every process of a parameter server job: its coordinator is killed while the server applies an update.

python -m tests.programs.slow_updates OUT sync|async

Each update subtracts 1 from one weight at once, and from the other one after more than a second.
"""

import os
import pathlib
import signal
import sys
import threading

import tf2dist

strategy = tf2dist.join("ps")
out, update = pathlib.Path(sys.argv[1]), sys.argv[2]

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

SIZE, PRODUCTS = 900, 150  # of matrices, in a straight line: a loop would be ended with the coordinator


class TwoWeights(keras.layers.Layer):
    def build(self, shape):
        self.first = self.add_weight(shape=(), initializer="zeros", name="first")
        self.last = self.add_weight(shape=(), initializer="zeros", name="last")

    def call(self, inputs):
        return self.first + self.last + 0.0 * keras.ops.sum(inputs, axis=1, keepdims=True)


class Slow(keras.optimizers.SGD):
    def update_step(self, gradient, variable, learning_rate):
        step = gradient
        if "last" in getattr(variable, "path", variable.name):
            product = tf.fill([SIZE, SIZE], gradient * 1e-4)
            for _ in range(PRODUCTS):
                product = tf.tanh(tf.matmul(product, product))
            step += 1e-30 * product[0, 0]
        variable.assign_sub(step)


class Kill(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGKILL]).start()


with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), TwoWeights()])
    model.compile(Slow(1.0), loss=lambda _, outputs: keras.ops.mean(outputs, axis=-1))
rows = np.ones([80, 4], np.float32), np.zeros([80, 1], np.float32)
options = {"parameter_server": tf2dist.ParameterServer(update)}
callbacks = [Kill(), tf2dist.Checkpoint(out / "saved", every_steps=10_000)]
tf2dist.fit(model, *rows, batch_size=4, shuffle=False, callbacks=callbacks, verbose=0, **options)
