"""Run in every process of a parameter server job: opens iterators over an array, our way or by TensorFlow alone.

python -m tests.programs.sent_arrays ours|theirs

Prints megabytes (2**20 bytes): of the array, and by how much the coordinator has grown; and the array's sums on the
workers.
"""

import sys

import tf2dist

strategy = tf2dist.join("ps")
whose = sys.argv[1]

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from tests.memory import highest_memory  # noqa: E402
from tf2dist.parameter_server.worker_pool import WorkerPool, repeat_element  # noqa: E402

pool = WorkerPool(strategy)


@tf.function
def total(iterator):
    return tf.reduce_sum(tf.cast(next(iterator), tf.int64))


def opened(array):
    if whose == "ours":
        return pool.open_iterators(repeat_element, array)
    with tf.device("/cpu:0"):
        tensor = tf.constant(array)
    return iter(pool._coordinator.create_per_worker_dataset(lambda: repeat_element(tensor)))


def totals(array):
    iterators = opened(array)
    return [int(pool.fetch(pool.schedule(total, (iterators,)))[0]) for _ in range(2 * pool.count)]


def peak():
    return highest_memory() >> 20


totals(np.ones([1, 1024], np.uint8))  # what a first call needs besides
array = np.ones([150 << 10, 1024], np.uint8)
before = peak()
found = totals(array)
print(array.nbytes >> 20, peak() - before, *{n >> 20 for n in found})
