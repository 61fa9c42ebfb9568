"""`join`: one call at the top of a script, the same in every process of a job."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import time
import traceback
from typing import TYPE_CHECKING

from tf2dist import environments, preflight, quiet
from tf2dist.cluster import Cluster, ClusterError, Task
from tf2dist.lifeline import Follow, Gone, Lead
from tf2dist.names import STRATEGIES
from tf2dist.roles import Role, followers_of, leader_of, role_of, serve

if TYPE_CHECKING:
    import tensorflow as tf


def join(
    name: str,
    *,
    replicas: int | None = None,
    cluster: Cluster | None = None,
    start_timeout: float | None = None,
) -> tf.distribute.Strategy:
    """Takes this process's place in the job and returns its strategy.

    A server (a ps, or a worker that a coordinator leads) serves inside of this call and the process exits when the
    job is done, so what follows in the script runs only where a loop is run, and in an evaluator. Without a cluster
    "one", "mirrored" and "central" just work.

    Args:
      name: one of `tf2dist.STRATEGIES`.
      replicas: see `make_strategy`.
      cluster: from the environment (TF_CONFIG) if not given.
      start_timeout: seconds to wait for the other tasks of the job; TF2DIST_START_TIMEOUT, or 120, if not given.

    Raises:
      ClusterError: a cluster that cannot be, or does not fit the strategy, or a port in use.
      PreflightError: a task that is missing after `start_timeout`, or was started differently.
      ValueError: an unknown name, or devices that are not there.
    """
    if name not in STRATEGIES:
        raise ValueError(f"unknown strategy {name!r}; strategies are {', '.join(STRATEGIES)}")
    if cluster is None and name in ("ps", "multiworker"):
        cluster = environments.from_environment()
    role = role_of(name, cluster)
    limit = start_timeout or preflight.time_limit()
    quiet.set_defaults()
    if role is Role.SERVER:
        assert cluster is not None
        _serve_and_exit(cluster, limit)
    if role is Role.COORDINATOR:
        assert cluster is not None
        return _coordinate(name, replicas, cluster, limit)
    if role is Role.EVALUATOR:
        global _evaluates, _start_timeout
        _evaluates, _start_timeout = True, limit
        return _make("one", None, None)
    if role is Role.PEER:
        assert cluster is not None
        return _peer(name, replicas, cluster, limit)
    return _make(name, replicas, None)


def connect(cluster: Cluster | None = None, *, replicas: int | None = None, start_timeout: float | None = None) -> None:
    """Takes this process's place in a cluster without a strategy, for a program that places operations itself.

    The leader (the chief, worker 0, or the first task where jobs have other names) returns, and `tf.device` then
    takes the devices of every task, as "/job:worker/task:1/gpu:0". The others serve inside of this call, and exit
    when the leader's program has ended. Without a cluster there are this process's own devices.

    Args:
      cluster: from the environment (TF_CONFIG) if not given; `AnyJobs` where jobs have other names.
      replicas: devices of this process: GPUs, or virtual CPU devices where there are none.
      start_timeout: seconds to wait for the other tasks, as for `join`.

    Raises:
      As `join`, and Gone when a task dies before the program begins; later on that ends this process.
    """
    cluster = cluster or environments.from_environment()
    quiet.set_defaults()
    limit = start_timeout or preflight.time_limit()
    others = [] if cluster is None else [t for t in cluster.tasks if t != leader_of(cluster) and t.job != "evaluator"]
    if cluster is None or not others:
        quiet.import_tensorflow()
        from tf2dist import devices

        devices.replica_devices(replicas)
        return
    if cluster.task in others:
        _serve_and_exit(cluster, limit)
    preflight.check_port(cluster)
    lead = Lead(preflight.gather(cluster, others, limit), fatal=bool)
    _remember(lead)
    tf = quiet.import_tensorflow()
    from tf2dist import devices

    lead.wait_ready(limit)
    _at_success(lambda: lead.end(together=False))
    with quiet.held_back_stderr():
        devices.use_session_options(cluster)
        devices.replica_devices(replicas)
        tf.config.experimental_connect_to_cluster(
            tf.train.ClusterSpec(cluster.spec),
            job_name=cluster.task.job,
            task_index=cluster.task.index,
            protocol="grpc",
        )


def _make(name: str, replicas: int | None, cluster: Cluster | None) -> tf.distribute.Strategy:
    global _joined
    quiet.import_tensorflow()
    from tf2dist.strategy import make_strategy

    with quiet.held_back_stderr():
        _joined = make_strategy(name, replicas=replicas, cluster=cluster)
    return _joined


def _serve_and_exit(cluster: Cluster, limit: float) -> None:
    try:
        serve(cluster, limit)
    except (Gone, ClusterError, preflight.PreflightError) as error:
        # A coordinator that failed says why itself; let it be the first to end.
        time.sleep(0.5 if isinstance(error, Gone) else 0.0)
        print(f"tf2dist: {cluster.task}: {error}", file=sys.stderr, flush=True)
        _leave(2 if isinstance(error, ClusterError) else 1)
    _leave(0)


def _leave(status: int) -> None:
    """Exits at once: a TensorFlow server cannot be stopped, and its threads must not outlive Python's end."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _coordinate(name: str, replicas: int | None, cluster: Cluster, limit: float) -> tf.distribute.Strategy:
    preflight.check_port(cluster)
    if leader_of(cluster).job == "worker":
        _fork_server(cluster, limit)
    lines = preflight.gather(cluster, followers_of(cluster), limit)
    workers = [t for t in cluster.tasks if t.job == "worker"]
    lead = Lead(
        lines,
        fatal=lambda lost: any(t.job == "ps" for t in lost) or set(workers) <= set(lost),
        again=lambda task, over: preflight.find_again(cluster, task, over),
    )
    _remember(lead)
    quiet.import_tensorflow()
    lead.wait_ready(limit)
    _at_success(lambda: lead.end(together=False))
    return _make(name, replicas, cluster)


def _peer(name: str, replicas: int | None, cluster: Cluster, limit: float) -> tf.distribute.Strategy:
    leader = leader_of(cluster)
    preflight.check_port(cluster)
    if cluster.task == leader:
        lead = Lead(preflight.gather(cluster, followers_of(cluster), limit), fatal=lambda lost: bool(lost))
        _remember(lead)
        quiet.import_tensorflow()
        _at_success(lambda: lead.end(together=True))
    else:
        follow = Follow(preflight.answer(cluster, leader, limit))
        _remember(follow)
        quiet.import_tensorflow()
        _at_success(follow.end)
    return _make(name, replicas, cluster)


def _fork_server(cluster: Cluster, limit: float) -> None:
    """Starts worker 0's server as a child of the coordinator that worker 0 also is.

    A fork before TensorFlow has touched a device is safe, also after its import.
    """
    if "tensorflow" in sys.modules:
        from tensorflow.python.eager import context

        if context.context()._initialized:
            raise RuntimeError("tf2dist.join must come before the first TensorFlow operation of the process")
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return  # it ends with this process
    try:
        _die_with(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the coordinator, which ends this one
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _serve_and_exit(cluster.at(Task("worker", 0)), limit)
    except BaseException:
        traceback.print_exc()
    finally:
        _leave(1)


def _die_with(parent: int) -> None:
    """Asks the kernel to kill this process when its parent ends, however that ends (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


_failed = _evaluates = False
_start_timeout: float | None = None  # what `join` was told, where that is still of use
_joined: tf.distribute.Strategy | None = None
_watch: Lead | Follow | None = None  # who would notice that another task is gone


def _remember(watch: Lead | Follow) -> None:
    global _watch
    _watch = watch


def first_loss() -> str:
    """Which other task of the job was lost first, as "ps 0 at host:port is gone: ..."; empty if none was."""
    return _watch.first_loss if _watch else ""


def evaluates() -> bool:
    """Is this process the job's evaluator?"""
    return _evaluates


def start_timeout() -> float:
    """Seconds that this process waits for the others to begin."""
    return _start_timeout or preflight.time_limit()


def joined() -> tf.distribute.Strategy | None:
    """The strategy of the job that this process has joined; None if it has not."""
    return _joined


def lost() -> list[Task]:
    """The tasks of the job that are gone, as far as this process leads it."""
    return list(_watch.lost) if isinstance(_watch, Lead) else []


def failed() -> None:
    """Says that this process ends with an error: the job is not done, whatever its exit looks like."""
    global _failed
    _failed = True


def _at_success(end) -> None:
    """Calls `end` when the script ends without an uncaught exception."""
    previous = sys.excepthook

    def hook(*args):
        failed()
        previous(*args)

    sys.excepthook = hook
    atexit.register(lambda: None if _failed else end())
