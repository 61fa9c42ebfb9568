"""The session: this process in its job. `join` and `connect` begin it; `current` returns it."""

# TensorFlow ships no types.
# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import contextlib
import functools
import logging
import os
from typing import TYPE_CHECKING

from tf2dist.cluster import environments, rendezvous
from tf2dist.cluster.loss_policy import LossPolicy, status_after_loss
from tf2dist.cluster.roles import Role, followers_of, leader_of, role_of
from tf2dist.cluster.spec import Cluster, Task
from tf2dist.cluster.stall_diagnosis import Progress
from tf2dist.cluster.strategy_names import check_strategy
from tf2dist.cluster.task_monitor import FollowerMonitor, LeaderMonitor
from tf2dist.errors import START_AGAIN, UsageError
from tf2dist.runtime import error_explanation, tensorflow_import
from tf2dist.runtime.failure_reporter import FailureReporter
from tf2dist.runtime.logging_setup import log_to_stderr_by_default, quiet_tensorflow
from tf2dist.runtime.monitored_servers import MonitoredServers
from tf2dist.runtime.preemption import Preemption
from tf2dist.runtime.process_exit import exit_now
from tf2dist.runtime.server import fork_worker_0_server, serve_and_exit
from tf2dist.runtime.stall_timeout import StallWatch
from tf2dist.runtime.step_report import StepReport
from tf2dist.system import environment_variables, program_errors
from tf2dist.system.limited_call import call_for

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import tensorflow as tf

    from tf2dist.runtime.data_service import RunningService

_SAVE_GRACE = 60.0  # seconds for what is being saved when another task is lost; platforms may give less
_MARK_GRACE = 5.0  # seconds to note in files that the job was preempted; they may be on a file system that hangs


class Session(FailureReporter):
    """This process in its job: its role, which other tasks are lost, and (`FailureReporter`) how the process ends.

    Args:
      cluster: the job's tasks; None where this process is alone.
      role: what this process does in the job.
      start_timeout: seconds to wait for the other tasks; `rendezvous.start_timeout` if not given.
      preemptible: as for `join`.

    Attributes:
      cluster, role: as given.
      preemption: whether the job was asked to stop, and what this process does then.
      progress: the steps that this process makes.
      strategy: what `join` returned; None if nothing was joined, or with `connect`.
      free_workers: ends what keeps the workers busy between two updates of a synchronous training. Whoever needs them
        for something else calls it.
      servers: tells which workers and parameter servers of this coordinator's are there; None in any other process.
      data_service: that of the job's data workers, in the process that leads; None without any.
    """

    def __init__(
        self,
        cluster: Cluster | None = None,
        role: Role = Role.SOLO,
        *,
        start_timeout: float | None = None,
        preemptible: bool | None = None,
    ) -> None:
        super().__init__()
        leads = role is not Role.EVALUATOR and (cluster is None or cluster.task == leader_of(cluster))
        self.preemption = Preemption(preemptible, leads=leads)
        self.progress = Progress()
        self.cluster = cluster
        self.role = role
        self.strategy: tf.distribute.Strategy | None = None
        self.free_workers: Callable[[], object] = lambda: None
        self.servers: MonitoredServers | None = None
        self.data_service: RunningService | None = None
        self._start_timeout = start_timeout
        self._monitor: LeaderMonitor | FollowerMonitor | None = None
        self._leads = leads

    @property
    def is_evaluator(self) -> bool:
        """Whether this process is the job's evaluator, which does not train."""
        return self.role is Role.EVALUATOR

    @property
    def start_timeout(self) -> float:
        """Seconds that this process waits for the other tasks to start."""
        return self._start_timeout or rendezvous.start_timeout()

    def wait_for_loss(self, limit: float) -> str:
        """Returns which other task was lost first, as "ps 0 at host:port is gone: ..."; empty if none was.

        Args:
          limit: how many seconds to wait for it: TensorFlow may notice a loss before the monitor does.
        """
        return self._monitor.first_loss(limit) if self._monitor else ""

    def explain(self, error: BaseException) -> tuple[int, str] | None:
        """The exit status and the line that an error of this process ends with; see `error_explanation.explain`."""
        if self.cluster is None:
            return error_explanation.explain(error, self.wait_for_loss)
        leader = leader_of(self.cluster)
        return error_explanation.explain(error, self.wait_for_loss, f"{leader} at {self.cluster.address(leader)}")

    def lost_tasks(self) -> list[Task]:
        """Returns the tasks that are lost and have not come back; always none in a process that does not lead."""
        return self._monitor.lost if self._monitor else []

    def unused_workers(self) -> set[int]:
        """The indices of the workers that run nothing: lost ones, and those that are back beside lost ones."""
        return {task.index for task in (self._monitor.unused if self._monitor else ()) if task.job == "worker"}

    def watch_for_stalls(self, limit: float | None) -> None:
        """Has this process end when it, and the whole job, has made no step for `limit` seconds; never if None.

        An evaluator is not watched: it waits for checkpoints.
        """
        if limit is not None and not self.is_evaluator:
            name = str(self.cluster.task) if self.cluster else "this process"
            StallWatch(limit, name, self.progress, self.end_process, self._monitor)

    def begin_training(self, first: int, end: int, *, again: bool = False) -> None:
        """Notes for the launcher that a call of `fit` begins, or begins again, from one global step to another one."""
        if self._leads:
            _step_report.begin(first, end, again=again)

    def report_step(self, step: int) -> None:
        """Tells the launcher, if it wants to know, at which global step the call of `fit` is."""
        if self._leads:
            _step_report.report(step)

    @contextlib.contextmanager
    def call(self) -> Generator[None]:
        """Returns a context for a call that makes steps, and that every peer of the job makes."""
        with self.progress.call(), self._call_with_peers():
            yield

    def _call_with_peers(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context for a call that every peer of the job makes, and waits for the others in.

        If one of them has ended its program, or does while this process is inside, or has left this call by an
        exception, this one ends with status 1 and says so, instead of waiting for ever.
        """
        if self._monitor is None or self.role is not Role.PEER:
            return contextlib.nullcontext()
        return self._monitor.calls.one(lambda: self.progress.makes_steps)

    @property
    def has_met_others(self) -> bool:
        """Whether this process has met the other tasks of its job, which is done once in a process."""
        return self._monitor is not None

    def monitor_with(self, monitor: LeaderMonitor | FollowerMonitor) -> None:
        """Sets the monitor that notices the loss of other tasks."""
        self._monitor = monitor

    def end_for_loss(self, why: str) -> None:
        """Ends this process, since another task was lost and the loss policy ends the job; for threads of the monitor.

        Args:
          why: one line, logged unless the main thread reports an error of its own.
        """
        self.end_process(why, status_after_loss())

    def end_process(self, why: str, status: int = 1) -> None:
        """As `FailureReporter.end_process`, unless the job was asked to stop: its tasks may end then."""
        if self.preemption.ends_job:
            self.preemption.wait_while_saving(_SAVE_GRACE)
            call_for(_MARK_GRACE, self.preemption.finish)
            exit_now(START_AGAIN)
        super().end_process(why, status)

    def end_job_at_exit(self, end: Callable[[int], int] = lambda status: status) -> None:
        """Has the job end when the program ends without an error.

        Args:
          end: ends it; gets the status of this program, and returns that of the job, with which this process then ends.
        """

        def finish() -> None:
            status = self.preemption.leave()
            of_job = end(status)
            if of_job == START_AGAIN != status:
                self.preemption.finish()
            if of_job != status or not self.preemption.ends_main_thread:
                exit_now(of_job)

        self.at_exit(finish)


_log = logging.getLogger("tf2dist")
_current = Session()
_step_report = StepReport()  # of the process, whatever session it has


def current() -> Session:
    """Returns the session of this process: one without a cluster if it has joined nothing."""
    return _current


program_errors.set_explainer(current)


def _begin(session: Session) -> Session:
    global _current
    _current = session
    if session.cluster is not None:
        log_to_stderr_by_default()
    if environment_variables.LAUNCHED_AT in os.environ:
        quiet_tensorflow()
    return session


def _check_first() -> None:
    """Raises a UsageError if this process has taken its place in a cluster: its port is taken, by itself."""
    if _current.cluster is not None and _current.has_met_others:
        raise UsageError(
            f"this process is {_current.cluster.task} of a job already; call tf2dist.join or tf2dist.connect once, and "
            "hand on the strategy that join returned"
        )


def join(
    name: str,
    *,
    replicas: int | None = None,
    cluster: Cluster | None = None,
    start_timeout: float | None = None,
    preemptible: bool | None = None,
    stall_timeout: float | None = None,
    min_workers: int | None = None,
) -> tf.distribute.Strategy:
    """Takes this process's place in the job and returns its strategy.

    A server (a ps, a worker that a coordinator leads, or a data worker) serves inside of this call and the process
    exits when the job is done, so what follows in the script runs only in processes that run a loop, and in an
    evaluator. Without a cluster "one", "mirrored" and "central" just work; with one of several tasks, each of which
    would train by itself, they are refused. A process takes its place in a cluster once; alone it may call this again,
    for another strategy.

    Args:
      name: one of `tf2dist.STRATEGIES`.
      replicas: see `make_strategy`.
      cluster: from the environment (TF_CONFIG) if not given.
      start_timeout: seconds to wait for the other tasks of the job; TF2DIST_START_TIMEOUT, or 120, if not given.
      preemptible: does SIGTERM ask the job to stop, as `tf2dist.preempt` does? TF2DIST_PREEMPTIBLE, which launchers
        set, says so if that is not given; else the signal ends the process as it ends any. A handler of SIGTERM that
        the program has installed before stays.
      stall_timeout: seconds without a step of `fit`, a batch of `evaluate` or `predict`, or a result of `map_reduce`,
        after which the job says for whom it waits, and fails; 0 for never. TF2DIST_STALL_TIMEOUT, or never, if not
        given.
      min_workers: for "ps": with so many workers the job begins. The others join it when they come, and one that is
        asked to stop by SIGTERM leaves it as long as so many are left. TF2DIST_MIN_WORKERS, or all, if not given.

    Raises:
      ClusterError: a cluster that cannot be, or does not fit the strategy, or a port in use.
      RendezvousError: a task that is missing after `start_timeout`, or was started differently.
      UsageError: an unknown name, `replicas` where a strategy has one replica a process, or a second call in a
        process of a cluster.
      ValueError: devices that are not there.
    """
    check_strategy(name, replicas)
    if cluster is None:  # also for strategies of one process: each task of a job would train by itself, unseen
        cluster = environments.from_environment()
    role = role_of(name, cluster)
    has_data_workers = cluster is not None and cluster.count("data_worker") > 0
    if role in (Role.COORDINATOR, Role.PEER) or (role is Role.SOLO and has_data_workers):
        _check_first()
    limit = start_timeout or rendezvous.start_timeout()
    stall_limit = _stall_limit(stall_timeout)
    fewest = _fewest_workers(min_workers, name, cluster)
    tensorflow_import.set_defaults()
    session = _begin(Session(cluster, role, start_timeout=limit, preemptible=preemptible))
    if session.preemption.by_signal and os.getpid() == 1:
        session.preemption.handle_sigterm()  # of a container, where a signal without a handler does nothing
    if role is Role.EVALUATOR or (role is Role.SOLO and not has_data_workers):
        strategy = _make_strategy(session, *(("one", None) if role is Role.EVALUATOR else (name, replicas)), None)
        session.end_job_at_exit()
        session.watch_for_stalls(stall_limit)
        return strategy
    assert cluster is not None
    if role is Role.SERVER:
        serve_and_exit(cluster, limit, session.preemption)
    if role in (Role.COORDINATOR, Role.SOLO):
        _begin_coordinator(session, cluster, limit, fewest)
    else:
        _begin_peer(session, cluster, limit)
    session.watch_for_stalls(stall_limit)
    return _make_strategy(session, name, replicas, None if role is Role.SOLO else cluster)


def _fewest_workers(given: int | None, name: str, cluster: Cluster | None) -> int | None:
    """Returns with how many workers a job begins; None for all.

    Raises:
      UsageError: with so many no job of this cluster can, or the strategy leads no workers.
    """
    what = f"min_workers={given!r}"
    if given is not None and name != "ps":
        raise UsageError(f"{what}: strategy {name} begins with all of its workers; ps can begin with some of them")
    if given is None and name == "ps":
        try:
            given = environment_variables.count(environment_variables.MIN_WORKERS, os.environ)
        except ValueError as error:
            raise UsageError(str(error)) from None
        what = f"{environment_variables.MIN_WORKERS} is {given}"
    workers = cluster.count("worker") if cluster else 0
    if given is not None and (type(given) is not int or not 1 <= given <= workers):
        raise UsageError(f"{what}; it must be from 1 to {workers}, the number of workers that the cluster has")
    return given


def _stall_limit(given: float | None) -> float | None:
    """Returns the seconds after which a job stalls; None for never.

    Raises:
      UsageError: it is no number of seconds.
    """
    if given is None:
        try:
            return environment_variables.seconds_or_never(environment_variables.STALL_TIMEOUT, os.environ)
        except ValueError as error:
            raise UsageError(str(error)) from None
    if not 0 <= given < float("inf"):
        raise UsageError(f"stall_timeout is {given:g}; it must be a number of seconds, or 0 for never")
    return given or None


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
      As `join`, and TaskLostError when a task dies before the program begins; later on that ends this process.
    """
    cluster = cluster or environments.from_environment()
    if cluster is not None and cluster.count("data_worker"):
        raise UsageError("tf2dist.connect has no use for data workers, which read for tf2dist.join; start it without")
    tensorflow_import.set_defaults()
    limit = start_timeout or rendezvous.start_timeout()
    others = [] if cluster is None else [t for t in cluster.tasks if t != leader_of(cluster) and t.job != "evaluator"]
    if cluster is None or not others:
        _begin(Session(cluster, start_timeout=limit))
        tensorflow_import.import_tensorflow()
        from tf2dist.runtime import devices

        devices.replica_devices(replicas)
        return
    if cluster.task in others:
        serve_and_exit(cluster, limit, Preemption())
    _check_first()
    session = _begin(Session(cluster, Role.COORDINATOR, start_timeout=limit))
    rendezvous.check_port_free(cluster)
    policy = LossPolicy.of(cluster, has_servers=False)
    monitor = LeaderMonitor(rendezvous.wait_for_followers(cluster, others, limit), policy, session.end_for_loss)
    session.monitor_with(monitor)
    tf = tensorflow_import.import_tensorflow()
    from tf2dist.runtime import devices, tensorflow_config_proto

    monitor.wait_ready(limit)
    session.at_exit(lambda: monitor.end(together=False))
    with tensorflow_import.held_back_stderr():
        tensorflow_config_proto.use(cluster)
        devices.replica_devices(replicas)
        tf.config.experimental_connect_to_cluster(
            tf.train.ClusterSpec(cluster.spec),
            job_name=cluster.task.job,
            task_index=cluster.task.index,
            protocol="grpc",
        )


def _make_strategy(
    session: Session, name: str, replicas: int | None, cluster: Cluster | None
) -> tf.distribute.Strategy:
    tensorflow_import.import_tensorflow()
    from tf2dist.runtime.make_strategy import make_strategy

    with tensorflow_import.held_back_stderr():
        session.strategy = make_strategy(
            name,
            replicas=replicas,
            cluster=cluster,
            start_timeout=session.start_timeout,
            presence=session.servers,
        )
    session.preemption.handle_sigterm()  # after TensorFlow, whose own handler of a peer does nothing at all
    return session.strategy


def _begin_coordinator(session: Session, cluster: Cluster, limit: float, fewest_workers: int | None) -> None:
    """Finds the servers, or the data workers of a process that trains alone, and monitors them.

    See `join` for `fewest_workers`.
    """
    rendezvous.check_port_free(cluster)
    coordinates = session.role is Role.COORDINATOR
    policy = LossPolicy.of(cluster, has_servers=coordinates, fewest_workers=fewest_workers)
    if coordinates and leader_of(cluster).job == "worker":
        fork_worker_0_server(cluster, limit, session.preemption)
    followers = followers_of(cluster)
    if fewest_workers is None:
        connections, missing = rendezvous.wait_for_followers(cluster, followers, limit), []
    else:
        connections, missing = rendezvous.wait_for_some(cluster, followers, fewest_workers, limit)
    monitor = LeaderMonitor(
        connections,
        policy,
        session.end_for_loss,
        find_replacement=lambda task, over: rendezvous.wait_for_replacement(cluster, task, over),
        on_preempted=session.preemption.offer,
        missing=missing,
    )
    session.monitor_with(monitor)
    if coordinates:
        session.servers = MonitoredServers(monitor, cluster)
    session.preemption.tell_by(monitor.keep_workers)
    if missing:
        names = ", ".join(f"{task} at {cluster.address(task)}" for task in missing)
        _log.warning("tf2dist: the job begins without %s; who comes later joins it", names)
    tensorflow_import.import_tensorflow()
    if workers := cluster.count("data_worker"):
        from tf2dist.runtime.data_service import start_dispatcher

        session.data_service = start_dispatcher(workers)
        monitor.tell("data_worker", f"dispatcher {session.data_service.port}")
    monitor.wait_ready(limit)
    session.end_job_at_exit(lambda status: monitor.end(together=False, status=status))


def _begin_peer(session: Session, cluster: Cluster, limit: float) -> None:
    """Finds the other peers, or the first one, and monitors them."""
    leader = leader_of(cluster)
    rendezvous.check_port_free(cluster)
    monitor: LeaderMonitor | FollowerMonitor
    end: Callable[[int], int]
    asked = session.preemption.request
    if cluster.task == leader:
        connections = rendezvous.wait_for_followers(cluster, followers_of(cluster), limit)
        policy = LossPolicy.of(cluster, has_servers=False)
        monitor = LeaderMonitor(connections, policy, session.end_for_loss, on_preempted=asked)
        end = functools.partial(_end_leading_peer, monitor)
    else:
        connection = rendezvous.wait_for_leader(cluster, leader, limit)
        monitor = FollowerMonitor(connection, session.end_for_loss, asked, session.progress)
        end = monitor.end
    session.monitor_with(monitor)
    session.preemption.tell_by(monitor.preempt)
    tensorflow_import.import_tensorflow()
    session.end_job_at_exit(end)  # after the import, so that it runs before TensorFlow's own functions at exit


def _end_leading_peer(monitor: LeaderMonitor, status: int) -> int:
    return monitor.end(together=True, status=status)


def preempt(why: str = "tf2dist.preempt was called") -> bool:
    """Asks the job to stop, from any task and thread: for a program that learns of the end of its machine in advance.

    A call of `fit` with a `tf2dist.Checkpoint` stops after the step that is under way, in all processes after the same
    one, saves, and raises `tf2dist.errors.Preempted`, which ends the program with status 75: "start me again". So does
    the next such call where none is under way, before its first step. The job that is started again goes on from
    there.

    Args:
      why: one line for the log.

    Returns:
      Whether a training is under way here that stops, or has ended and is saved; True in a server, which tells its
      coordinator.
    """
    session = current()
    return session.preemption.request(" ".join(why.split())) or session.role is Role.SERVER
