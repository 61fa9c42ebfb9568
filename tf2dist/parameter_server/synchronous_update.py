"""One synchronous update: what workers and coordinator do with queues on the first server.

Each worker waits at its own queue of *tokens*: a token says for which update, and for which part of it, it may compute
a gradient. It puts the gradient, with the token, into the queue of *gradients*. The coordinator takes gradients from
there: those for an update that was already made are late and dropped, and so is a second one for the same part; as many
as an update needs are summed and applied; then it hands out the tokens of the next update. There are as many parts as
workers, and each worker has one; those of lost workers go to others.

Without backup workers the parts are the slices of the update's batch. Of arrays a worker makes the slice that its token
names. Of data that only the coordinator can read it puts the slices into queues there, one for each part.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf2dist.compat.model import layers_of
from tf2dist.compat.stateless_scope import OverlayScope
from tf2dist.execution.compiled_step import CompiledStep
from tf2dist.execution.slice_loss import Fraction
from tf2dist.input.data_adapter import BatchMaker
from tf2dist.input.dataset_adapter import slice_of
from tf2dist.layers.sharded_embedding import ShardedEmbedding
from tf2dist.parameter_server import wide_sums
from tf2dist.parameter_server.update_counter import UpdateCounter
from tf2dist.parameter_server.worker_pool import WorkerPool

STOP = 1 << 62  # tokens from here on mean: stop; STOP + n ends the executions of rounds up to n
_names = itertools.count()


class SynchronousUpdate:
    """An update from several workers' gradients on the same weights.

    What layers write by themselves, such as the moving statistics of `BatchNormalization`, workers send with their
    gradients, and it is written once an update: the mean of their values, weighted by their slices. Of what is no
    float, such as seeds, it is the value of one of them.

    Args:
      pool, step: who computes what.
      counter: counts the updates.
      needed: gradients that make up an update.
      maker: makes slices of batches by their numbers, without backup workers; None where they are read in order.
    """

    def __init__(
        self, pool: WorkerPool, step: CompiledStep, counter: UpdateCounter, needed: int, maker: BatchMaker | None
    ):
        self._strategy, self._step, self._needed, self._maker = pool.strategy, step, needed, maker
        self._model, self._workers = step.model, pool.count
        self._counter = counter
        # Each worker sends every row of these once; a row that several of them use is to be applied once too.
        sharded = [layer for layer in layers_of(step.model) if isinstance(layer, ShardedEmbedding)]
        self._distinct = {id(shard) for layer in sharded for shard in layer.embeddings}
        with self._strategy.scope():
            # By part. Changed while updates are under way, when a worker is lost.
            self._owners = tf.Variable(tf.range(self._workers), trainable=False, name="owners")
            # Of the next update. It never goes back, as the count of updates does when `fit` is called again: what
            # is late from an earlier call is older than all that is asked for now.
            self._number = tf.Variable(tf.zeros([], tf.int64), trainable=False, name="synchronous_updates")
        self._device = "/job:ps/replica:0/task:0/device:CPU:0"
        self._name = f"synchronous-{next(_names)}"
        # What a worker sends beside the token; known when `work` was traced.
        self._structure: Any = None
        self._sent: list[bool] = []  # of each part of it; a weight may have no gradient
        self._written: list[keras.Variable] = []  # by layers
        self._dtypes: list[tf.DType] = []
        self._slice_spec: Any = None  # of data that the coordinator reads: its slices, with their weights
        self._slices: dict[int, list[list[tf.Tensor]]] = {}  # by number of the update; of those asked for last

    @property
    def number(self) -> int:
        """The number of the next update, counted from when this object was made."""
        # A second thread asks too, which must run no functions with remote parts, as `Variable.numpy` does (see
        # `tf2dist.compat.fetched_results`).
        return int(self._number.value().numpy())

    def set_owners(self, owners: Sequence[int]) -> None:
        """Sets which worker computes each part of an update; -1 for none."""
        self._owners.assign(owners)

    def _queue(self, name: str, dtypes):
        # Made wherever it is used: an existing queue with this name is the same one.
        with tf.device(self._device):
            return tf.raw_ops.FIFOQueueV2(component_types=dtypes, shared_name=f"{self._name}-{name}")

    def _token_queue(self, worker: int):
        return self._queue(f"tokens-{worker}", [tf.int64])

    def _hand_out_tokens(self, owners, update) -> None:
        """Gives the owner of each part its token for an update."""
        with tf.device(self._device):
            all_tokens = tf.cast(update, tf.int64) * self._workers + tf.range(self._workers, dtype=tf.int64)
            for worker in range(self._workers):
                tokens = tf.boolean_mask(all_tokens, tf.equal(owners, worker))
                tf.raw_ops.QueueEnqueueManyV2(handle=self._token_queue(worker), components=[tokens])

    def hand_out_again(self, parts: Sequence[int], owners: Sequence[int], end: int) -> None:
        """Gives parts of the update that is under way to other workers, if that update is one before number `end`.

        Args:
          parts: those whose worker is lost.
          owners: who is to compute each part from now on.
        """
        if not parts or (number := self.number) >= end:
            return
        for part in parts:
            if number in self._slices:  # in place of the one that the lost worker may have taken
                self._put_slice(part, number, self._slices[number][part])
        self._hand_out_tokens([owners[p] if p in parts else -1 for p in range(self._workers)], number)

    def end_work(self, number: int) -> None:
        """Ends the workers' executions of rounds up to `number`."""
        with tf.device(self._device):
            # One worker may be left with the executions of all: enough tokens to end each of them.
            tokens = tf.fill([self._workers], tf.constant(STOP + number, tf.int64))
            for worker in range(self._workers):
                tf.raw_ops.QueueEnqueueManyV2(handle=self._token_queue(worker), components=[tokens])

    def send_slices(self, batches: tf.data.Dataset) -> None:
        """Puts what the next updates are made of into the queues of slices.

        Args:
          batches: of each update the batch.
        """
        self._slice_spec = batches.element_spec, tf.TensorSpec([])
        self._slices = {}
        for number, batch in enumerate(batches, self.number):
            cut = [slice_of(batch, rank, self._needed) for rank in range(self._needed)]
            self._slices[number] = [tf.nest.flatten(one, expand_composites=True) for one in cut]
            for part, components in enumerate(self._slices[number]):
                self._put_slice(part, number, components)

    def _slice_dtypes(self) -> list[tf.DType]:
        """Of a slice in its queue, the number of its update first."""
        return [tf.int64, *(s.dtype for s in tf.nest.flatten(self._slice_spec, expand_composites=True))]

    def _slice_queue(self, part: int):
        return self._queue(f"slices-{part}", self._slice_dtypes())

    def _put_slice(self, part: int, number: int, components: Sequence[tf.Tensor]) -> None:
        with tf.device(self._device):
            put = [tf.constant(number, tf.int64), *components]
            tf.raw_ops.QueueEnqueueV2(handle=self._slice_queue(part), components=put)

    def _take_slice(self, number, part):
        """A slice that the coordinator has sent, and its weight; in a graph on a worker.

        Those of earlier updates are thrown away: they were sent once more when a worker was lost.
        """
        specs = tf.nest.flatten(self._slice_spec, expand_composites=True)
        queues = [self._slice_queue(p) for p in range(self._needed)]

        def take(queue):
            return lambda: tf.raw_ops.QueueDequeueV2(handle=queue, component_types=self._slice_dtypes())

        def dequeue():
            of, *components = tf.switch_case(tf.cast(part, tf.int32), [take(q) for q in queues])
            shaped = [tf.ensure_shape(t, s.shape) for t, s in zip(components, specs, strict=True)]
            return [tf.ensure_shape(of, []), *shaped]

        of, *taken = dequeue()
        while of < number:
            of, *taken = dequeue()
        return tf.nest.pack_sequence_as(self._slice_spec, taken, expand_composites=True)

    def close(self) -> None:
        """Makes the coordinator's wait for gradients fail."""
        with tf.device(self._device):
            queue = self._queue("gradients", self._dtypes)
            tf.raw_ops.QueueCloseV2(handle=queue, cancel_pending_enqueues=True)

    @tf.function
    def work(self, source, worker_numbers, last, offset):
        """A worker's side: computes a gradient for each token until `last` i64[] or a later token comes.

        Args:
          source: an iterator over slices; tensors of which `maker` makes them; None for those that the coordinator
            sends.
          offset: i64[], number of a step of the data minus that of its update.

        Returns:
          i32[]: how many gradients it has sent.
        """
        worker, sent = next(worker_numbers), tf.constant(0)
        token = self._next_token(worker, last)
        while token < STOP:
            number, part = token // self._workers, token % self._workers
            if source is None:
                element = self._take_slice(number, part)
            elif self._maker is None:
                element = next(source)
            elif self._needed == 1:
                element = self._maker.make(source, offset + number), tf.constant(1.0)
            else:
                element = self._maker.slice(source, offset + number, part, self._needed)
            self._send_gradient(element, token)
            sent += 1
            token = self._next_token(worker, last)
        return sent

    def _next_token(self, worker, last):
        """Waits for a token that is not out of date, i64[]."""
        queues = [self._token_queue(w) for w in range(self._workers)]
        token = self._dequeue_token(queues, worker)
        while token // self._workers < self._number or (token >= STOP and token < last):
            token = self._dequeue_token(queues, worker)
        return token

    def _dequeue_token(self, queues, worker):
        def take(queue):
            return lambda: tf.raw_ops.QueueDequeueV2(handle=queue, component_types=[tf.int64])[0]

        return tf.ensure_shape(tf.switch_case(tf.cast(worker, tf.int32), [take(q) for q in queues]), [])

    def _send_gradient(self, element, token) -> None:
        """Computes a slice's gradient and metric sums, and puts them into the coordinator's queue."""

        def contribution(batch, slice_weight):
            with OverlayScope((), self._model.trainable_variables) as scope:
                fractions, sums = self._step.fractions(batch, slice_weight)
            written = scope.written()
            self._written = [variable for variable, _ in written]
            self._structure = _with_wide_rows(fractions), sums, [value for _, value in written]
            flat = tf.nest.flatten(self._structure, expand_composites=True)
            self._sent = [t is not None for t in flat]
            return [token, *[t for t in flat if t is not None]]

        tensors = self._strategy.run(contribution, args=element)
        tensors = [self._strategy.experimental_local_results(t)[0] for t in tensors]
        self._dtypes = [t.dtype for t in tensors]
        tf.raw_ops.QueueEnqueueV2(handle=self._queue("gradients", self._dtypes), components=tensors)

    @tf.function
    def make_updates(self, n, first):
        """The coordinator's side: makes `n` i32[] updates.

        Args:
          first: i64[], the number of the first update of this training; nothing older counts as dropped.

        Returns:
          The metric sums, and i32[]: how many gradients came too late and were dropped.
        """
        sums, dropped, update = wide_sums.zeros(self._step), tf.constant(0), tf.identity(self._number)
        queue = self._queue("gradients", self._dtypes)
        for _ in tf.range(n):
            self._hand_out_tokens(self._owners.value(), update)
            taken, seen = [], tf.zeros([self._workers], tf.bool)
            for _ in range(self._needed):
                contribution, seen, late = self._take_contribution(queue, update, first, seen)
                taken.append(contribution)
                dropped += late
            more = self._apply(taken)
            # The next tokens follow from the number, which follows from all that was applied.
            with tf.control_dependencies([more[0]]):
                self._counter.add(1)
                update = self._number.assign_add(1, read_value=True)
            sums = wide_sums.add(sums, more)
        return [*sums, dropped]

    def _take_contribution(self, queue, update, first, seen):
        """The next contribution to this update, of a part that is not among `seen` bool[parts].

        Returns:
          It; `seen` with its part; and how many late ones of this training came before it.
        """
        late = tf.constant(0)
        tensors = tf.raw_ops.QueueDequeueV2(handle=queue, component_types=self._dtypes)
        token = tf.ensure_shape(tensors[0], [])
        while token // self._workers < update or tf.gather(seen, token % self._workers):
            late += tf.cast(first <= token // self._workers and token // self._workers < update, tf.int32)
            tensors = tf.raw_ops.QueueDequeueV2(handle=queue, component_types=self._dtypes)
            token = tf.ensure_shape(tensors[0], [])
        return tensors, seen | (tf.range(self._workers, dtype=tf.int64) == token % self._workers), late

    @tf.function
    def _apply(self, contributions) -> list[tf.Tensor]:
        """Applies the gradients of the slices' loss; returns the sum of their metric sums."""
        variables = self._model.trainable_variables
        # No part of the update may begin while a worker still reads what it changes.
        with tf.control_dependencies([t for c in contributions for t in c]):
            fractions, sums, written = zip(*map(self._unpack, contributions), strict=True)
            weights = [first.denominator for first, *_ in fractions]
            for variable, *values in zip(self._written, *written, strict=True):
                variable.assign(_mean(values, weights, variable.value))
            gradients, sums = self._step.join(list(zip(fractions, sums, strict=True)))
            for number, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
                if id(variable) in self._distinct and gradient is not None:
                    rows, place = tf.unique(gradient.indices)
                    values = tf.math.unsorted_segment_sum(gradient.values, place, tf.size(rows))
                    gradients[number] = tf.IndexedSlices(values, rows, gradient.dense_shape)
            self._model.optimizer.apply(gradients, variables)
        return sums

    def _unpack(self, contribution):
        """Fractions, metric sums and written values of a contribution; a queue has forgotten their shapes."""
        sent = iter(contribution[1:])
        flat = [next(sent) if is_sent else None for is_sent in self._sent]
        fractions, sums, written = tf.nest.pack_sequence_as(self._structure, flat, expand_composites=True)
        variables = self._model.trainable_variables
        fractions = [
            Fraction(
                _shaped(f.denominator, []),
                [_shaped(v, []) for v in f.values],
                [_shaped(g, v.shape) for g, v in zip(f.gradients, variables, strict=True)],
            )
            for f in fractions
        ]
        zeros = self._step.zero_sums()
        sums = [_shaped(t, z.shape) for t, z in zip(sums, zeros, strict=True)]
        return fractions, sums, [_shaped(t, v.shape) for t, v in zip(written, self._written, strict=True)]


def _with_wide_rows(fractions: Sequence[Fraction]) -> list[Fraction]:
    """The same with slices whose rows are int64: one queue takes those of all data."""

    def wide(gradient):
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        shape = None if gradient.dense_shape is None else tf.cast(gradient.dense_shape, tf.int64)
        return tf.IndexedSlices(gradient.values, tf.cast(gradient.indices, tf.int64), shape)

    return [f._replace(gradients=[wide(g) for g in f.gradients]) for f in fractions]


def _shaped(gradient: Any, shape) -> Any:
    """A tensor of this shape, or slices of one; None stays None."""
    if isinstance(gradient, tf.IndexedSlices):
        values = tf.ensure_shape(gradient.values, [None, *shape[1:]])
        return tf.IndexedSlices(values, tf.ensure_shape(gradient.indices, [None]), tf.constant([*shape], tf.int64))
    return None if gradient is None else tf.ensure_shape(gradient, shape)


def _mean(values: Sequence[tf.Tensor], weights: Sequence[tf.Tensor], before: tf.Tensor) -> tf.Tensor:
    """The mean with these weights of what workers have written; of what is no float, the first one's.

    It is the value `before` if all slices stand in for empty ones.
    """
    dtype, total = values[0].dtype, tf.add_n(weights)
    if not dtype.is_floating:
        return values[0]
    shares = [tf.cast(tf.math.divide_no_nan(w, total), dtype) for w in weights]
    mean = tf.add_n([tf.math.multiply_no_nan(v, s) for v, s in zip(values, shares, strict=True)])
    return tf.where(total > 0, mean, tf.convert_to_tensor(before))
