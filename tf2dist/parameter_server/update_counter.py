"""How many updates were applied: counted on a server, and what the optimizer's own counters are set to."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

import tensorflow as tf

from tf2dist.compat.strategy_internals import tracing_for_servers
from tf2dist.errors import TrainingError
from tf2dist.parameter_server.fencing_tokens import HeldToken
from tf2dist.parameter_server.server_calls import called_by_server
from tf2dist.parameter_server.variable_mutex import held

_LOOK_SECONDS = 0.005  # between two looks whether servers still apply updates
_SETTLE_SECONDS = 60.0  # for updates that are under way
_ABANDON_SECONDS = 5.0  # for updates of a training that has failed; one that has itself failed never ends
_STILL_SECONDS = 1.0  # without an update, after which none is taken to be on its way


class UpdateCounter:
    """Counts updates on a parameter server, and has the servers apply and count them whatever becomes of the worker.

    With one server, an update that is counted is applied, and one that is not is not: the server does both, in a call
    of its own, when all that the worker sends has come. (One that has a loop may be counted and applied in part, which
    is an error in `settle`.)

    With several, each applies its part when one of them has counted the update and told the others. All this is part of
    the worker's call and is cancelled with it, so a worker that dies just then, or an error that ends the training, may
    leave an update that is counted and applied in part, or not at all. An optimizer's own counters may have missed it
    too; they are set to this count.
    """

    def __init__(self, strategy: tf.distribute.ParameterServerStrategy):
        with strategy.scope():
            self.variable = tf.Variable(tf.zeros([], tf.int64), trainable=False, name="applied_updates")
            with strategy.extended.colocate_vars_with(self.variable):
                # Calls of the server itself: begun and not ended.
                self.under_way = tf.Variable(tf.zeros([], tf.int64), trainable=False, name="updates_under_way")
        self._others: Sequence[tf.Variable] = ()
        self._before: list[int] = []
        self._never_ended = 0  # updates under way of trainings that ended with their error
        self._has_loop = False  # in an update that is a call of the server
        self.in_one_call = False

    def follow(self, counters: Sequence[tf.Variable]) -> None:
        """Sets the optimizer's counters, which go up by one an update."""
        self._others = counters

    @property
    def value(self) -> int:
        """Updates that were applied, counted from the beginning of the data."""
        return int(self.variable.numpy())

    def reset(self, value: int) -> None:
        """Sets the count."""
        self.variable.assign(value)

    def add(self, updates) -> tf.Operation:
        """Counts `updates` (an int or i32[]) more. On the worker."""
        with tf.device(self.variable.device):  # a constant is made where it is used
            more = tf.constant(updates, tf.int64) if isinstance(updates, int) else tf.cast(updates, tf.int64)
            return self.variable.assign_add(more, read_value=False)

    def apply(
        self,
        update: Callable[[], None],
        arrived: Sequence[tf.Tensor],
        updates,
        token: HeldToken,
        mutex: str | None = None,
        answer: Callable[[], list[tf.Tensor]] | None = None,
    ) -> list[tf.Tensor]:
        """Has the servers call `update()` and count `updates` when all of `arrived` is there, not before.

        On the worker. `updates` is an int or i32[]; `arrived` are on the servers; `update` writes variables.

        Args:
          token: is asked on the server with the count whether it is valid, if it is not nothing is applied, and counts
            what is.
          mutex: name of one under which all of it is done, if any.
          answer: makes, of what is on the server with the count, what is returned after all of it, whether the token
            was valid or not.

        Returns:
          What `answer` has made, or whether the token was valid, bool[]: there when all is done, on the server with the
          count.
        """
        device = self.variable.device

        def make():
            self.add(updates)
            token.count_applied(updates)
            update()
            return tf.constant(True)

        made = _traced(make)  # in a branch of a condition an optimizer could not meet other replicas
        if all(t.device == device for t in made.captured_inputs if t.dtype == tf.resource):
            self.in_one_call = True
            called = self._server_call(made, token.is_valid, mutex, answer)
            self._has_loop |= _has_loop(called)
            with tf.device(device), tf.control_dependencies(arrived):
                return called()
        with tf.device(device):
            complete = tf.group(*arrived)  # each server tells the one with the counter, which tells all
            with tf.control_dependencies([complete]), _held(mutex):
                return _answered(tf.cond(token.is_valid(), made, lambda: tf.constant(False)), answer)

    def _server_call(self, made, is_valid: Callable[[], tf.Tensor], mutex: str | None, answer):
        """A function in which the server calls `made`, if that is valid, and notes that it is under way.

        When a worker dies, TensorFlow cancels what it has called on the servers: an operation fails that would receive
        something from it or wait for a mutex, as does a function or another turn of a loop that has not begun, and no
        further operation begins in a graph in which one has failed (`FunctionLibraryRuntimeImpl::Run`, `LoopCondOp`,
        `Mutex::AcquireAsync`, `ExecutorState` in tensorflow/core). So this is a graph by itself that receives nothing,
        and has its mutex before it begins. A function that is called by TensorFlow's runtime, and not as a part of the
        worker's graph, has its conditions and calls replaced by what is in them, which neither a `RemoteCall` nor an
        `If` does. Loops are cancelled: such an update never ends, see `settle`.
        """

        @called_by_server
        def call():
            with tf.device(self.variable.device), _held(mutex):
                begun = self.under_way.assign_add(1, read_value=False)
                with tf.control_dependencies([begun]):
                    found = tf.cond(is_valid(), made, lambda: tf.constant(False))
                answers = _answered(found, answer)  # under the mutex: no other worker's update is half in it
                with tf.control_dependencies(answers):
                    ended = self.under_way.assign_sub(1, read_value=False)
                with tf.control_dependencies([ended]):
                    return [tf.identity(t) for t in answers]

        return call.get_concrete_function()

    def settle(self) -> None:
        """Waits until the server has ended the updates that it has begun for workers that are lost, or were stopped.

        Raises:
          TrainingError: it has not in a minute.
        """
        under_way = self._wait(_SETTLE_SECONDS)
        if under_way:
            loop = "; the update has a loop (tf.while_loop), which is cancelled with its worker" * self._has_loop
            raise TrainingError(
                f"{self.variable.device} has begun {under_way} updates of workers that are lost, and not ended "
                f"them in {_SETTLE_SECONDS:.0f} s{loop}"
            )

    def abandon(self) -> None:
        """Waits for the last updates of a training that has failed, when no worker is at it; then all counts agree."""
        self._never_ended += self._wait(_ABANDON_SECONDS)
        self.correct_others()

    def _wait(self, limit: float) -> int:
        """Waits until the servers have ended all updates; returns how many they have not, if for `limit` s none ended.

        Workers that are lost must not make valid ones any more. An update that is a call of the server is begun before
        it is found to be valid, so none is left when none is under way. Of others none is taken to be on its way when
        none was counted for a second.
        """
        still = 0.0 if self.in_one_call else _STILL_SECONDS
        deadline, last, count, since = time.monotonic() + limit, 0, self.value, time.monotonic()
        while True:
            under_way = max(0, int(self.under_way.numpy()) - self._never_ended)
            now = self.value
            if under_way or now != count:
                count, since = now, time.monotonic()
            if under_way < last:
                deadline = time.monotonic() + limit
            last = under_way
            is_still = not under_way and time.monotonic() >= since + still
            if is_still or time.monotonic() > deadline:
                return under_way
            time.sleep(_LOOK_SECONDS)

    def snapshot(self) -> None:
        """Remembers all counts. Only while no valid update is under way."""
        self._never_ended = min(self._never_ended, int(self.under_way.numpy()))
        self._before = [int(counter.numpy()) for counter in (self.variable, *self._others)]

    def correct_others(self) -> None:
        """Makes the optimizer's counters go up by as much as this one has since the snapshot."""
        applied = self.value - self._before[0]
        for counter, before in zip(self._others, self._before[1:], strict=True):
            counter.assign(before + applied)


def _traced(function: Callable[[], tf.Tensor]):
    """The function, concrete, traced for servers in a replica's context of its own, wherever this is called."""
    made = []

    def trace(strategy):
        with tracing_for_servers(strategy):
            made.append(tf.function(lambda: strategy.run(function), autograph=False).get_concrete_function())

    context = tf.distribute.get_replica_context()
    trace(tf.distribute.get_strategy()) if context is None else context.merge_call(trace)
    return made[0]


def _answered(found: tf.Tensor, answer: Callable[[], list[tf.Tensor]] | None) -> list[tf.Tensor]:
    """What `answer` makes when the update is made, if it was valid."""
    if answer is None:
        return [found]
    with tf.control_dependencies([found]):
        return answer()


def _held(mutex: str | None) -> contextlib.AbstractContextManager[None]:
    return held(mutex) if mutex else contextlib.nullcontext()


def _has_loop(function) -> bool:
    """Does the concrete function, or one that it calls, run a loop?"""
    graph = function.graph.as_graph_def()
    nodes = [graph.node, *(inner.node_def for inner in graph.library.function)]
    return any(node.op in ("While", "StatelessWhile") for of_one in nodes for node in of_one)
