"""The processes of a tf.data service: a dispatcher in the process that reads, and workers that make elements."""

# TensorFlow ships no types.
# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import ctypes
import functools
import os
import socket
import threading
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tf2dist.cluster.heartbeat import TaskConnection
from tf2dist.cluster.reachability import connect
from tf2dist.cluster.rendezvous import RendezvousError
from tf2dist.cluster.roles import leader_of
from tf2dist.cluster.spec import Cluster
from tf2dist.errors import UsageError, first_line
from tf2dist.runtime.tensorflow_import import held_back_stderr
from tf2dist.system import environment_variables

_service = tf.data.experimental.service
_FORGET_SECONDS = 10.0
_starting = threading.Lock()


@dataclass(frozen=True)
class RunningService:
    """A tf.data service whose dispatcher is in this process.

    Attributes:
      target: where the dispatcher listens, as TensorFlow takes it: "grpc://localhost:5000".
      workers: how many make elements.
      of_job: are they tasks of the job, each of which may be lost, and started again?
      servers: TensorFlow's, which end when nobody holds them.
    """

    target: str
    workers: int
    of_job: bool
    servers: tuple[Any, ...] = field(repr=False)

    @property
    def port(self) -> int:
        """The dispatcher's."""
        return int(self.target.rpartition(":")[2])


def start_dispatcher(workers: int) -> RunningService:
    """Starts the dispatcher of a job with so many data workers, at TF2DIST_DISPATCHER_PORT or a port that is free.

    Raises:
      UsageError: the variable holds no port, or one that cannot be used.
    """
    name = environment_variables.DISPATCHER_PORT
    try:
        port = environment_variables.count(name, os.environ) or 0
    except ValueError as error:
        raise UsageError(str(error)) from None
    if port > 65535:
        raise UsageError(f"{name} is {port}; ports go from 1 to 65535")
    try:
        if port:  # where another dispatcher listens TensorFlow's gRPC would listen as well, each to some connections
            socket.create_server(("", port)).close()
        with held_back_stderr():
            dispatcher = _service.DispatchServer(_config(port))
    except (OSError, tf.errors.OpError) as error:
        why = error.strerror.lower() if isinstance(error, OSError) and error.strerror else first_line(error)
        raise UsageError(f"the dispatcher of the data service cannot listen at port {port}: {why}") from None
    return RunningService(dispatcher.target, workers, True, (dispatcher,))


def _config(port: int) -> Any:
    """That of a dispatcher, which forgets soon what nobody reads any more: workers hold buffers for it."""
    seconds = int(1000 * _FORGET_SECONDS)
    return _service.DispatcherConfig(port=port, job_gc_check_interval_ms=seconds, job_gc_timeout_ms=seconds)


def service_in_this_process(workers: int) -> RunningService:
    """Returns a service with so many workers in this process, where they also can call its Python."""
    with _starting:  # or what one of two threads has registered would be gone with its service
        return _service_of_this_process(workers)


@functools.cache  # the datasets that it has made may be read as long as there is this process
def _service_of_this_process(workers: int) -> RunningService:
    with held_back_stderr():
        dispatcher = _service.DispatchServer(_config(0))
        address = dispatcher.target.partition("://")[2]
        made = [_service.WorkerServer(_service.WorkerConfig(dispatcher_address=address)) for _ in range(workers)]
    return RunningService(dispatcher.target, workers, False, (dispatcher, *made))


def start_worker(connection: TaskConnection, cluster: Cluster, limit: float) -> Any:
    """Starts the worker of a data worker's process, once its leader says where the dispatcher is; returns the server.

    Args:
      connection: to the task that leads.
      cluster: with this process as a data worker.
      limit: seconds for the leader to say it, and for the dispatcher to answer.

    Raises:
      RendezvousError: one of them does not.
      TaskLostError: the leader has ended.
    """
    try:
        port = connection.receive("dispatcher", limit=limit).partition(" ")[2]
    except TimeoutError as late:
        raise RendezvousError(f"{late}, where the dispatcher of the data service is") from None
    dispatcher = f"{cluster.address(leader_of(cluster)).rpartition(':')[0]}:{port}"
    # TensorFlow's worker waits in its constructor for a dispatcher that is not there, for ever.
    try:
        connect(dispatcher, limit).close()
    except OSError as error:
        raise RendezvousError(
            f"{cluster.task} does not reach the dispatcher of the data service at {dispatcher}: "
            f"{(error.strerror or str(error)).lower()}"
        ) from None
    config = _service.WorkerConfig(
        dispatcher_address=dispatcher,
        worker_address=cluster.address(),
        port=cluster.port(),
        dispatcher_timeout_ms=int(1000 * limit),
    )
    try:
        with held_back_stderr():
            server = _service.WorkerServer(config)
    except tf.errors.OpError as error:
        raise RendezvousError(
            f"{cluster.task} cannot make elements for the dispatcher of the data service at {dispatcher}: "
            f"{first_line(error)}"
        ) from None
    # Its end would wait for those who have begun a pass and do not read on. So it is never freed.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
    return server
