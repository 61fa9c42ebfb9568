"""A server task: a parameter server that holds variables, a worker that runs steps, or a data worker."""

# TensorFlow ships no types.
# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from typing import NoReturn

from tf2dist.cluster import heartbeat, rendezvous, stall_diagnosis
from tf2dist.cluster.heartbeat import CountedAsLostError, TaskConnection, TaskLostError
from tf2dist.cluster.loss_policy import status_after_loss
from tf2dist.cluster.roles import leader_of
from tf2dist.cluster.spec import Cluster, Task
from tf2dist.errors import UsageError
from tf2dist.runtime.logging_setup import log_to_stderr, quiet_tensorflow
from tf2dist.runtime.preemption import Preemption
from tf2dist.runtime.process_exit import exit_now
from tf2dist.runtime.sigterm import SigtermHandler
from tf2dist.runtime.tensorflow_import import import_tensorflow
from tf2dist.system import environment_variables, gpus, linux

_LEADER_FIRST = 1.0  # seconds after the coordinator's loss, where the launcher cannot be told that it was lost
_ANSWER_LIMIT = 20.0  # seconds that the coordinator has to answer a server that was asked to stop; it may be tracing
_log = logging.getLogger("tf2dist")


def serve(cluster: Cluster, limit: float | None = None, preemption: Preemption | None = None) -> int:
    """Serves variables, runs steps or makes elements of data for the task that leads the job, until that is done.

    Args:
      cluster: with this process as a ps, a worker or a data worker.
      limit: seconds to wait for the coordinator; `rendezvous.start_timeout` if not given.
      preemption: of this process; says whether SIGTERM asks the job to stop.

    Returns:
      The status to end with: 0, or 75 if the job was preempted and is to be started again.

    Raises:
      RendezvousError: the coordinator did not connect, or was started differently.
      TaskLostError: the coordinator died before the job was done.
      UsageError: TensorFlow uses fewer GPUs than this worker was given.
    """
    limit = limit or rendezvous.start_timeout()
    connection = rendezvous.wait_for_leader(cluster, leader_of(cluster), limit)
    with heartbeat.sending_heartbeats([connection]):  # on a slow host the import alone takes longer than their grace
        tf = import_tensorflow()
        from tf2dist.runtime import data_service, devices, tensorflow_config_proto
        from tf2dist.runtime.emergency_checkpoint import KeptTraining

        if cluster.task.job == "worker":
            devices.check_given_gpus()
        if cluster.task.job == "data_worker":
            server = data_service.start_worker(connection, cluster, limit)
        else:
            options = tensorflow_config_proto.make_for_server(cluster)
            server = tf.distribute.Server(
                cluster.spec, job_name=cluster.task.job, task_index=cluster.task.index, protocol="grpc", config=options
            )
    preemption = preemption or Preemption()
    preemption.tell_by(lambda: connection.send("preempt"))
    request = _StopRequest(connection)
    if preemption.by_signal:
        SigtermHandler(request.ask, lambda: None).install()
    connection.send("ready")
    kept = KeptTraining(cluster)
    try:
        status = heartbeat.wait_until_done(
            connection, request.answered, lambda message: stall_diagnosis.answer(connection, message, None), kept.note
        )
    except CountedAsLostError:
        raise  # the coordinator goes on, on the server that is in the place of this one
    except TaskLostError:
        if kept.exists:
            request.wait_no_longer()
            SigtermHandler(lambda: True, lambda: None).install()
            kept.save()
        raise
    del server  # it cannot be stopped; it ends with the process
    return status


class _StopRequest:
    """A SIGTERM to a server: the coordinator is asked, which needs the server to save what it trains.

    If it does not stop the job for that (it has no checkpoint to write, say), or does not answer, the signal ends the
    server.
    """

    def __init__(self, connection: TaskConnection) -> None:
        self._connection = connection
        self._asked, self._answered = False, threading.Event()

    def ask(self) -> bool:
        self._asked = True
        self._connection.send("preempt")
        threading.Thread(target=self._wait, daemon=True).start()
        return True

    def answered(self, accepted: bool) -> None:
        self._answered.set()
        if self._asked and not accepted:
            linux.end_by(signal.SIGTERM)

    def wait_no_longer(self) -> None:
        """Has the signal end nothing any more: the coordinator is lost, and this server ends anyway."""
        self._answered.set()

    def _wait(self) -> None:
        if not self._answered.wait(_ANSWER_LIMIT):
            linux.end_by(signal.SIGTERM)


def serve_and_exit(cluster: Cluster, limit: float, preemption: Preemption) -> NoReturn:
    """Serves until the job is done, and exits; with one line and `status_after_loss` when the coordinator is lost."""
    log_to_stderr()
    quiet_tensorflow()
    try:
        status = serve(cluster, limit, preemption)
    except (TaskLostError, UsageError, rendezvous.RendezvousError) as error:
        failed = status_after_loss() if isinstance(error, TaskLostError) else 1
        if isinstance(error, TaskLostError) and failed == 1:
            time.sleep(_LEADER_FIRST)  # Slurm and Kubernetes act on the first exit that they see
        _log.error("tf2dist: %s: %s", cluster.task, error)
        exit_now(2 if isinstance(error, UsageError) else failed)
    exit_now(status)


def fork_worker_0_server(cluster: Cluster, limit: float, preemption: Preemption) -> None:
    """Starts worker 0's server as a child process of the coordinator that worker 0 also is.

    A fork before TensorFlow has touched a device is safe, also after its import; CUDA in a child of a process that has
    opened its driver is not.
    """
    first = "tf2dist.join must come before the first TensorFlow operation of the process, and before it lists devices"
    if gpus.driver_is_open():
        raise RuntimeError(first)
    if "tensorflow" in sys.modules:
        from tf2dist.compat import eager_context

        if eager_context.is_initialized():
            raise RuntimeError(first)
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return  # it ends with this process
    try:
        linux.die_with_parent(parent, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the coordinator, which ends this one
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.environ.pop(environment_variables.LOSS_STATUS, None)  # no launcher sees it end
        serve_and_exit(cluster.at(Task("worker", 0)), limit, Preemption(preemption.by_signal))
    except BaseException:
        _log.exception("tf2dist: the server of worker 0 failed")
    finally:
        exit_now(1)
