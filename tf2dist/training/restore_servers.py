"""Goes on with a training whose parameter servers were lost: on new ones, from its last checkpoint."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import keras
import tensorflow as tf

from tf2dist.cluster.spec import Task
from tf2dist.compat.model import strategy_of
from tf2dist.compat.scheduled_functions import check_connections, reconnect
from tf2dist.compat.variables_in_scope import make_anew, parameter_servers_of, unmovable
from tf2dist.errors import CheckpointError, TrainingError
from tf2dist.parameter_server.worker_pool import WorkerPool
from tf2dist.runtime import session
from tf2dist.runtime.monitored_servers import MonitoredServers
from tf2dist.training.checkpoint import Checkpoint
from tf2dist.training.load_checkpoint import load_checkpoint
from tf2dist.training.prepared_model import forget

_Result = TypeVar("_Result")
_NOTICE_SECONDS = 2.0  # TensorFlow may notice the loss of a server before the session does
_RECONNECT_SECONDS = 120.0  # a worker tries again to reach a server after up to about as long as it was away
_AGAIN_SECONDS = 0.5  # between two attempts to connect

_log = logging.getLogger("tf2dist")


def can_go_on_without_servers(model: keras.Model, data: Any, checkpoints: Sequence[Checkpoint]) -> bool:
    """Whether a training can go on from a checkpoint, in this process, when parameter servers were lost.

    Args:
      model: as in the call of `fit`.
      data: what it was given: it must be there once more from its beginning.
      checkpoints: of the training.
    """
    here = session.current()
    strategy = strategy_of(model) or here.strategy
    if here.servers is None or strategy is not here.strategy:
        return False
    return bool(checkpoints) and not isinstance(data, Iterator) and unmovable(model, tables_stay=True) is None


def restoring_servers(
    model: keras.Model, checkpoints: Sequence[Checkpoint], train: Callable[[int | None], _Result]
) -> _Result:
    """Calls `train(None)`, and `train(reached)` whenever parameter servers were lost in it and are back.

    The model has the values of the last checkpoint then, from which `train` is to go on. Before there is one, the loss
    of a server ends the job, as it does elsewhere.

    Args:
      model, checkpoints: as for `can_go_on_without_servers`, which is true.
      train: trains; its argument is the global step that was reached, if servers were lost.
    """
    servers = session.current().servers
    assert servers is not None

    def can_restore() -> bool:
        return any(checkpoint.can_restore for checkpoint in checkpoints)

    reached: int | None = None
    known = servers.parameter_servers()
    lost: list[Task] = []
    ended: list[_Result] = []
    with servers.restoring(can_restore):
        while True:
            try:
                if lost:
                    begin = time.monotonic()
                    known = _wait_until_all_are_there(servers)
                    _connect_again(model, servers, known)
                    if ended and not parameter_servers_of(model) & {task.index for task in lost}:
                        return ended[0]
                    step = _restore(model, checkpoints)
                    _log.warning(
                        "tf2dist: the variables on %s are made again, %.1f s after their loss was met",
                        ", ".join(map(str, lost)), time.monotonic() - begin,
                    )  # fmt: skip
                    if ended and any(checkpoint.saved_step == step for checkpoint in checkpoints):
                        return ended[0]  # nothing that it has made was lost
                    lost, ended = [], []
                ended = [train(reached)]
                lost = servers.lost_since(known, 0.0)
                if not lost:
                    return ended[0]
            except (tf.errors.OpError, TrainingError, CheckpointError):  # what a loss makes of what is under way
                again = servers.lost_since(known, _NOTICE_SECONDS)
                if session.current().preemption.ends_job:
                    raise  # those that were asked to stop as well are not started again
                if not (again and can_restore() and unmovable(model, tables_stay=True) is None):
                    raise
                lost = sorted({*lost, *again}, key=str)  # more may be lost while those are waited for
            reached = max(-1 if reached is None else reached, *(checkpoint.pause() for checkpoint in checkpoints))


def _wait_until_all_are_there(servers: MonitoredServers) -> dict[Task, int]:
    """Returns how often each parameter server was started, when all are there; the monitor does not wait for ever.

    Raises:
      TrainingError: the job was asked to stop.
    """
    while (known := servers.all_parameter_servers(1.0)) is None:
        session.current().progress.moves()
        if session.current().preemption.ends_job:
            raise TrainingError("a parameter server is lost, and the job was asked to stop")
    return known


def _connect_again(model: keras.Model, servers: MonitoredServers, known: Mapping[Task, int]) -> None:
    """Ends what the workers run, and connects to all servers.

    Raises:
      tf.errors.OpError: a parameter server was lost once more.
      TrainingError: they cannot be connected to.
    """
    strategy = session.current().strategy
    assert isinstance(strategy, tf.distribute.ParameterServerStrategy)
    session.current().free_workers = lambda: None  # by tokens on servers, which are lost
    WorkerPool(strategy).cancel()
    _until_connected(lambda: reconnect(strategy), servers, known)
    used = lambda: servers.present().keys() - session.current().unused_workers()  # noqa: E731
    _until_connected(lambda: check_connections(strategy, used()), servers, known)
    servers.note_restored()
    forget(model)
    gc.collect()  # not before: TensorFlow logs an error for each function that it cannot remove from a server


def _restore(model: keras.Model, checkpoints: Sequence[Checkpoint]) -> int:
    """Makes the model's variables again, with the values of the last checkpoint; returns its step.

    Raises:
      CheckpointError: none is whole.
    """
    strategy = session.current().strategy
    assert strategy is not None
    make_anew(model, strategy)
    steps = [load_checkpoint(model, c.directory) for c in checkpoints if c.can_restore]
    return steps[-1]


def _until_connected(connect: Callable[[], object], servers: MonitoredServers, known: Mapping[Task, int]) -> None:
    """Calls `connect` until it does not fail, or a parameter server is lost once more; a worker may be."""
    deadline = time.monotonic() + _RECONNECT_SECONDS
    while True:
        session.current().progress.moves()
        try:
            connect()
            return
        except tf.errors.OpError as error:
            if servers.lost_since(known, 0.0):
                raise
            if time.monotonic() > deadline:
                raise TrainingError(
                    f"the servers that are back cannot be connected to in {_RECONNECT_SECONDS:.0f} s: {error}"
                ) from None
        time.sleep(_AGAIN_SECONDS)
