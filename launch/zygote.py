"""The helper's side of the forkserver: imports the slow modules once, forks a child for each process, buries them.

It must stay a process of one thread that has touched no device: after TensorFlow did, a fork of it would not work.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
import warnings

from launch import linux, network, program

LAST_GRACE = 2.0  # seconds that processes get to end by themselves when the launcher is gone
_TICK = 1.0  # seconds after which orphans that ended are buried
_TICK_AT_THE_END = 0.02


class Zygote:
    """Forks processes on the launcher's command and tells it of each start and end, in the order they happened."""

    def __init__(self, control: socket.socket):
        self.pid = os.getpid()
        self.control = control
        # Children are watched through pidfds: epoll gives them in the order in which they ended, however late this
        # process comes to ask, where waitpid() gives them in the order of their birth. Who failed first matters.
        self.epoll = select.epoll()
        self.epoll.register(control, select.EPOLLIN)
        self.running: dict[int, tuple[int, int]] = {}  # pidfd to (key of the process, pid)
        self.deadline: float | None = None  # when what still runs is killed; None while the job is on
        self.orphans_told = False

    def serve(self) -> dict | None:
        """Serves until everything has ended: None. In a forked child: the description of what it is to run."""
        self.tell(ready=True)
        while self.deadline is None or not self.all_gone():
            wait = _TICK if self.deadline is None else _TICK_AT_THE_END
            for fd, _ in self.epoll.poll(wait):
                if fd in self.running:
                    self.bury(fd)
                elif (task := self.obey()) is not None:
                    return task
            self.bury_orphans()
        return None

    def tell(self, **event) -> None:
        with contextlib.suppress(ConnectionError):  # the launcher is gone; the end of its commands says so
            self.control.send(json.dumps(event).encode())

    def obey(self) -> dict | None:
        message, fds, _, _ = socket.recv_fds(self.control, 4096, 3)
        command: dict = json.loads(message) if message else {"end": LAST_GRACE}
        if "fork" in command:
            return self.fork(command["fork"], *fds)
        if not message:
            self.epoll.unregister(self.control)
        self.end(command["end"])
        return None

    def fork(self, key: int, spec: int, stdout: int, stderr: int) -> dict | None:
        # Until the child has let go of the handler below, SIGTERM would have it close what it shares with this one.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # NumPy's idle threads are prepared for a fork
            pid = os.fork()
        if pid == 0:
            linux.die_with_parent(self.pid, signal.SIGKILL)
            os.setpgid(0, 0)  # a group, so that a signal also reaches what the program starts
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            os.dup2(stdout, 1)
            os.dup2(stderr, 2)
            # The launcher and the others learn from the ends of these that somebody is gone.
            for fd in (stdout, stderr, *self.running):
                os.close(fd)
            self.epoll.close()
            self.control.close()
            with open(spec) as file:
                return json.load(file)
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)  # here too: the group must exist when `end` signals it, whoever runs first
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        for fd in (spec, stdout, stderr):
            os.close(fd)
        pidfd = os.pidfd_open(pid)
        self.running[pidfd] = (key, pid)
        self.epoll.register(pidfd, select.EPOLLIN)
        self.tell(started=key, pid=pid)
        return None

    def bury(self, pidfd: int) -> None:
        key, pid = self.running.pop(pidfd)
        self.epoll.unregister(pidfd)  # closing is not enough while a newborn child still has a copy
        os.close(pidfd)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self.tell(ended=key, status=status)

    def bury_orphans(self) -> None:
        """Reaps ended descendants whose own parent is gone; processes of the job are reaped in their own order."""
        ours = {pid for _, pid in self.running.values()}
        with contextlib.suppress(ChildProcessError):
            while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if found.si_pid in ours:
                    break
                os.waitpid(found.si_pid, 0)

    def end(self, grace: float) -> None:
        """Asks every process group to end, and kills what is left after `grace` seconds."""
        deadline = time.monotonic() + grace
        if self.deadline is None:
            for _, pid in self.running.values():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGTERM)
        self.deadline = deadline if self.deadline is None else min(deadline, self.deadline)

    def all_gone(self) -> bool:
        """Whether no descendant is left; once the job is to end, sees to it that they go."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            linux.kill(linux.descendants(self.pid), signal.SIGKILL)
            return not self.running and not linux.descendants(self.pid)
        if self.running:
            return False
        left = linux.descendants(self.pid)
        if not self.orphans_told:  # programs may have left processes in groups of their own
            linux.kill(left, signal.SIGTERM)
            self.orphans_told = True
        return not left


def main() -> None:
    """Run as `root launcher-pid control-fd module,module... isolate`; a forked child returns as the program."""
    root, launcher, control, modules, isolate = sys.argv[1:6]
    linux.die_with_parent(int(launcher), signal.SIGTERM)
    if isolate:
        network.leave()  # as long as there is one thread
    linux.adopt_orphans()
    # The search path that `python` gives to every program; each child puts its own directory in front of it.
    sys.path[:] = [path for path in sys.path[1:] if path]
    if root not in sys.path:
        sys.path.append(root)
    for module in filter(None, modules.split(",")):
        importlib.import_module(module)
    linux.flush()  # or every child would print what imports have printed
    gc.freeze()  # the collector would write to, and so copy, the pages that children share

    zygote = Zygote(socket.socket(fileno=int(control)))
    # If someone else holds the launcher's end, the kernel's word of its death ends the commands all the same.
    signal.signal(signal.SIGTERM, lambda *_: zygote.control.shutdown(socket.SHUT_RD))
    task = zygote.serve()
    if task is None:
        os._exit(0)  # nothing was started in this process that would have to be ended in an orderly way
    with open("/proc/self/comm", "w") as file:
        file.write(task["name"])  # what `ps` and `top` show; cut by the kernel to 15 bytes
    os.environ.update(task["env"])
    if task["command"]:
        program.execute(task["argv"])
    program.become(task["argv"])
