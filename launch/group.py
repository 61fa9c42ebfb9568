"""The loop of a running group: what happened, what was printed, what time it is."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from launch import linux
from launch.forkserver import ForkServer
from launch.output import STDERR, STDOUT, Lines, Output, prefix
from launch.signals import Signals

if TYPE_CHECKING:
    from launch.logs import Logs
    from launch.process import Process, Settings

_MARK = "TF2DIST_JOB"  # in the environment of everything that a group starts
_LAST_LINES = 20
_TOO_LATE = 10.0  # seconds past the last deadline after which the helper itself is killed
_PAUSE = 1.0  # seconds before a process that has failed is started again
_A_PIPE = 1 << 20  # bytes; more than a pipe holds, so one read empties it


class Group:
    """Processes under way. See `process.supervise`, which makes one and turns it until it is over."""

    def __init__(self, processes: Sequence[Process], settings: Settings, logs: Logs | None, restarts: int):
        self.processes = processes
        self.preload = settings.preload
        self.grace = settings.grace
        self.drain = settings.drain
        self.quiet = settings.quiet_prefix_for
        self.restarts = restarts  # how often a process may still be started again in its place
        self.again: set[int] = set()  # those that were
        self.status: int | None = None  # None until it is decided how the group ends
        self.reason = ""
        self.alive = True  # whether the helper is, and with it any process
        self.failed: int | None = None
        self.pids: dict[int, int] = {}
        self.statuses: dict[int, int] = {}
        self.output = Output()
        self.streams: dict[int, Lines] = {}
        self.tails = [deque(maxlen=_LAST_LINES) for _ in processes]
        self._alarms: list[tuple[float, Callable[[], None]]] = []
        self._mark = uuid.uuid4().hex
        self.logs = logs
        self.shows = logs is None or settings.tee
        self.server = ForkServer(self.preload, {_MARK: self._mark}, isolate=settings.isolate)

    def turn(self, signals: Signals) -> None:
        """Waits for something to happen and deals with it."""
        poll = select.poll()
        poll.register(signals.fd, select.POLLIN)
        if self.alive:
            poll.register(self.server.control, select.POLLIN)
        if not self.output.broken:
            self.output.watch(poll)
        if not self.output.enough:
            for fd in self.streams:
                poll.register(fd, select.POLLIN)
        next_alarm = min((when for when, _ in self._alarms), default=math.inf)
        wait = None if next_alarm == math.inf else math.ceil(max(0.0, next_alarm - time.monotonic()) * 1000)
        for fd, events in poll.poll(wait):
            if fd == signals.fd:
                for signum in signals.read():
                    self.interrupt(signum)
            elif fd in self.streams:
                self.read(fd)
            elif fd in (STDOUT, STDERR):
                self.output.ready(fd, events)
                if self.output.broken:
                    self.stop(128 + signal.SIGPIPE, "nobody reads the output any more")
            elif self.alive and fd == self.server.control.fileno():
                self.hear(self.server.event())
        for alarm in [alarm for alarm in self._alarms if alarm[0] <= time.monotonic()]:
            self._alarms.remove(alarm)
            alarm[1]()

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Calls `action` when the monotonic clock shows `when`, in seconds, if the group is still alive then."""
        self._alarms.append((when, action))

    def hear(self, event: dict | None) -> None:
        """Deals with an event of the helper; these come in the order in which things happened."""
        if event is None:
            self.conclude()
        elif "ready" in event:
            for key in range(len(self.processes)):
                self.start(key)
        elif "started" in event:
            self.pids[event["started"]] = event["pid"]
        else:
            self.ended(event["ended"], event["status"])

    def start(self, key: int) -> None:
        """Has the helper start a process, whose key is its place in `processes`."""
        process = self.processes[key]
        task = {"name": process.name, "argv": list(process.argv), "env": dict(process.env), "command": process.command}
        with contextlib.suppress(ConnectionError):  # the helper is gone; that is the next event
            for fd, to in zip(self.server.fork(key, task), (STDOUT, STDERR), strict=True):
                shown = b"" if process.name == self.quiet else prefix(process.name, key, to)
                self.streams[fd] = Lines(to, shown, self.tails[key], key)

    def ended(self, key: int, status: int) -> None:
        """A process has ended, with a status that is negative for a signal: decides what that means for the rest."""
        self.statuses[key] = status
        for fd in [fd for fd, lines in self.streams.items() if lines.tail is self.tails[key]]:
            self.read(fd, _A_PIPE)  # but a process that it left behind may hold the pipe open
        if status != 0 and self.status is None and (self.start_again(key, status) or self.go_on(key, status)):
            return
        if status != 0 and self.status is None:
            self.failed = key
            self.stop(status if status > 0 else 128 - status, "")
        left = [process for key, process in enumerate(self.processes) if key not in self.statuses]
        if not left:
            self.stop(0, "")
        elif all(process.serves for process in left):
            self.all_serve(key)

    def all_serve(self, last: int) -> None:
        """Only processes are left that serve others, and `last` was the last to end: they should end soon, too."""
        if all(key in self.again for key in range(len(self.processes)) if key not in self.statuses):
            self.stop(0, "")  # these may have come too late for anybody to tell them that the job is done
        elif not self.processes[last].serves:
            late = f"did not end within {self.drain:g} s after the processes that they serve"
            self.at(time.monotonic() + self.drain, lambda: self.stop(1, f"{self.running()} {late}"))

    def start_again(self, key: int, status: int) -> bool:
        """Starts a process that has failed again, if that can help: the others go on without it meanwhile."""
        if not self.processes[key].replaceable or not self.restarts or not self.others() or status == 2:
            return False
        self.restarts -= 1
        self.again.add(key)
        del self.statuses[key]
        self.say(f"{self.processes[key].name} ended {_how(status)}; it is started again ({self.restarts} more to go)")
        self.at(time.monotonic() + _PAUSE, lambda: self.start(key))
        return True

    def go_on(self, key: int, status: int) -> bool:
        """Does without a process that was lost with its host, if those that are served can; they know when not."""
        process = self.processes[key]
        if not process.replaceable or status != process.lost or not self.others():
            return False
        self.say(f"{process.name} was lost with its host; the job goes on without it, if it can")
        return True

    def others(self) -> list[int]:
        """Those under way that do not serve, and so are served."""
        return [k for k, process in enumerate(self.processes) if not process.serves and k not in self.statuses]

    def say(self, text: str) -> None:
        """Tells the user something while the group runs."""
        self.output.add(STDERR, f"launch: {text}\n".encode())

    def read(self, fd: int, size: int = 1 << 16) -> None:
        """Passes on what a process has printed; forgets the pipe when nobody can print to it any more."""
        lines = self.streams[fd]
        try:
            data = os.read(fd, size)
        except BlockingIOError:
            return
        self.show(lines, data)
        if not data:
            del self.streams[fd]
            os.close(fd)

    def show(self, lines: Lines, data: bytes) -> None:
        """Passes on what was read from a stream; nothing more is to come when that is empty."""
        shown = lines.feed(data) if data else lines.finish()
        if self.shows:
            self.output.add(lines.to, shown, lines)
        if self.logs:
            self.logs.add(lines.key, data)

    def running(self) -> str:
        """The names of the processes that have not ended."""
        return ", ".join(process.name for key, process in enumerate(self.processes) if key not in self.statuses)

    def interrupt(self, signum: signal.Signals) -> None:
        """The launcher got a signal: the first ends the group, the next one does not wait for it."""
        again = self.status is not None
        if not again:
            self.say(f"{signum.name}: ending {self.running()}; once more kills at once")
        self.stop(128 + signum, f"ended by {signum.name}")
        if again:
            self.output.discard()
            if self.alive:
                self.server.end(0)

    def stop(self, status: int, reason: str) -> None:
        """Ends the group for this reason, unless it ends for another one already."""
        if self.status:
            return
        first = self.status is None
        self.status, self.reason = status, reason
        if first:
            self.server.end(self.grace)
            self._alarms = [(time.monotonic() + self.grace + _TOO_LATE, self.server.process.kill)]

    def conclude(self) -> None:
        """The helper is gone: takes what is left in the pipes, and says why the group ended."""
        self.alive = False
        self._alarms.clear()
        log = self.server.log().splitlines()
        status = self.server.close()
        if status != 0:
            self.sweep()
        for fd in list(self.streams):
            self.read(fd, _A_PIPE)
            if fd in self.streams:  # still open, in the hands of something that is about to be gone
                lines = self.streams.pop(fd)
                self.show(lines, b"")
                os.close(fd)
        lines = []
        if self.failed is not None:
            pid, status, lines = self.pids[self.failed], self.statuses[self.failed], self.tails[self.failed]
            self.reason = f"{self.processes[self.failed].name} (pid {pid}) failed first, {_how(status)}"
        elif self.status is None and not self.server.ready:
            self.status, lines = 1, log
            self.reason = f"the import of {', '.join(self.preload) or 'nothing'} failed, {_how(status)}"
        elif self.status is None:
            helper = f"the helper (pid {self.server.process.pid}) that had started {self.running()}"
            self.status, self.reason, lines = 1, f"{helper} failed, {_how(status)}", log
        if self.reason:
            self.reason += "; its last lines:" if lines else ""
            summary = [f"launch: {self.reason}".encode(), *(b"    " + line for line in lines)]
            self.output.add(STDERR, b"\n".join(summary) + b"\n")

    def sweep(self) -> None:
        """Kills what is left when the helper could not: the kernel kills its children, but not theirs."""
        for _ in range(100):
            if not (left := linux.started_with(_MARK, self._mark)):
                break
            linux.kill(left, signal.SIGKILL)
            time.sleep(0.01)

    def close(self) -> None:
        """Ends everything, if it has not ended."""
        if self.alive:
            self.server.close()
            self.sweep()


def _how(status: int) -> str:
    return f"with status {status}" if status >= 0 else f"killed by {signal.Signals(-status).name}"
