"""Monitors the other tasks of the job over their connections: notices losses, and carries out the loss policy."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from tf2dist.cluster.heartbeat import GRACE, SILENCE, TaskConnection, TaskLostError, start_heartbeats
from tf2dist.cluster.loss_policy import LossPolicy
from tf2dist.cluster.peer_calls import PeerCalls
from tf2dist.cluster.rendezvous import RendezvousError
from tf2dist.cluster.spec import Task
from tf2dist.cluster.stall_diagnosis import Progress, State, answer
from tf2dist.errors import START_AGAIN

_FATAL_LOSS_GRACE = 60.0  # seconds that the process gets to end when a loss has ended the job

_log = logging.getLogger("tf2dist")


class LeaderMonitor:
    """The leader's connections to all other tasks: a coordinator's to its servers, or the first peer's to the others.

    Args:
      connections: one to each other task.
      policy: what the loss of a task means for the job.
      on_fatal_loss: called in a thread of the monitor, with one line, when a loss ends the job. It must end this
        process, since the main thread may wait inside of TensorFlow for ever.
      find_replacement: waits until a lost task was started again and returns the connection to it; None if the event
        that it also takes was set before. Without this function a lost task stays lost.
      on_preempted: called with a line that names it when a task was asked to stop; returns whether the job ends for
        that. If it does not, that task is told.
      missing: tasks that are not there yet. They may come later, and count as lost until then.

    Attributes:
      connections: the open connections, those to replacements in their places.
      calls: of peers.
      waits_for_workers: whether none is left, and the job waits for them to come back.
    """

    def __init__(
        self,
        connections: list[TaskConnection],
        policy: LossPolicy,
        on_fatal_loss: Callable[[str], object],
        find_replacement: Callable[[Task, threading.Event], TaskConnection | None] = lambda task, over: None,
        on_preempted: Callable[[str], bool] = lambda why: False,
        missing: Sequence[Task] = (),
    ) -> None:
        self.connections = connections
        self.calls = PeerCalls(self._end_for, self._tell_that_call_raised)
        self._lost: list[Task] = [*missing]
        self._never_came = set(missing)
        self._leaving: set[Task] = set()  # were asked to stop, and are let go
        self._preempted = False  # is the job as a whole asked to stop?
        self._first_loss = _FirstLoss()
        self._policy = policy
        self._on_fatal_loss = on_fatal_loss
        self._find_replacement = find_replacement
        self._on_preempted = on_preempted
        self._over = threading.Event()
        self.waits_for_workers = False  # since none is left
        self._can_restore: Callable[[], bool] | None = None  # the work of a server that is lost
        self._done = "done"
        self._again = False  # has a peer said so?
        self._fatal_loss = threading.Event()
        tasks = [*(connection.task for connection in connections), *missing]
        self._starts = dict.fromkeys(tasks, 1)  # how often each task has been started, or is about to be
        self._connected: dict[Task, int] | None = None  # at which start TensorFlow is connected to it; None: not known
        self._changed = threading.Condition()  # of _lost, _starts, _connected and _over
        self._on_change: list[Callable[[], object]] = []
        self._bye = {task: threading.Event() for task in tasks}
        self._ready = {task: threading.Event() for task in tasks}
        self._answers: dict[Task, str] = {}  # to the last question
        self._answered = threading.Condition()
        self._on_stalled: Callable[[], object] = lambda: None
        self._told: dict[str, str] = {}  # by `tell`
        for connection in connections:
            threading.Thread(target=self._monitor, args=(connection,), name="monitor", daemon=True).start()
        for task in missing:
            threading.Thread(target=self._wait_for, args=(task,), name="monitor", daemon=True).start()
        self._stop_heartbeats = start_heartbeats(connections)

    @property
    def lost(self) -> list[Task]:
        """The tasks that are lost and have not come back, in the order of their loss."""
        with self._changed:
            return list(self._lost)

    @property
    def unused(self) -> set[Task]:
        """The tasks that TensorFlow does not use: those lost, and those to which it is about to connect again."""
        with self._changed:
            connected = self._starts if self._connected is None else self._connected
            return {task for task, starts in self._starts.items() if connected.get(task) != starts} | set(self._lost)

    def present(self) -> dict[Task, int]:
        """The tasks that are there, with how often each has been started."""
        with self._changed:
            return self._present()

    def _present(self) -> dict[Task, int]:
        return {task: starts for task, starts in self._starts.items() if task not in self._lost}

    def wait_for_change(self, is_other: Callable[[dict[Task, int]], bool], limit: float) -> dict[Task, int]:
        """Waits until `is_other(self.present())`, for `limit` seconds at most; returns what it was asked about last."""
        with self._changed:
            self._changed.wait_for(lambda: self._over.is_set() or is_other(self._present()), limit)
            return self._present()

    def on_change(self, callback: Callable[[], object]) -> None:
        """Has `callback` called, in a thread of the monitor, when a task was lost or has come. It must not wait."""
        self._on_change.append(callback)

    def note_connected(self, tasks: Mapping[Task, int]) -> None:
        """Notes to which tasks TensorFlow is connected, and at which start of each."""
        with self._changed:
            self._connected = dict(tasks)

    def restore_servers(self, can_restore: Callable[[], bool] | None) -> None:
        """Sets what says whether the job waits for a lost server to be back; without, its loss ends the job."""
        with self._changed:
            self._can_restore = can_restore
            lost = [connection for connection in self.connections if self._policy.is_server(connection.task)]
            lost = [connection for connection in lost if connection.task in self._lost]
        if lost and can_restore is None:
            # In a thread: the caller may be about to report an error of its own, which says more.
            why = self._first_loss.get(0.0) or f"{lost[0]} is gone"
            threading.Thread(target=self._end_for, args=(lost[0], why), name="monitor", daemon=True).start()

    def first_loss(self, limit: float = 0.0) -> str:
        """Returns which task was lost first, waiting `limit` seconds for a loss; empty if none is, or all are back."""
        return self._first_loss.get(limit)

    def wait_ready(self, limit: float) -> None:
        """Waits until every server serves.

        Raises:
          TaskLostError: names a task that ended before, and the job cannot do without, or that did not come back.
          RendezvousError: names the first task that did not serve within `limit` seconds.
        """
        deadline = time.monotonic() + limit
        for connection in self.connections.copy():  # who comes later is not waited for
            if not self._is_ready(connection.task, deadline):
                if self._can_begin_without(connection.task):
                    continue
                if connection.task in self.lost:
                    why = "it ended before the job began, and did not come back"
                    raise TaskLostError(f"{connection} is gone: {why} within {limit:g} s")
                raise RendezvousError(f"{connection} did not start its server within {limit:g} s")
            if self._fatal_loss.is_set() and connection.task in self.lost:
                raise TaskLostError(f"{connection} is gone: it ended before the job began")

    def _is_ready(self, task: Task, deadline: float) -> bool:
        """Waits until a task serves; returns whether it does. Without one that is lost the job may begin."""
        while not self._ready[task].wait(max(0.0, min(1.0, deadline - time.monotonic()))):
            if time.monotonic() > deadline or self._can_begin_without(task):
                return False
        return True

    def _can_begin_without(self, task: Task) -> bool:
        return task in self.lost and self._policy.lets_go(task, self.lost)

    def keep_workers(self) -> None:
        """Lets no worker go that is asked to stop: the job as a whole is, and needs them to save."""
        self._preempted = True

    def tell(self, job: str, message: str) -> None:
        """Sends a message to the tasks of a job, and to those that are started in their places. It may come twice."""
        with self._changed:
            self._told[job] = message
            connections = [connection for connection in self.connections if connection.task.job == job]
        for connection in connections:
            connection.send(message)

    def preempt(self) -> None:
        """Tells every other task that the job was asked to stop."""
        for connection in self.connections:
            connection.send("preempt")

    def _tell_that_call_raised(self, call: int) -> None:
        for connection in self.connections:
            connection.send(f"raised {call}")

    def on_stalled(self, callback: Callable[[], object]) -> None:
        """Has `callback` called when a peer says that it makes no step any more. It must not wait for answers."""
        self._on_stalled = callback

    def ask(self, limit: float) -> dict[str, State | None]:
        """Asks all tasks that are not lost what they are at; None of one that has not answered in `limit` seconds."""
        found = self._answers_to("ask", limit)
        return {name: None if said is None else State.of(said) for name, said in found.items()}

    def have_stacks_logged(self, limit: float) -> None:
        """Has all tasks log their stacks, and waits up to `limit` seconds until they have."""
        self._answers_to("stacks", limit)

    def _answers_to(self, question: str, limit: float) -> dict[str, str | None]:
        lost = self.lost
        asked = [connection for connection in self.connections if connection.task not in lost]
        with self._answered:
            self._answers.clear()
        for connection in asked:
            connection.send(question)
        with self._answered:
            self._answered.wait_for(lambda: all(c.task in self._answers for c in asked), limit)
            return {str(connection): self._answers.get(connection.task) for connection in asked}

    def end(self, *, together: bool, status: int = 0) -> int:
        """Tells every task that the job is done.

        Args:
          together: wait first until all other tasks have finished their own loops.
          status: what this process ends with.

        Returns:
          The status that all tasks are to end with: START_AGAIN if a peer does, which may have left something undone.
        """
        if together:
            for connection in self.connections:
                connection.send(f"bye {self.calls.made}")
        for connection in self.connections if together else ():
            while not self._bye[connection.task].wait(1.0) and connection.task not in self.lost:
                pass  # `_monitor` notices when it is lost, so this ends
        if together and self._fatal_loss.is_set():
            threading.Event().wait(_FATAL_LOSS_GRACE)  # `_monitor` ends this process
        status = START_AGAIN if together and self._again else status
        self._done = f"done {status}" if status else "done"
        with self._changed:
            self._over.set()
            self._changed.notify_all()
        self._stop_heartbeats()
        for connection in self.connections:
            connection.send(self._done)
        return status

    def _wait_for(self, missing: Task) -> None:
        """Waits until a task has come that was not there, and monitors it."""
        connection = self._find_replacement(missing, self._over)
        if connection:
            with self._changed:
                self.connections.append(connection)
            self._greet(connection)
            self._monitor(connection)

    def _monitor(self, first: TaskConnection) -> None:
        """Receives what a task and its replacements send, until the job is over."""
        connection: TaskConnection | None = first
        while connection and not self._over.is_set():
            self._receive_until_lost(connection)
            connection = None if self._over.is_set() else self._replace(connection)

    def _replace(self, lost: TaskConnection) -> TaskConnection | None:
        """Waits until the task was started again; returns the connection to it, or None if it was not."""
        lost.close()
        new = self._find_replacement(lost.task, self._over)
        if new:
            self.connections[self.connections.index(lost)] = new
            self._greet(new)
        return new

    def _greet(self, new: TaskConnection) -> None:
        """Has a task begin that came after the others."""
        new.send("go")
        with self._changed:
            told = self._told.get(new.task.job)
        if told:
            new.send(told)
        if self._over.is_set():  # `end` may have sent it to the lost task, or before there was one
            new.send(self._done)

    def _receive_until_lost(self, connection: TaskConnection) -> None:
        def warn() -> None:
            if not self._over.is_set():
                _log.warning(
                    "tf2dist: %s has been silent for %g s; it counts as lost after %g s", connection, SILENCE, GRACE
                )

        try:
            while True:
                expected = "ready", "bye", "raised", "preempt", "again", "stalled", "state", "dumped"
                message, _, calls = connection.receive(*expected, on_silence=warn).partition(" ")
                if message in ("state", "dumped"):
                    with self._answered:
                        self._answers[connection.task] = calls
                        self._answered.notify_all()
                    continue
                if message == "stalled":
                    self._on_stalled()
                    continue
                if message == "raised":
                    self.calls.raised(connection, calls)
                    continue
                if message == "preempt":
                    connection.send("accept" if self._stops_for(connection) else "refuse")
                    continue
                if message == "again":
                    self._again = True
                    continue
                (self._ready if message == "ready" else self._bye)[connection.task].set()
                self._note_return(connection)
                if message == "bye":
                    self.calls.end(connection, calls)
        except TaskLostError as loss:
            if not self._over.is_set():
                self._handle_loss(connection, str(loss))

    def _stops_for(self, preempted: TaskConnection) -> bool:
        """Returns whether the job stops since that task was asked to; else the task alone ends."""
        with self._changed:
            goes = not self._preempted and self._policy.lets_go(preempted.task, {*self._lost, *self._leaving})
            if goes:
                self._leaving.add(preempted.task)
        if goes:
            _log.warning("tf2dist: %s was asked to stop; the job goes on without it", preempted)
            return False
        return self._on_preempted(f"{preempted} was asked to stop")

    def _note_return(self, connection: TaskConnection) -> None:
        with self._changed:
            if connection.task not in self._lost:
                return
            self._lost.remove(connection.task)
            is_new = connection.task in self._never_came
            self._never_came.discard(connection.task)
            self._leaving.discard(connection.task)
            if self._never_came.issuperset(self._lost):
                self._first_loss.forget()  # what fails from now on has another cause
            self._changed.notify_all()
        _log.warning("tf2dist: %s %s", connection, "has joined the job" if is_new else "is back")
        self._tell_of_change()

    def _tell_of_change(self) -> None:
        for callback in self._on_change:
            callback()

    def _handle_loss(self, connection: TaskConnection, why: str) -> None:
        can_restore = self._can_restore
        restores = can_restore is not None and can_restore()
        with self._changed:
            if connection.task not in self._lost:
                self._lost.append(connection.task)
                self._starts[connection.task] += 1
            lost, none_left = list(self._lost), self._policy.waits_for_workers(self._lost)
            said = connection.task in self._leaving | self._never_came  # that it goes, or nothing of it yet
            ends_job = self._policy.ends_job(lost, restores_servers=restores)
            begins_to_wait = none_left and not self.waits_for_workers and not ends_job
            self.waits_for_workers |= begins_to_wait
            self._changed.notify_all()
        self._first_loss.set(why)
        connection.send("late")  # a task that was stopped reads it when it goes on
        try:
            connection.shut_down_all()
        except OSError as error:  # what the loss means for the job does not depend on it
            _log.warning("tf2dist: other connections to %s are left open: %s", connection, error.strerror)
        if ends_job:
            self._end_for(connection, why)
            return
        self._bye[connection.task].set()
        self._tell_of_change()
        if self._policy.is_server(connection.task):
            _log.warning("tf2dist: %s; training goes on from its last checkpoint when it is back", why)
            threading.Thread(target=self._wait_for_server, args=(connection, why), name="monitor", daemon=True).start()
        elif self._policy.is_data_worker(connection.task):
            _log.warning("tf2dist: %s; what it had in hand is lost, and a pass over the data ends when it is back", why)
            threading.Thread(target=self._wait_for_server, args=(connection, why), name="monitor", daemon=True).start()
        elif not none_left:
            if not said:
                _log.warning("tf2dist: %s; the job goes on without it", why)
        elif begins_to_wait:
            threading.Thread(target=self._wait_for_workers, args=(why,), name="monitor", daemon=True).start()

    def _end_for(self, connection: TaskConnection, why: str) -> None:
        """Ends this process, since the job cannot go on without that task."""
        self._first_loss.set(why)
        self._fatal_loss.set()
        self._ready[connection.task].set()  # `wait_ready` need not wait for it
        self._bye[connection.task].set()
        self._on_fatal_loss(why)

    def _wait_for_server(self, lost: TaskConnection, why: str) -> None:
        """Ends the job unless a lost server or data worker, of which `why` says how, comes back in time."""
        grace = self._policy.workers_grace
        with self._changed:
            starts = self._starts[lost.task]
            ended = self._changed.wait_for(
                lambda: self._over.is_set() or lost.task not in self._lost or self._starts[lost.task] != starts, grace
            )
        if not ended:
            self._end_for(lost, f"{why}; it did not come back within {grace:g} s")

    def _wait_for_workers(self, why: str) -> None:
        """Ends the job unless the workers come back in time. None is left, and the last was lost as `why` says."""
        grace = self._policy.workers_grace
        _log.warning("tf2dist: %s; no worker is left, the job waits %g s for them to come back", why, grace)
        with self._changed:
            ended = self._changed.wait_for(
                lambda: self._over.is_set() or not self._policy.waits_for_workers(self._lost), grace
            )
            self.waits_for_workers = False
        if not ended:
            self._on_fatal_loss(f"{why}; the workers did not come back within {grace:g} s")


class FollowerMonitor:
    """A peer's connection to the first peer.

    Args:
      connection: to the first peer.
      progress: of this process.
      on_fatal_loss: as for `LeaderMonitor`; called when the first peer is lost.
      on_preempted: called with a line when the first peer says that the job was asked to stop.

    Attributes:
      calls: of peers.
    """

    def __init__(
        self,
        connection: TaskConnection,
        on_fatal_loss: Callable[[str], object],
        on_preempted: Callable[[str], object] = lambda why: None,
        progress: Progress | None = None,
    ) -> None:
        self._connection = connection
        self._progress = progress or Progress()
        self._last_asked = -math.inf  # monotonic
        self._asked = threading.Condition()  # of _last_asked
        self._on_fatal_loss = on_fatal_loss
        self._on_preempted = on_preempted
        self.calls = PeerCalls(self._end_for, lambda call: connection.send(f"raised {call}"))
        self._done = threading.Event()
        self._status = 0  # that the first peer has said
        self._first_loss = _FirstLoss()
        self._stop_heartbeats = start_heartbeats([connection])
        threading.Thread(target=self._monitor, name="monitor", daemon=True).start()

    @property
    def lost(self) -> list[Task]:
        """Always empty: a peer does not know of the others, and ends with the first one."""
        return []

    @property
    def unused(self) -> set[Task]:
        """Always empty, as `lost`."""
        return set()

    def first_loss(self, limit: float = 0.0) -> str:
        """Returns how the first peer was lost, waiting `limit` seconds for that; empty if it was not."""
        return self._first_loss.get(limit)

    def preempt(self) -> None:
        """Tells the first peer, which tells the others, that the job was asked to stop."""
        self._connection.send("preempt")

    @property
    def leader(self) -> TaskConnection:
        """The connection to the first peer."""
        return self._connection

    def tell_of_stall(self, limit: float) -> bool:
        """Tells the first peer that this one makes no step; returns whether it asks, or has asked, in `limit` seconds.

        Peers stall together, so it may have asked a moment before, and end the job without asking again.
        """
        self._connection.send("stalled")
        since = time.monotonic() - limit
        with self._asked:
            return self._asked.wait_for(lambda: self._last_asked >= since, limit)

    def end(self, status: int = 0) -> int:
        """Tells the first peer that this one has finished its loop, and waits until all have: they exit together.

        Args:
          status: what this process ends with.

        Returns:
          The status that all peers are to end with; see `LeaderMonitor.end`.
        """
        if status == START_AGAIN:
            self._connection.send("again")
        self._connection.send(f"bye {self.calls.made}")
        self._done.wait()  # `_monitor` ends the process when the first peer is lost, so this ends
        return self._status

    def _monitor(self) -> None:
        try:
            expected = "done", "bye", "raised", "preempt", "ask", "stacks"
            while (message := self._connection.receive(*expected).partition(" "))[0] != "done":
                if message[0] in ("ask", "stacks"):
                    with self._asked:
                        self._last_asked = time.monotonic()
                        self._asked.notify_all()
                    answer(self._connection, message[0], self._progress)
                elif message[0] == "preempt":
                    self._on_preempted(f"{self._connection} says that the job was asked to stop")
                elif message[0] == "raised":
                    self.calls.raised(self._connection, message[2])
                else:
                    self.calls.end(self._connection, message[2])
        except TaskLostError as loss:
            self._end_for(self._connection, str(loss))
        else:
            self._stop_heartbeats()
            self._status = int(message[2] or 0)
            self._done.set()

    def _end_for(self, connection: TaskConnection, why: str) -> None:
        self._first_loss.set(why)
        self._on_fatal_loss(why)


class _FirstLoss:
    """How the first task was lost, for threads that wait for it."""

    def __init__(self) -> None:
        self._noticed = threading.Event()
        self._why = ""

    def set(self, why: str) -> None:
        self._why = self._why or why
        self._noticed.set()

    def forget(self) -> None:
        self._noticed.clear()
        self._why = ""

    def get(self, limit: float) -> str:
        self._noticed.wait(limit)
        return self._why
