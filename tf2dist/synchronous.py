"""Synchronous updates on parameter servers: each is the mean of several workers' gradients on the same weights.

TensorFlow 2 has no such thing (its guide says so); TensorFlow 1 had SyncReplicasOptimizer. Two kinds of queues on
the first server hold it together. Each worker waits at its own queue of *tokens*: a token is the number of an
update that it may compute a gradient for. It puts the gradient, with that number, into the queue of *gradients*.
The coordinator takes gradients from there: those for an update that has been made are late and dropped; of those
for the next one it sums as many as an update needs, applies them, and hands out the tokens of the update after.

A worker that is late finds old tokens and throws them away, so one that was stopped is back in step at once, and
never holds up the others as long as enough of them are left. When a worker dies, the others get its tokens.
"""

from __future__ import annotations

import itertools
import threading
import time

import tensorflow as tf

from tf2dist import joining
from tf2dist.execution import Done
from tf2dist.parameter_server import ParameterServer
from tf2dist.sharding import ShardedEmbedding
from tf2dist.step import Steps
from tf2dist.workers import Remote, always, this_worker

_STOP = 1 << 62  # tokens from here on are for no update: executions of up to so many rounds ago end
_WATCH = 0.5  # seconds between two looks at what may have gone wrong
_names = itertools.count()


class Synchronous(Remote):
    """Runs updates of several workers' gradients. Methods: see `dispatch`."""

    def __init__(self, strategy: tf.distribute.ParameterServerStrategy, options: ParameterServer):
        super().__init__(strategy, options)
        self.needed = self.workers - options.backup_workers
        if self.needed < 1:
            raise ValueError(
                f"backup_workers={options.backup_workers} leaves none of the {self.workers} workers to wait for; "
                f"at most {self.workers - 1} can be backups"
            )
        if not self.part.whole:
            raise ValueError(
                f'update="sync" needs workers with one device each, and these have {self.part.total}; start a worker '
                "for each device"
            )
        self.in_flight = 1
        self._done: Done | None = None
        self._round = 0  # of executions; one ends when the workers are needed for something else
        self._update: _Update | None = None  # what the workers are at

    def compile(self, steps: Steps):
        """The queues, and what workers and coordinator do with them."""
        return _Update(self, steps)

    def stream(self, feed, start: int):
        """On each worker: worker w of n takes every n-th of the parts that updates are made of, with its number."""
        self.stop()
        self._applied.assign(start)
        tensors = feed.tensors()

        def dataset():
            return feed.pieces(tensors, self.needed, start, this_worker(), self.workers)

        numbers = self._on_each_worker(lambda: always(this_worker()))
        return self._on_each_worker(dataset), numbers

    def run(self, execution: _Update, iterator, n: int) -> None:
        """Makes `n` updates while the workers work."""
        began = time.perf_counter()
        if self._update is None:
            self._round += 1
            for _ in range(self.workers):
                last = tf.constant(_STOP + self._round, tf.int64)
                self.coordinator.schedule(execution.work, args=(*iterator, last))
            self._update = execution
        with _Watch(self, execution):
            *totals, dropped = execution.update(tf.constant(n))
        totals = [t.numpy() for t in totals]
        self._done = Done(n, totals, time.perf_counter() - began, int(dropped))

    def result(self) -> Done:
        """What the updates brought."""
        done, self._done = self._done, None
        assert done is not None
        return done

    def stop(self) -> None:
        """Ends the workers' executions; one that does not answer will end when it does."""
        if self._update is not None:
            # A worker may have the executions of others that have died to end too.
            self._update.hand_out([self.workers] * self.workers, _STOP + self._round)
        self._update = self._done = None
        super().stop()

    def evaluation(self, steps: Steps, feed):
        """As `Remote.evaluation`; the workers stop training for it."""
        self.stop()
        return super().evaluation(steps, feed)

    def prediction(self, steps, feed):
        """As `Remote.prediction`; the workers stop training for it."""
        self.stop()
        return super().prediction(steps, feed)

    def shares(self) -> list[int]:
        """How many gradients of an update each worker is asked for: one, or more where too few are left."""
        lost = {t.index for t in joining.lost() if t.job == "worker"}
        here = [w for w in range(self.workers) if w not in lost]
        shares = [int(w in here) for w in range(self.workers)]
        for number in range(self.needed - len(here) if here else 0):
            shares[here[number % len(here)]] += 1
        return shares


class _Update:
    """One update, on the workers' side (`work`) and on the coordinator's (`update`)."""

    def __init__(self, dispatcher: Synchronous, steps: Steps):
        self._strategy, self._steps, self._needed = dispatcher.strategy, steps, dispatcher.needed
        self._workers = dispatcher.workers
        self.counter = dispatcher._applied
        # Each worker brings every row of these once; a row that several of them use is to be there once too.
        sharded = [layer for layer in steps.model._flatten_layers() if isinstance(layer, ShardedEmbedding)]
        self._distinct = {id(shard) for layer in sharded for shard in layer.embeddings}
        with self._strategy.scope():  # changed while updates are under way, when a worker is lost
            self.shares = tf.Variable(tf.ones([self._workers], tf.int32), trainable=False, name="shares")
        self._device = "/job:ps/replica:0/task:0/device:CPU:0"
        self._name = f"synchronous-{next(_names)}"
        self._kinds: list = []  # of the gradients, None, a tensor or slices: known when `work` is traced
        self._dtypes: list[tf.DType] = []

    def _queue(self, name: str, dtypes):
        # Made anew wherever it is used: a queue of this name that is there already is the same one.
        with tf.device(self._device):
            return tf.raw_ops.FIFOQueueV2(component_types=dtypes, shared_name=f"{self._name}-{name}")

    def _tokens(self, worker: int):
        return self._queue(f"tokens-{worker}", [tf.int64])

    def hand_out(self, shares, step) -> None:
        """Gives each worker so many tokens for an update."""
        with tf.device(self._device):
            for worker in range(self._workers):
                tokens = tf.fill([shares[worker]], tf.cast(step, tf.int64))
                tf.raw_ops.QueueEnqueueManyV2(handle=self._tokens(worker), components=[tokens])

    def close(self) -> None:
        """Ends the coordinator's wait for gradients, with an error."""
        with tf.device(self._device):
            queue = self._queue("gradients", self._dtypes)
            tf.raw_ops.QueueCloseV2(handle=queue, cancel_pending_enqueues=True)

    @tf.function
    def work(self, iterator, numbers, last):
        """A worker's side: a gradient for each token, until `last` i64[] or a later one comes. Returns how many."""
        worker, made = next(numbers), tf.constant(0)
        token = self._next_token(worker, last)
        while token < _STOP:
            self._give(next(iterator), token)
            made += 1
            token = self._next_token(worker, last)
        return made

    def _next_token(self, worker, last):
        """Waits for a token that is not out of date, i64[]."""
        queues = [self._tokens(w) for w in range(self._workers)]
        token = self._dequeue(queues, worker)
        while token < self.counter or (token >= _STOP and token < last):
            token = self._dequeue(queues, worker)
        return token

    def _dequeue(self, queues, worker):
        def take(queue):
            return lambda: tf.raw_ops.QueueDequeueV2(handle=queue, component_types=[tf.int64])[0]

        return tf.ensure_shape(tf.switch_case(tf.cast(worker, tf.int32), [take(q) for q in queues]), [])

    def _give(self, element, token) -> None:
        """Computes a part's gradient, with its totals, and hands it to the coordinator."""

        def contribution(batch, share):
            gradients, totals = self._steps.differentiate(batch, share)
            flat = []
            self._kinds = [None if g is None else type(g) for g in gradients]
            for gradient in gradients:
                if isinstance(gradient, tf.IndexedSlices):
                    flat += [gradient.values, gradient.indices]
                elif gradient is not None:
                    flat.append(gradient)
            return [token, share, *totals, *flat]

        parts = self._strategy.run(contribution, args=element)
        parts = [self._strategy.experimental_local_results(p)[0] for p in parts]
        self._dtypes = [p.dtype for p in parts]
        tf.raw_ops.QueueEnqueueV2(handle=self._queue("gradients", self._dtypes), components=parts)

    @tf.function
    def update(self, n):
        """The coordinator's side: makes `n` i32[] updates; returns their totals and how many gradients were late."""
        totals, dropped, step = self._steps.zeros(), tf.constant(0), tf.identity(self.counter)
        queue = self._queue("gradients", self._dtypes)
        for _ in tf.range(n):
            self.hand_out(tf.unstack(self.shares), step)
            taken = []
            for _ in range(self._needed):
                contribution, late = self._take(queue, step)
                taken.append(contribution)
                dropped += late
            more = self._apply(taken)
            # The next tokens follow from the counter, which follows from all that was applied.
            with tf.control_dependencies([more[0]]):
                step = self.counter.assign_add(1, read_value=True)
            totals = self._steps.combine(totals, more)
        return [*totals, dropped]

    def _take(self, queue, step):
        """The next contribution for this update, and how many late ones came before it."""
        late = tf.constant(0)
        parts = tf.raw_ops.QueueDequeueV2(handle=queue, component_types=self._dtypes)
        while parts[0] < step:
            late += 1
            parts = tf.raw_ops.QueueDequeueV2(handle=queue, component_types=self._dtypes)
        return parts, late

    @tf.function
    def _apply(self, contributions) -> list[tf.Tensor]:
        """Applies the mean of the gradients, each weighed by its share; returns the sum of their totals."""
        model, zeros = self._steps.model, self._steps.zeros()
        everything = tf.add_n([tf.ensure_shape(c[1], []) for c in contributions])  # 1 if all are of one batch
        totals, gradients = zeros, []
        for contribution in contributions:
            mine = [tf.ensure_shape(t, z.shape) for t, z in zip(contribution[2:], zeros, strict=False)]
            totals = self._steps.combine(totals, mine)
        position = 2 + len(zeros)
        for kind, variable in zip(self._kinds, model.trainable_variables, strict=True):
            if kind is None:
                gradients.append(None)
            elif kind is tf.IndexedSlices:
                values = tf.concat([c[position] for c in contributions], 0) / everything
                indices = tf.concat([c[position + 1] for c in contributions], 0)
                if id(variable) in self._distinct:
                    indices, place = tf.unique(indices)
                    values = tf.math.unsorted_segment_sum(values, place, tf.size(indices))
                gradients.append(tf.IndexedSlices(values, indices, tf.constant([*variable.shape], tf.int64)))
                position += 2
            else:
                summed = tf.add_n([tf.ensure_shape(c[position], variable.shape) for c in contributions])
                gradients.append(summed / everything)
                position += 1
        model.optimizer.apply(gradients, model.trainable_variables)
        return totals


class _Watch:
    """Looks after updates while the coordinator waits for gradients: for errors of workers, and lost ones."""

    def __init__(self, dispatcher: Synchronous, update: _Update):
        self._dispatcher, self._update = dispatcher, update
        self._shares = dispatcher.shares()
        update.shares.assign(self._shares)
        self._error: Exception | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, kind, error, trace) -> None:
        self._over.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _look(self) -> None:
        while not self._over.wait(_WATCH):
            try:
                self._dispatcher.coordinator.done()  # raises what a worker's execution has failed with
            except Exception as failure:
                self._error = failure
                self._update.close()
                return
            shares = self._dispatcher.shares()
            if shares != self._shares:
                more = [max(0, new - old) for new, old in zip(shares, self._shares, strict=True)]
                self._shares = shares
                self._update.shares.assign(shares)
                self._update.hand_out(more, self._update.counter.numpy())
