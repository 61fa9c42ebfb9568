"""A program of peers, one of which calls `sys.exit(3)`, or catches an exception that the others do not raise.

python -m tests.programs.exits PEER before|inside|after|map_reduce|caught
"""

import contextlib
import sys

import keras
import numpy as np

import tf2dist
from tf2dist.cluster import environments, peer_calls

exits, when = int(sys.argv[1]), sys.argv[2]
this_one_exits = environments.from_environment().task.index == exits
strategy = tf2dist.join("multiworker")


class Exit(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1 and when == "inside" and this_one_exits:
            sys.exit(3)
        if epoch == 1 and when == "caught" and this_one_exits:
            raise ValueError("mine alone")


peer_calls.GRACE = 5.0
with strategy.scope():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
if when in ("before", "map_reduce") and this_one_exits:
    sys.exit(3)
x = np.ones([8, 3], np.float32)
if when == "map_reduce":
    tf2dist.map_reduce(lambda shard: shard, range(8), lambda a, b: a + b, strategy=strategy)
with contextlib.suppress(ValueError):
    tf2dist.fit(model, (x, x[:, :1]), batch_size=4, epochs=4, callbacks=[Exit()])
if when == "after" and this_one_exits:
    sys.exit(3)
print("trained")
