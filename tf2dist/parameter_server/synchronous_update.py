"""One synchronous update: what workers and coordinator do with queues on the server that counts updates.

Each worker waits at its own queue of *tokens*: a token is the number of an update that it may compute a gradient
for. It puts a *contribution*, the gradient with that number and its own, into a queue. The coordinator takes those from
there: what is for an update that was already made is late and dropped, and so is what a worker sends beyond its
quota; as many as an update needs are summed and applied; then it hands out the tokens of the next update.

No gradient leaves the server whose variable it is of. With several servers a worker leaves the *parts* of other servers
there, under a key that it puts into the queue with the rest when all of them have arrived; so all of a contribution is
used, or nothing of it.

Each tensor, and each condition, that goes from one process to another is a message, and with small models an update is
little else. So small weights come together with the token, and small parts of a contribution leave together, a message
for each server and dtype. The next token is the answer to a contribution.

Of data that only the coordinator can read it sends slices (`slice_queue`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf2dist.compat.custom_gradients import reads_noted
from tf2dist.compat.model import layers_of
from tf2dist.compat.replica_sparse_gradients import lookups_for_all
from tf2dist.compat.stateless_scope import OverlayScope
from tf2dist.execution.loss_fractions import Fraction
from tf2dist.execution.train_step_interface import GradientStep
from tf2dist.layers.sharded_embedding import ShardedEmbedding
from tf2dist.parameter_server import worker_metric_sums
from tf2dist.parameter_server.fused_transfer import WORKER_STEP_LIMIT, Fusion
from tf2dist.parameter_server.operation_devices import where_most_comes_from
from tf2dist.parameter_server.server_calls import called_by_server, shared_queue
from tf2dist.parameter_server.slice_queue import SliceQueue
from tf2dist.parameter_server.update_counter import UpdateCounter
from tf2dist.parameter_server.worker_pool import TraceAgain, WorkerPool
from tf2dist.parameter_server.worker_step import read_together

STOP = 1 << 62  # tokens from here on mean: stop; STOP + n ends the executions of rounds up to n
_HEADER = 4  # numbers, see `_header`
_names = itertools.count()


def _as_words(numbers) -> tf.Tensor:
    """Numbers i64[n] as f32[2 n], bit by bit: to be sent together with floats."""
    return tf.reshape(tf.bitcast(numbers, tf.float32), [-1])


def _from_words(words: tf.Tensor) -> tf.Tensor:
    """The numbers i64[n] of which `_as_words` has made these."""
    return tf.bitcast(tf.reshape(words, [-1, 2]), tf.int64)


def _header(contribution) -> list[tf.Tensor]:
    """Of a contribution: its token, the worker, the first token at which that stops, and its key, each i64[]."""
    return tf.unstack(_from_words(contribution[0][: 2 * _HEADER]), _HEADER)


class SynchronousUpdate:
    """An update from several workers' gradients on the same weights.

    What layers write by themselves, such as the moving statistics of `BatchNormalization`, workers send with their
    gradients, and it is written once an update: the mean of their values, weighted by their slices. Of what is no
    float, such as seeds, it is the value of one of them.

    Args:
      pool, step: who computes what.
      counter: counts the updates.
      needed: gradients that make up an update.

    Attributes:
      quotas: how many gradients of an update each worker computes.
      slices: of data that the coordinator reads.
    """

    def __init__(self, pool: WorkerPool, step: GradientStep, counter: UpdateCounter, needed: int):
        self._strategy, self._step, self._needed = pool.strategy, step, needed
        self._model, self._workers = step.model, pool.count
        self._counter = counter
        self.quotas = [1] * pool.count
        # Each worker sends every row of these once; a row that several of them use is to be applied once too.
        sharded = [layer for layer in layers_of(step.model) if isinstance(layer, ShardedEmbedding)]
        self._distinct = {id(shard) for layer in sharded for shard in layer.embeddings}
        self._device = str(counter.variable.device)
        self._name = f"synchronous-{next(_names)}"
        with self._strategy.scope(), self._strategy.extended.colocate_vars_with(counter.variable):
            # Changed while updates are under way, when a worker is lost.
            self._quotas = tf.Variable(tf.ones([self._workers], tf.int32), trainable=False, name="quotas")
            # The last update that each worker has sent a gradient for.
            self._received = tf.Variable(-tf.ones([self._workers], tf.int64), trainable=False, name="received")
            # Of the next update. It never goes back, as the count of updates does when `fit` is called again: what
            # is late from an earlier call is older than all that is asked for now.
            self._number = tf.Variable(tf.zeros([], tf.int64), trainable=False, name="synchronous_updates")
            # The first update whose contributions still have their parts on other servers.
            self._kept_from = tf.Variable(tf.zeros([], tf.int64), trainable=False, name="kept_from")
            self.slices = SliceQueue(self._device, f"{self._name}-slices", needed)
        self._parts_name = f"{self._name}-parts"
        small, scales = read_together(self._model)
        self._will_read([*small, *scales])
        # What a worker sends beside the header; known when `work` was traced.
        self._structure: Any = None
        self._sent: list[bool] = []  # of each part of it; a weight may have no gradient
        self._lookups: list[list[int]] = []  # for all examples, of the gradients of each fraction
        self._written: list[keras.Variable] = []  # by layers
        self._fusion = self._fusion_with(_HEADER, [])
        self._dtypes: dict[str, list[tf.DType]] = {}  # by the device, of what `_fusion` makes for it

    def _will_read(self, variables: Sequence[keras.Variable]) -> None:
        """Sets what workers get with each token."""
        self._read = [*variables]
        kinds = [(v.value.device, v.value.dtype, v.value.shape) for v in variables]
        self._received_fusion = self._fusion_with(1, kinds)

    @property
    def number(self) -> int:
        """The number of the next update, counted from when this object was made."""
        # A second thread asks too, which must run no functions with remote parts, as `Variable.numpy` does (see
        # `tf2dist.compat.fetched_results`).
        return int(self._number.value().numpy())

    @property
    def received(self) -> list[int]:
        """For each worker, the last update that a gradient of it was taken for; -1 if there is none."""
        return self._received.value().numpy().tolist()

    def set_quotas(self, quotas: Sequence[int]) -> None:
        """Sets how many gradients of an update each worker computes."""
        self._quotas.assign(quotas)
        self.quotas = [*quotas]

    def _queue(self, name: str, dtypes):
        return shared_queue(self._device, f"{self._name}-{name}", dtypes)

    def _token_queue(self, worker: int):
        return self._queue(f"tokens-{worker}", [tf.int64])

    def hand_out_tokens(self, counts, update) -> None:
        """Gives each worker `counts[worker]` tokens for an update."""
        with tf.device(self._device):
            for worker in range(self._workers):
                tokens = tf.fill([counts[worker]], tf.cast(update, tf.int64))
                tf.raw_ops.QueueEnqueueManyV2(handle=self._token_queue(worker), components=[tokens])

    def hand_out_more(self, counts: Sequence[int], end: int) -> None:
        """Gives workers additional tokens for the update that is under way, if that is one before number `end`.

        The one after those that were asked for is made of other slices, and has tokens of its own.
        """
        if (number := self.number) >= end:
            return
        self.slices.repeat_last(sum(counts))  # in place of those that others have taken with them
        self.hand_out_tokens(counts, number)

    def close(self) -> None:
        """Makes the coordinator's wait for gradients fail."""
        with tf.device(self._device):
            queue = self._contributions()
            tf.raw_ops.QueueCloseV2(handle=queue, cancel_pending_enqueues=True)

    @tf.function(autograph=False)
    def work(self, iterator, worker_numbers, last):
        """A worker's side: computes a gradient for each token until `last` i64[] or a later token comes.

        Args:
          iterator: over slices; None for those that the coordinator sends.

        Returns:
          i32[]: how many gradients it has sent.
        """
        worker = next(worker_numbers)

        def send(sent, token, *weights):
            element = self.slices.take(token) if iterator is None else next(iterator)
            ready = self._send_contribution(element, weights, tf.stack([token, worker, last]))
            return (sent + 1, *self._receive(ready))

        with tf.device(self._device):
            first = self._wait_for_token(worker, last)
        start = tf.constant(0), *self._receive(first)
        return tf.while_loop(lambda sent, token, *_: token < STOP, send, start)[0]

    def _receive(self, token) -> list[tf.Tensor]:
        """The token, which is on the server, and the weights that are read together, as they are after it has come."""

        def value(number):
            return tf.convert_to_tensor(self._read[number - 1].value) if number else _as_words([token])

        words, *weights = self._received_fusion.fetch(value, after=[token])
        return [_from_words(words)[0], *weights]

    def _fusion_with(self, numbers: int, kinds: Sequence[tuple[str, tf.DType, tf.TensorShape]]) -> Fusion:
        """What is sent with so many int64, which are the beginning of the first group."""
        words = (self._device, tf.float32, tf.TensorShape([2 * numbers]))
        return Fusion([words, *kinds], WORKER_STEP_LIMIT)

    @called_by_server
    def _wait_for_token(self, worker, last):
        return self._next_token(worker, last)

    @called_by_server
    def _exchange(self, *contribution):
        """Adds a contribution; returns the worker's next token."""
        tf.raw_ops.QueueEnqueueV2(handle=self._contributions(), components=contribution)
        _, worker, last, _ = _header(contribution)
        return self._next_token(worker, last)

    def _contributions(self):
        return self._queue("contributions", self._dtypes[self._device])

    def _next_token(self, worker, last):
        """Waits for a token that is not out of date, i64[]. On the server."""
        queues = [self._token_queue(w) for w in range(self._workers)]

        def is_out_of_date(token):
            return (token < self._number) | ((token >= STOP) & (token < last))

        def take(*_):
            return (self._dequeue_token(queues, worker),)

        return tf.while_loop(is_out_of_date, take, take())[0]

    def _dequeue_token(self, queues, worker):
        def take(queue):
            return lambda: tf.raw_ops.QueueDequeueV2(handle=queue, component_types=[tf.int64])[0]

        return tf.ensure_shape(tf.switch_case(tf.cast(worker, tf.int32), [take(q) for q in queues]), [])

    def _send_contribution(self, element, weights, header):
        """Computes a slice's gradient and metric sums, and sends them; returns the worker's next token.

        Args:
          weights: that were read together.
          header: i64[3]: token, worker, and the first token to stop at.
        """

        def contribution(batch, slice_weight):
            overlay = OverlayScope(zip(self._read, weights, strict=True), self._model.trainable_variables)
            with overlay as scope, reads_noted(weights) as hidden:
                fractions, sums = self._step.fractions(batch, slice_weight)
            if hidden:  # their gradients are not complete
                self._will_read([v for n, v in enumerate(self._read) if n not in hidden])
                raise TraceAgain
            written = scope.written()
            self._written = [variable for variable, _ in written]
            self._lookups = [[_lookups_for_all(g) for g in f.gradients] for f in fractions]
            self._structure = _with_wide_rows(fractions), sums, [value for _, value in written]
            flat = tf.nest.flatten(self._structure, expand_composites=True)
            self._sent = [t is not None for t in flat]
            sent = [t for t in flat if t is not None]
            devices = [device for device, is_sent in zip(self._devices_of_parts(), self._sent, strict=True) if is_sent]
            kinds = [(device, t.dtype, t.shape) for device, t in zip(devices, sent, strict=True)]
            self._fusion = self._fusion_with(_HEADER, kinds)
            return self._fusion.fuse([_as_words(header), *sent])

        key = self._key(header[1])
        header = tf.concat([header, [key]], 0)
        tensors = self._strategy.run(contribution, args=element)
        tensors = [self._strategy.experimental_local_results(t)[0] for t in tensors]
        of_device: dict[str, list[tf.Tensor]] = {self._device: []}
        for (device, _), tensor in zip(self._fusion.groups, tensors, strict=True):
            of_device.setdefault(device, []).append(tensor)
        self._dtypes = {device: [t.dtype for t in of_device[device]] for device in of_device}
        left = [self._leave_parts(device, key, of_device[device]) for device in self._others]
        with tf.device(self._device), tf.control_dependencies(left):
            return self._exchange(*of_device[self._device])

    def _devices_of_parts(self) -> list[str]:
        """For each part of what is sent the device where it is used."""
        fractions, sums, written = self._structure
        placed: list[tuple[Any, str]] = []
        for fraction in fractions:
            placed.append(((fraction.denominator, fraction.values), self._device))
            pairs = zip(fraction.gradients, self._model.trainable_variables, strict=True)
            placed += [(gradient, variable.value.device) for gradient, variable in pairs]
        placed.append((sums, self._device))
        placed += [(value, v.value.device) for value, v in zip(written, self._written, strict=True)]
        return [device for part, device in placed for _ in tf.nest.flatten(part, expand_composites=True)]

    @property
    def _others(self) -> list[str]:
        """The other servers that have parts."""
        return [device for device in self._dtypes if device != self._device]

    def _key(self, worker) -> tf.Tensor:
        """A number that no other contribution has, i64[]: a worker makes less than one in a microsecond."""
        microseconds = tf.cast(tf.timestamp() * 1e6, tf.int64)
        return microseconds * self._workers + worker

    def _leave_parts(self, device: str, key, tensors: Sequence[tf.Tensor]):
        with tf.device(device):
            numbers = tf.range(len(tensors))
            return tf.raw_ops.MapStage(
                key=key, indices=numbers, values=tensors, dtypes=self._dtypes[device], shared_name=self._parts_name
            )

    def _take_parts(self, device: str, key) -> list[tf.Tensor]:
        with tf.device(device):
            dtypes = self._dtypes[device]
            numbers = tf.range(len(dtypes))
            return tf.raw_ops.MapUnstage(key=key, indices=numbers, dtypes=dtypes, shared_name=self._parts_name)

    def forget_parts(self) -> None:
        """Drops what is left on other servers, as of workers that were lost. Only while no update is under way."""
        if not self._others:
            return
        self._kept_from.assign(self.number)
        for device in self._others:
            with tf.device(device):
                tf.raw_ops.MapClear(dtypes=self._dtypes[device], shared_name=self._parts_name)

    @tf.function(autograph=False)
    def make_updates(self, n, first):
        """The coordinator's side: makes `n` i32[] updates.

        Args:
          first: i64[], the number of the first update of this training; nothing older counts as dropped.

        Returns:
          The metric sums, and i32[]: how many gradients came too late and were dropped.
        """
        made = tf.function(self._make_updates, autograph=False).get_concrete_function(n, first)
        # A function that a server calls cannot use what others have, and nobody gets to know where it is placed.
        elsewhere = any(t.device != self._device for t in made.captured_inputs if t.dtype == tf.resource)
        if elsewhere or tf.debugging.get_log_device_placement():
            return made(n, first)
        with tf.device(self._device):
            return called_by_server(made)(n, first)

    def _make_updates(self, n, first) -> list[tf.Tensor]:
        with tf.device(self._device):
            queue = self._contributions()

            def make_update(_, state):
                sums, dropped, update = state
                self.hand_out_tokens(tf.unstack(self._quotas), update)
                taken, counts = [], tf.zeros([self._workers], tf.int32)
                for _ in range(self._needed):
                    contribution, late = self._take_contribution(queue, update, first, counts)
                    taken.append(contribution)
                    dropped += late
                    place = [[_header(contribution)[1]]]
                    counts = tf.tensor_scatter_nd_add(counts, place, [1])
                    self._received.assign(tf.tensor_scatter_nd_update(self._received, place, [update]))
                begun = self._counter.under_way.assign_add(1, read_value=False)
                with tf.control_dependencies([begun]):
                    more = self._apply(taken)
                # The next tokens follow from the number, which follows from all that was applied.
                with tf.control_dependencies([more[0]]):
                    counted = self._counter.add(1)
                with tf.control_dependencies([counted]):
                    ended = self._counter.under_way.assign_sub(1, read_value=False)
                with tf.control_dependencies([ended]):
                    update = self._number.assign_add(1, read_value=True)
                return worker_metric_sums.add(self._step, sums, more), dropped, update

            start = worker_metric_sums.zeros(self._step), tf.constant(0), tf.identity(self._number)
            sums, dropped, _ = keras.ops.fori_loop(0, n, make_update, start)
        return [*sums, dropped]

    def _take_contribution(self, queue, update, first, counts):
        """The next contribution to this update, and how many of this training were dropped before it.

        Args:
          counts: i32[workers], how many were taken from each worker.
        """
        dtypes = self._dtypes[self._device]

        def take():
            return tf.raw_ops.QueueDequeueV2(handle=queue, component_types=dtypes)

        def drop(contribution, late):
            token, _, _, key = _header(contribution)
            if self._others:
                tf.cond(token >= self._kept_from, lambda: self._drop_parts(key), lambda: tf.constant(0))
            return take(), late + tf.cast(token >= first, tf.int32)

        def is_unwanted(contribution, late):
            token, worker, _, _ = _header(contribution)
            return (token < update) | (tf.gather(counts, worker) >= tf.gather(self._quotas, worker))

        return tf.while_loop(is_unwanted, drop, (take(), tf.constant(0)))

    def _drop_parts(self, key):
        for device in self._others:
            self._take_parts(device, key)
        return tf.constant(0)

    @tf.function(autograph=False)
    def _apply(self, contributions) -> list[tf.Tensor]:
        """Applies the gradients of the slices' loss; returns the sum of their metric sums."""
        variables = self._model.trainable_variables
        # No part of the update may begin while a worker still reads what it changes.
        complete = tf.group(*[with_header for with_header, *_ in contributions])
        with where_most_comes_from(self._device), tf.control_dependencies([complete]):
            arrived = [*map(self._arrived, contributions)]
            if self._adds_up:  # what is added first, as it has come, is taken apart once
                arrived = [[tf.add_n(each) for each in zip(*arrived, strict=True)]]
            fractions, sums, written = zip(*map(self._unpack, arrived), strict=True)
            weights = [first.denominator for first, *_ in fractions]
            for variable, *values in zip(self._written, *written, strict=True):
                variable.assign(_mean(values, weights, variable.value))
            gradients, sums = self._step.join(list(zip(fractions, sums, strict=True)), self._lookups)
            for number, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
                if id(variable) in self._distinct and gradient is not None:
                    rows, place = tf.unique(gradient.indices)
                    values = tf.math.unsorted_segment_sum(gradient.values, place, tf.size(rows))
                    gradients[number] = tf.IndexedSlices(values, rows, gradient.dense_shape)
            self._model.optimizer.apply(gradients, variables)
        return sums

    @property
    def _adds_up(self) -> bool:
        """Are contributions only added to each other?"""
        fractions, _, written = self._structure
        sparse = any(isinstance(g, tf.IndexedSlices) for f in fractions for g in f.gradients)
        replaced = any(v.overwrite_with_gradient for v in self._model.trainable_variables)
        return not (sparse or replaced or written or self._step.merges)

    def _arrived(self, contribution) -> list[tf.Tensor]:
        """What has arrived of a contribution, a tensor for each group of `_fusion`."""
        key = _header(contribution)[3]
        of_device = {device: iter(self._take_parts(device, key)) for device in self._others}
        of_device[self._device] = iter(contribution)
        return [next(of_device[device]) for device, _ in self._fusion.groups]

    def _unpack(self, arrived):
        """Fractions, metric sums and written values of a contribution; a queue has forgotten their shapes."""
        _, *parts = self._fusion.split(arrived)
        each = iter(parts)
        flat = [next(each) if is_sent else None for is_sent in self._sent]
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


def _lookups_for_all(gradient: Any) -> int:
    return lookups_for_all(gradient.indices) if isinstance(gradient, tf.IndexedSlices) else 0


def _shaped(gradient: Any, shape) -> Any:
    """A tensor of this shape, or slices of one; None stays None."""
    if isinstance(gradient, tf.IndexedSlices):
        values = tf.ensure_shape(gradient.values, [None, *shape[1:]])
        indices = tf.ensure_shape(gradient.indices, [None])
        return tf.IndexedSlices(values, indices, tf.constant([*shape], tf.int64))
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
