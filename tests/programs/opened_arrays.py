"""Prints by how many sizes of an array this process grows when an iterator is made: of Examples, and by TensorFlow.

python -m tests.programs.opened_arrays
"""

import numpy as np
import tensorflow as tf

import tf2dist
from tests.memory import highest_memory
from tf2dist.input.batch_slicing import ReplicaSlices


def opened(dataset):
    """Makes an iterator, and takes an element; returns the growth of this process's highest memory."""
    before = highest_memory()
    next(iter(dataset))
    return (highest_memory() - before) / array.nbytes


def streams():
    feed = tf2dist.Examples(array, 8)
    ones = tf.ones(array.shape, tf.uint8)
    _, order = feed.remote_arrays()
    yield feed.training_batches(((ones,), tf.constant(order)), ReplicaSlices(), 0)
    yield tf.data.Dataset.range(9).map(lambda i: tf.gather(ones, [i]))


for rows in 9, 200 << 10:  # what a first call needs besides is not counted
    array = np.broadcast_to(np.uint8(1), [rows, 1 << 10])  # takes no memory itself
    grown = list(map(opened, streams()))
print(*grown)
