"""The event loop of one running group: starts, exits, output, signals and timers, and what an exit means for the rest.

`supervisor.supervise` makes a `ProcessGroup` and calls `run_once` until it is over.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tf2dist.cluster.loss_policy import LOST_ANOTHER, WORKERS_GRACE
from tf2dist.errors import START_AGAIN
from tf2dist.launch import signals
from tf2dist.launch.console_output import STDERR, STDOUT, LineSplitter, OutputQueue, prefix
from tf2dist.launch.failure_report import LAST_LINES, LAST_LINES_FOLLOW, failure_report
from tf2dist.launch.fault_injector import INTERVAL, FaultInjector
from tf2dist.launch.fork_server_client import ForkServerClient
from tf2dist.launch.log_files import LogFiles
from tf2dist.launch.process import Process
from tf2dist.launch.process_group_settings import Settings
from tf2dist.launch.restart_budget import WRONG_COMMAND, RestartBudget
from tf2dist.system import linux

_FORK_SERVER_GRACE = 10.0  # seconds past the last deadline after which the fork server itself is killed
_CAUSE_GRACE = 10.0  # seconds for a process to end that another one has lost, and has ended for
_HOST_GRACE = 20.0  # the same where it may be a connection to another host, which counts as lost only then
_NEEDED_GRACE = WORKERS_GRACE + _CAUSE_GRACE  # for a coordinator to end that a process was started again for
_LONGEST_POLL = 86400.0  # seconds; poll takes milliseconds of 32 bits
_RESTART_DELAY = 1.0  # seconds before a failed worker is started again
_WHOLE_PIPE = 1 << 20  # bytes; more than a pipe holds, so one read empties it


@dataclass(frozen=True)
class _End:
    """How a process has ended, with the last lines that it has printed, and when, by the monotonic clock."""

    name: str
    pid: int
    status: int
    tail: Sequence[bytes]
    when: float = field(default_factory=time.monotonic)


class ProcessGroup:
    """The processes of one attempt at a job.

    Args:
      processes: started in this order once the fork server is ready; a process's key is its place in here.
      server: forks them; nothing that it has forked before is left.
      settings: see `settings.Settings`.
      logs: files for what the processes print; None to show it.
      budget: restarts that are left; the group takes from it.
      injector: of faults; None for none.
      not_before: when they are started at the earliest, by the monotonic clock.
    """

    def __init__(
        self,
        processes: Sequence[Process],
        server: ForkServerClient,
        settings: Settings,
        logs: LogFiles | None,
        budget: RestartBudget,
        injector: FaultInjector | None = None,
        not_before: float = 0.0,
    ) -> None:
        self._processes = processes
        self._server = server
        self._settings = settings
        self._budget = budget
        self._injector = injector
        self._keys = {process.name: key for key, process in enumerate(processes)}
        self._status: int | None = None  # of the group; None until it is decided how it ends
        self._reason = ""
        self._alive = True  # is anything of it left to end?
        self._failed: _End | None = None  # of the process that ended the group
        self._needed: list[_End] = []  # the last ones that were lost, if their coordinators need them
        self._victim: int | None = None  # the first that has ended since it has lost another one, which is awaited
        self._interrupted: signal.Signals | None = None  # by this signal to the launcher
        self._interrupted_at = 0.0  # by the monotonic clock
        self._preempted = False
        self._pids: dict[int, int] = {}
        self._statuses: dict[int, int] = {}  # of those that have ended and are not started again
        self._restarted: set[int] = set()
        self._pending: dict[int, int] = {}  # those that wait for their restart, with the status that they ended with
        self._output = OutputQueue()
        self._streams: dict[int, LineSplitter] = {}  # by the end of the pipe that is read
        self._tails: list[deque[bytes]] = [deque(maxlen=LAST_LINES) for _ in processes]
        self._alarms: list[tuple[float, Callable[[], None]]] = []
        self._logs = logs
        self._shows_output = logs is None or settings.tee
        if injector:
            injector.begin_attempt(self._say, self._cut_off)
            self._tick(injector)
        if server.ready:
            self._at(not_before, self._start_all)

    @property
    def running(self) -> bool:
        """Does any process run, or is output left to write?"""
        return self._alive or bool(self._output)

    @property
    def status(self) -> int:
        """The exit status of the group, once it has ended."""
        return self._status or 0

    @property
    def reason(self) -> str:
        """Why the group ended, empty for status 0."""
        return self._reason

    @property
    def statuses(self) -> Mapping[str, int]:
        """By name, the status of every process that has ended; negative for a signal."""
        return {self._processes[key].name: status for key, status in self._statuses.items()}

    @property
    def may_be_restarted(self) -> bool:
        """Did the group end because a process failed, in a way that another attempt may survive?"""
        failed = self._failed is not None and self._status not in (0, WRONG_COMMAND)
        return failed and not self._interrupted

    @property
    def killed(self) -> str:
        """The name of the process that ended the group since it was killed by SIGKILL; empty if none was."""
        if self._failed is None or self._failed.status != -signal.SIGKILL:
            return ""
        return self._failed.name

    @property
    def was_ended_from_outside(self) -> bool:
        """Has a signal to the launcher, or a time limit, ended the group, and none of its processes?"""
        return self._failed is None and not self.was_preempted and self._server.ready

    @property
    def was_preempted(self) -> bool:
        """Has the group saved and ended since one of its processes was asked to stop, by others than the launcher?"""
        return self._preempted and not self._interrupted

    def run_once(self, pipe: signals.SignalPipe) -> None:
        """Waits for the next events and handles them."""
        poll = select.poll()
        poll.register(pipe.fd, select.POLLIN)
        if self._alive:
            poll.register(self._server.control, select.POLLIN)
        if self._output.error is None:
            self._output.register(poll)
        if not self._output.full:
            for fd in self._streams:
                poll.register(fd, select.POLLIN)
        next_alarm = min((when for when, _ in self._alarms), default=math.inf)
        left = min(max(0.0, next_alarm - time.monotonic()), _LONGEST_POLL)
        wait = None if next_alarm == math.inf else math.ceil(left * 1000)
        for fd, events in poll.poll(wait):
            if fd == pipe.fd:
                for signum in pipe.read():
                    self._on_signal(signum)
            elif fd in self._streams:
                self._read(fd)
            elif fd in (STDOUT, STDERR) and self._output.error is None:
                self._output.write_some(fd, events)
                if self._output.error is not None:
                    self._lose_output(fd, self._output.error)
            elif self._alive and fd == self._server.control.fileno():
                self._on_event(self._server.event())
        for alarm in [alarm for alarm in self._alarms if alarm[0] <= time.monotonic()]:
            if alarm in self._alarms:  # an earlier one may have ended the group, and cancelled the others
                self._alarms.remove(alarm)
                alarm[1]()

    def set_deadline(self, when: float, text: str) -> None:
        """Ends the group with status 1 at `when`, in seconds of the monotonic clock: "worker 0, ps 0" + text."""
        self._at(when, lambda: self._stop(1, f"{self._unfinished()} {text}"))

    def close(self) -> None:
        """Kills whatever still runs."""
        if self._alive:
            self._server.close()

    def _at(self, when: float, action: Callable[[], None]) -> None:
        """Calls `action` at `when` unless the group is being ended by then."""
        self._alarms.append((when, action))

    def _tick(self, injector: FaultInjector) -> None:
        """Has the injector do what is due, from now on until the group is being ended."""
        injector.tick()
        self._at(time.monotonic() + INTERVAL, lambda: self._tick(injector))

    def _on_event(self, event: dict[str, Any] | None) -> None:
        """Handles an event of the fork server; these come in the order in which things happened."""
        if event is None or "over" in event:
            self._conclude()
        elif "ready" in event:
            self._start_all()
        elif "started" in event:
            started: int = event["started"]
            self._pids[started] = event["pid"]
            if self._injector:
                self._injector.started(self._processes[started].name, event["pid"])
        else:
            self._on_exit(event["ended"], event["status"])

    def _start_all(self) -> None:
        for key in range(len(self._processes)):
            self._start(key)

    def _start(self, key: int) -> None:
        """Has the fork server start a process."""
        process = self._processes[key]
        self._pending.pop(key, None)
        task = {"name": process.name, "argv": list(process.argv), "env": dict(process.env), "command": process.command}
        with contextlib.suppress(ConnectionError):  # the fork server is gone; that is the next event
            replaceable = process.coordinator is not None
            pipes = self._server.fork(key, task, replaceable=replaceable, address=process.address)
            for fd, to in zip(pipes, (STDOUT, STDERR), strict=True):
                plain = process.name == self._settings.quiet_prefix_for
                shown = b"" if plain else prefix(process.name, key, to)
                self._streams[fd] = LineSplitter(to, shown, self._tails[key], key)

    def _cut_off(self, name: str, cut: bool) -> None:
        """Cuts the link of a process, or restores it."""
        if address := self._processes[self._keys[name]].address:
            self._server.cut_off(address, cut=cut)

    def _on_exit(self, key: int, status: int) -> None:
        """Decides what the exit of a process, with a status that is negative for a signal, means for the rest."""
        if self._injector:
            self._injector.ended(self._processes[key].name)
        for fd in [fd for fd, lines in self._streams.items() if lines.key == key]:
            self._read(fd, _WHOLE_PIPE)  # but a process that it left behind may hold the pipe open
        has_lost, status = status == LOST_ANOTHER, 1 if status == LOST_ANOTHER else status
        if has_lost and self._status is None and self._victim is None and self._coordinator_runs(key):
            # If that has ended, too, its end is seen soon. This one is started again, at the cost of a restart, if not.
            self._pending[key] = status
            self._at(time.monotonic() + self._cause_grace(key), lambda: self._end_pending(key))
            return
        self._handle_exit(key, status, has_lost)

    def _end_pending(self, key: int) -> None:
        """Decides about a process that has lost its coordinator, which has not ended."""
        if key not in self._pending:
            return
        coordinator = self._coordinator_of(key)
        if coordinator is not None and linux.is_stopped(self._pids[coordinator]):
            name = self._processes[coordinator].name
            self._say(f"{self._processes[key].name} has lost {name}, which is stopped (SIGSTOP, say)")
            self._statuses |= self._pending
            self._pending.clear()
            self._end_for(_End(name, self._pids[coordinator], -signal.SIGKILL, self._tails[coordinator]))
        else:
            self._handle_exit(key, self._pending.pop(key), has_lost=False)

    def _handle_exit(self, key: int, status: int, has_lost: bool) -> None:
        if status not in (0, START_AGAIN) and self._status is None and self._restart(key, status):
            return
        self._statuses[key] = status
        if status == START_AGAIN:
            self._note_preemption(key)
        elif status != 0 and self._status is None and not self._goes_on_without(key, status, has_lost):
            needed = [end for end in self._needed if time.monotonic() < end.when + _NEEDED_GRACE]
            if has_lost and not self._processes[key].serves and needed:
                for _ in needed:
                    self._budget.put_back_worker()
                self._end_for(needed[0])
            else:
                self._fail(key, has_lost)
        for other in [other for other in self._pending if self._coordinator_of(other) == key]:
            self._statuses[other] = self._pending.pop(other)  # nobody is left who would need it
        left = [process for other, process in enumerate(self._processes) if other not in self._statuses]
        if self._victim is not None and self._status is None:
            if not left:
                self._fail(self._victim)
        elif not left:
            self._stop(0, "")
        elif all(process.serves for process in left):
            self._end_servers(key)

    def _fail(self, key: int, has_lost: bool = False) -> None:
        """Ends the group with the status of a process that has failed.

        Args:
          key: the process.
          has_lost: it has ended since it has lost another one. If that fails in time it has failed first. It may hang,
            or be on a host that is lost: then the word of those that have lost it is all that is known, and that of
            the process that leads before that of others, and of those that serve last.
        """
        if has_lost:
            if self._victim is None:
                if self._injector:
                    self._injector.release()  # this attempt is over
                while self._pending:
                    other, status = self._pending.popitem()
                    self._statuses[other] = status  # it is not started again
                self._at(time.monotonic() + self._cause_grace(key), lambda: self._fail(self._victim or 0))
            victims = {key, key if self._victim is None else self._victim}
            self._victim = min(victims, key=lambda victim: (self._processes[victim].serves, victim))
            return
        self._end_for(_End(self._processes[key].name, self._pids[key], self._statuses[key], self._tails[key]))

    def _end_for(self, failed: _End) -> None:
        """Ends the group with the status of this process."""
        self._failed = failed
        self._stop(failed.status if failed.status > 0 else 128 - failed.status, "")

    def _cause_grace(self, key: int) -> float:
        """The seconds that the process has to end which this one has lost."""
        return _CAUSE_GRACE if self._processes[key].lost_status is None else _HOST_GRACE

    def _note_preemption(self, key: int) -> None:
        """Ends the group: a process that was asked to stop says that the job is to be started again.

        What serves says so as it was told, so the status of the process that it serves counts.
        """
        process = self._processes[key]
        if process.serves:
            return
        if self._status is None:
            self._preempted = True
            why = f"{process.name} ended with status {START_AGAIN}: the job was preempted, and has saved"
            self._stop(START_AGAIN, why)
        elif self._interrupted is signal.SIGTERM and key == 0:  # the one that leads, of which the others know
            self._status, self._reason = START_AGAIN, "ended by SIGTERM; the job has saved"

    def _end_servers(self, last: int) -> None:
        """Waits for those that serve to end, after `last` has ended and nobody is left whom they serve."""
        if self._injector:
            self._injector.release()
        left = [key for key in range(len(self._processes)) if key not in self._statuses]
        if self._restarted.issuperset(left):
            self._stop(0, "")  # they may have come back too late to be told that the job is done
        elif not self._processes[last].serves:
            self._at(time.monotonic() + self._settings.drain, self._end_late)

    def _end_late(self) -> None:
        """Ends those that serve; the job has failed unless each had a coordinator, which was done with it."""
        if self._status is not None:
            return  # the group is being ended, within a time of its own
        late = f"{self._unfinished()} did not end within {self._settings.drain:g} s after the processes that they serve"
        left = [key for key in range(len(self._processes)) if key not in self._statuses]
        if any(self._coordinator_of(key) is None for key in left):
            self._stop(1, late)
        else:
            self._say(late)
            self._stop(0, "")

    def _restart(self, key: int, status: int) -> bool:
        """Starts a process that has failed again in its place, if its coordinator still runs and the budget allows it.

        The coordinator goes on without it meanwhile, or waits for it.
        """
        if self._victim is not None or not self._coordinator_runs(key) or self._was_wrong_command(key, status):
            return False
        is_first = not self._budget.has_replaced
        if not self._budget.take_worker():
            return False
        if self._processes[key].is_needed:
            self._needed.append(_End(self._processes[key].name, self._pids[key], status, tuple(self._tails[key])))
        else:
            self._needed.clear()  # what the coordinator ends for may be this one
        self._restarted.add(key)
        self._pending[key] = status
        left = self._budget.worker
        self._say(f"{self._processes[key].name} ended {_describe(status)}; it is started again ({left} more to go)")
        if is_first and self._settings.loss_summary:
            self._say(self._settings.loss_summary)
        self._at(time.monotonic() + _RESTART_DELAY, lambda: self._start(key) if key in self._pending else None)
        return True

    def _was_wrong_command(self, key: int, status: int) -> bool:
        """Whether a process has ended because its command is wrong.

        One that was started again as it was before has met something else, such as a port that is still in use.
        """
        return status == WRONG_COMMAND and key not in self._restarted

    def _goes_on_without(self, key: int, status: int, has_lost: bool) -> bool:
        """Does the group go on without a worker that has failed? The coordinator decides when it cannot."""
        coordinator = self._coordinator_of(key)
        if coordinator is None:
            return False
        process = self._processes[key]
        if coordinator in self._statuses:
            if not has_lost:
                self._say(f"{process.name} ended {_describe(status)}, after {process.coordinator} had ended")
            return True
        if self._was_wrong_command(key, status) or process.is_needed:
            return False
        if status == process.lost_status:
            self._say(f"{process.name} was lost with its host; the job goes on without it, if it can")
        else:
            self._say(f"{process.name} ended {_describe(status)}; it is not started again")
        return True

    def _coordinator_of(self, key: int) -> int | None:
        """The key of the process that goes on without this one; None if this one's failure ends the group."""
        name = self._processes[key].coordinator
        return None if name is None else self._keys[name]

    def _coordinator_runs(self, key: int) -> bool:
        """Does a process that goes on without this one run, as far as is known?"""
        coordinator = self._coordinator_of(key)
        return coordinator is not None and coordinator not in self._statuses

    def _say(self, text: str) -> None:
        """Tells the user something while the group runs."""
        self._output.add(STDERR, f"launch: {text}\n".encode())

    def _read(self, fd: int, size: int = 1 << 16) -> None:
        """Passes on what a process has printed; forgets the pipe when nobody can print to it any more."""
        lines = self._streams[fd]
        try:
            data = os.read(fd, size)
        except BlockingIOError:
            return
        self._show(lines, data)
        if not data:
            del self._streams[fd]
            os.close(fd)

    def _show(self, lines: LineSplitter, data: bytes) -> None:
        """Passes on what was read from a stream; empty data is the end of the stream."""
        shown = lines.feed(data) if data else lines.finish()
        if self._shows_output:
            self._output.add(lines.to, shown, lines)
        if self._logs:
            self._logs.add(self._processes[lines.key].name, data)

    def _unfinished(self) -> str:
        """The names of the processes that have not ended."""
        return ", ".join(process.name for key, process in enumerate(self._processes) if key not in self._statuses)

    def _on_signal(self, signum: signal.Signals) -> None:
        """Carries out the response to a signal to the launcher."""
        now = time.monotonic()
        if self._interrupted not in (None, signum) and now - self._interrupted_at < linux.SAME_REQUEST:
            return  # who presses Ctrl-C twice means it
        self._interrupted, self._interrupted_at = signum, now
        response = signals.response(signum, repeated=self._status is not None)
        if not response.kills:
            self._say(f"{signum.name}: ending {self._unfinished()}; once more kills at once")
        self._stop(response.status, response.reason)
        if response.kills:
            self._output.discard(InterruptedError(errno.EINTR, "the job was killed"))
            if self._alive:
                self._server.end(0)

    def _stop(self, status: int, reason: str) -> None:
        """Ends the group for this reason, unless it is being ended for another one already."""
        if self._status:
            return
        first = self._status is None
        self._status, self._reason = status, reason
        if first:
            if self._injector:
                self._injector.release()
            grace = self._settings.grace
            self._server.end(grace)
            self._alarms = [(time.monotonic() + grace + _FORK_SERVER_GRACE, self._server.process.kill)]

    def _conclude(self) -> None:
        """Reads what is left in the pipes and says why the group ended, once nothing of it runs."""
        self._alive = False
        self._alarms.clear()
        if self._injector:
            self._injector.release()
        log, status = list[bytes](), 0
        if self._server.is_gone:
            log, status = self._server.log().splitlines(), self._server.close()
        for fd in list(self._streams):
            self._read(fd, _WHOLE_PIPE)
            if fd in self._streams:  # still open, in the hands of something that is about to be gone
                lines = self._streams.pop(fd)
                self._show(lines, b"")
                os.close(fd)
        tail: Sequence[bytes] = ()
        if self._failed is not None:
            tail = self._failed.tail
            self._reason = (
                f"{self._failed.name} (pid {self._failed.pid}) failed first, {_describe(self._failed.status)}"
            )
        elif self._status is None and not self._server.ready:
            self._status, tail = 1, log
            what = f"the import of {', '.join(self._settings.preload) or 'nothing'}"
            what += "" if self._settings.link is None else ", or the network of the job's hosts,"
            self._reason = f"{what} failed, {_describe(status)}"
        elif self._status is None:
            helper = f"the helper (pid {self._server.process.pid}) that had started {self._unfinished()}"
            self._status, self._reason, tail = 1, f"{helper} failed, {_describe(status)}", log
        if self._reason:
            self._reason += LAST_LINES_FOLLOW if tail else ""
            self._output.add(STDERR, failure_report(self._reason, tail))

    def _lose_output(self, fd: int, error: OSError) -> None:
        """Ends the job, because nobody would see what it prints; the other descriptor may still say so."""
        if isinstance(error, BrokenPipeError):
            return self._stop(128 + signal.SIGPIPE, "nobody reads the output any more")
        why = f"the output cannot be written: {error.strerror}"
        other = select.poll()
        other.register(STDERR if fd == STDOUT else STDOUT, select.POLLOUT)
        for where, _ in other.poll(0):  # a pipe that nobody empties would hold us up for ever
            with contextlib.suppress(OSError):
                os.write(where, f"launch: {why}\n".encode())
        return self._stop(1, why)


def _describe(status: int) -> str:
    if status >= 0:
        return f"with status {status}"
    known = -status in set(signal.Signals)  # real-time signals have no names
    return f"killed by {signal.Signals(-status).name if known else f'signal {-status}'}"
