"""Slices of the batches that only the coordinator can read, in a queue on a server: one for each token.

They have the number of the call that has sent them, and that of the first update that they are for. A worker throws
away those that are left from earlier calls, and puts back what is for later updates than its token, which is late then:
whoever has a token in time finds a slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf2dist.input.dataset_adapter import slice_of
from tf2dist.parameter_server.server_calls import called_by_server, shared_queue


class SliceQueue:
    """The slices for the workers. Made in a scope whose variables are on the server with the queue.

    Args:
      device: the server's.
      name: that no other queue there has.
      parts: slices of a batch.
    """

    def __init__(self, device: str, name: str, parts: int):
        self._device, self._name, self._parts = device, name, parts
        self._spec: Any = None  # of a slice with its weight
        self._calls = 0  # of `send`
        self._last: list[tf.Tensor] = []
        # Number of the last call of `send`.
        self._last_call = tf.Variable(tf.zeros([], tf.int64), trainable=False, name="slices_last_sent")

    def send(self, batches: tf.data.Dataset, spec: Any, first: int) -> None:
        """Puts what the next updates are made of into the queue, as many slices as there will be tokens.

        Args:
          batches: of each update the batch.
          spec: of all batches of the stream; these may all have a size that others have not.
          first: number of the first of the updates.
        """
        self._spec = spec, tf.TensorSpec([])
        self._calls += 1
        about, slices = tf.constant([self._calls, first], tf.int64), []
        for batch in batches:
            cut = [slice_of(batch, rank, self._parts) for rank in range(self._parts)]
            slices += [[about, *tf.nest.flatten(one, expand_composites=True)] for one in cut]
        self._last_call.assign(self._calls)
        self._last = slices[-1]
        self._put(slices)

    def repeat_last(self, count: int) -> None:
        """Puts the last slice that was sent there again, if any was: for workers that would find none, and wait."""
        if self._last:
            self._put([self._last] * count)

    def take(self, token):
        """A slice and its weight, for the update `token` i64[]; in a worker's graph."""
        specs = tf.nest.flatten(self._spec, expand_composites=True)
        with tf.device(self._device):
            taken = self._take_there(token)
        shaped = [tf.ensure_shape(t, s.shape) for t, s in zip(taken, specs, strict=True)]
        return tf.nest.pack_sequence_as(self._spec, shaped, expand_composites=True)

    def _dtypes(self) -> list[tf.DType]:
        return [tf.int64, *[s.dtype for s in tf.nest.flatten(self._spec, expand_composites=True)]]

    def _queue(self) -> tf.Tensor:
        return shared_queue(self._device, self._name, self._dtypes())

    def _put(self, slices: Sequence[Sequence[tf.Tensor]]) -> None:
        with tf.device(self._device):
            queue = self._queue()
            for components in slices:
                tf.raw_ops.QueueEnqueueV2(handle=queue, components=components)

    @called_by_server
    def _take_there(self, token):
        """The tensors of a slice.

        A token that is late may find one that is for later updates. It is left to others, and nobody takes its
        gradient for that token.
        """
        queue, dtypes = self._queue(), self._dtypes()

        def take(*_):
            about, *tensors = tf.raw_ops.QueueDequeueV2(handle=queue, component_types=dtypes)
            return [tf.ensure_shape(about, [2]), *tensors]

        def is_left_over(about, *_):
            with tf.control_dependencies([about]):
                return about[0] < self._last_call.read_value()

        about, *taken = tf.while_loop(is_left_over, take, take())

        def put_back():
            tf.raw_ops.QueueEnqueueV2(handle=queue, components=[about, *taken])
            return about

        tf.cond(about[1] > token, put_back, lambda: about)
        return taken
