"""The fork server: imports the slow modules once, forks a child for each process of the job, and reaps them.

It must stay a process of one thread that has touched no device: neither TensorFlow nor CUDA survives a fork after that.
TensorFlow's import registers kernels and opens no driver; that comes with the first listing of devices, in a child that
has its own CUDA_VISIBLE_DEVICES by then. What else is imported may open it, and then nothing is forked.
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
from collections.abc import Callable
from typing import Any, TypeVar

from tf2dist.launch import network_namespace, user_program
from tf2dist.launch.emulated_network import Switch
from tf2dist.system import garbage_collector, gpus, linux

LAST_GRACE = 2.0  # seconds from SIGTERM to SIGKILL when the launcher is gone
_TICK = 1.0  # seconds between two looks for orphans that have ended
_TICK_WHILE_ENDING = 0.02
_Result = TypeVar("_Result")


class ForkServer:
    """Forks processes on the launcher's command and reports each start and end, in the order in which they happened.

    One attempt at the job after another: when all processes of one have ended, those of the next may be forked.

    Args:
      control: the socket to the launcher (see `fork_server_client`).
      files: how many files each child may open; see `linux.limit_files`.
      switch: between the hosts that the children are on; None if they are all on this one.
    """

    def __init__(self, control: socket.socket, files: int, switch: Switch | None = None) -> None:
        self.control = control
        self._switch = switch
        self._files = files
        self._pid = os.getpid()
        # Children are watched through pidfds: epoll returns them in the order in which they ended, however late this
        # process polls; waitpid() would return them in the order of their start. Which one failed first matters.
        self._epoll = select.epoll()
        self._epoll.register(control, select.EPOLLIN)
        self._children: dict[int, tuple[int, int]] = {}  # pidfd to (key of the process, pid)
        self._replaceable: set[int] = set()  # pids
        self._launcher_is_gone = False
        self._deadline: float | None = None  # when what still runs is killed; None while an attempt is on
        self._orphans_terminated = False

    def serve(self) -> dict[str, Any] | None:
        """Serves as long as the launcher is there, and returns None; in a forked child, returns what it is to run."""
        self._report(ready=True)
        while True:
            if self._deadline is not None and self._all_gone():
                if self._launcher_is_gone:
                    return None
                self._deadline, self._orphans_terminated = None, False
                self._report(over=True)
            wait = _TICK if self._deadline is None else _TICK_WHILE_ENDING
            for fd, _ in self._epoll.poll(wait):
                if fd in self._children:
                    self._reap(fd)
                elif (task := self._handle_command()) is not None:
                    return task
            self._reap_orphans()

    def _report(self, **event: Any) -> None:
        """Sends an event to the launcher."""
        with contextlib.suppress(ConnectionError):  # the launcher is gone; the end of its commands says so
            self.control.send(json.dumps(event).encode())

    def _handle_command(self) -> dict[str, Any] | None:
        """Reads a command and carries it out; returns the task in a forked child, else None."""
        try:
            message, fds, _, _ = socket.recv_fds(self.control, 4096, 3)
        except ConnectionError:  # the launcher was killed before it had read our last event
            message, fds = b"", []
        command: dict[str, Any] = json.loads(message) if message else {"end": LAST_GRACE}
        if "fork" in command:
            return self._fork(command["fork"], command["replaceable"], command["address"], *fds)
        if "cut" in command and self._switch:
            change = self._switch.cut if command["cut"] else self._switch.restore
            _or_exit(lambda: change(command["address"]))
            return None
        if not message:
            self._epoll.unregister(self.control)
            self._launcher_is_gone = True
        self._end(command["end"])
        return None

    def _fork(
        self, key: int, replaceable: bool, address: str | None, spec: int, stdout: int, stderr: int
    ) -> dict[str, Any] | None:
        """Forks a child, in a process group of its own, with these descriptors as its stdout and stderr."""
        if self._switch and address:
            enter = self._switch.enter_new_host
            _or_exit(lambda: enter(address))
        # Until the child has reset its handler, a SIGTERM would shut down the socket that it shares with this process.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # NumPy's idle threads are prepared for a fork
            pid = os.fork()
        if self._switch and address:
            (self._switch.leave_host if pid else self._switch.close)()
        if pid == 0:
            linux.die_with_parent(self._pid, signal.SIGKILL)
            os.setpgid(0, 0)  # a group of its own, as a shell's jobs have
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            os.dup2(stdout, 1)
            os.dup2(stderr, 2)
            # The ends of these tell the launcher and the others that a process is gone.
            for fd in (stdout, stderr, *self._children):
                os.close(fd)
            self._epoll.close()
            self.control.close()
            linux.limit_files(self._files)
            with open(spec) as file:
                return json.load(file)
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)  # here too, whoever runs first
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        for fd in (spec, stdout, stderr):
            os.close(fd)
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = (key, pid)
        if replaceable:
            self._replaceable.add(pid)
        self._epoll.register(pidfd, select.EPOLLIN)
        self._report(started=key, pid=pid)
        return None

    def _reap(self, pidfd: int) -> None:
        key, pid = self._children.pop(pidfd)
        self._epoll.unregister(pidfd)  # closing is not enough while a newborn child still has a copy
        os.close(pidfd)
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        failed = ended is None or ended.si_code != os.CLD_EXITED or ended.si_status != 0
        if failed and pid in self._replaceable and self._deadline is None:
            # What it has left behind may hold the port or the GPU that the one in its place needs. Nobody else can have
            # this number while it is a zombie. When the job is being ended all have their time for that.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        self._replaceable.discard(pid)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._report(ended=key, status=status)

    def _reap_orphans(self) -> None:
        """Reaps descendants whose own parent is gone, up to the first process of the job, which `_reap` reports."""
        ours = {pid for _, pid in self._children.values()}
        with contextlib.suppress(ChildProcessError):
            while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if found.si_pid in ours:
                    break
                os.waitpid(found.si_pid, 0)

    def _end(self, grace: float) -> None:
        """Sends SIGTERM to every process of the job, and sets the time of SIGKILL `grace` seconds from now.

        What a process has started gets its SIGTERM when that has ended: one that saves before it ends still needs the
        processes that read its data.
        """
        deadline = time.monotonic() + grace
        if self._deadline is None:
            linux.kill([pid for _, pid in self._children.values()], signal.SIGTERM)
        self._deadline = deadline if self._deadline is None else min(deadline, self._deadline)

    def _all_gone(self) -> bool:
        """Is no descendant left? While an attempt is being ended, also sends the signals that are due."""
        if not linux.has_children():
            return True
        if self._deadline is not None and time.monotonic() >= self._deadline:
            linux.kill(linux.descendants(self._pid), signal.SIGKILL)
        elif not self._children and not self._orphans_terminated:
            linux.kill(linux.descendants(self._pid), signal.SIGTERM)  # what programs left in groups of their own
            self._orphans_terminated = True
        return False


def _or_exit(action: Callable[[], _Result]) -> _Result:
    """Calls a function; ends this process, with one line, where the system does not allow what it does."""
    try:
        return action()
    except OSError as error:
        sys.exit(f"the network of the job's hosts: {error.strerror or error}")


def main() -> None:
    """Runs the fork server; returns only in a forked child, after the user's program.

    The arguments are: the directory that holds tf2dist, the launcher's pid, the number of the control socket, how many
    files a child may open, modules to import with commas between them, "1" for a network of its own, and then, where
    each child is to be a host in it, the queueing discipline of its link.
    """
    root, launcher, control, files, modules, isolate, *link = sys.argv[1:8]
    linux.die_with_parent(int(launcher), signal.SIGTERM)
    linux.wait_for_children_oneself()
    if isolate:
        network_namespace.enter_new()  # while there is one thread
    linux.adopt_orphans()
    # The search path that `python` gives to every program, and the launcher's tf2dist at its end for programs that find
    # none; each child puts its own directory in front.
    sys.path[:] = [path for path in sys.path[1:] if path]
    if root not in sys.path:
        sys.path.append(root)
    with garbage_collector.paused():
        for module in filter(None, modules.split(",")):
            importlib.import_module(module)
    if gpus.driver_is_open():
        sys.exit(f"one of {modules} uses CUDA when it is imported, which no fork survives; leave it to the program")
    linux.flush()  # or every child would print what imports have printed
    gc.freeze()  # the collector would write to, and so copy, the pages that children share

    switch = _or_exit(lambda: Switch(link[0])) if link else None
    server = ForkServer(socket.socket(fileno=int(control)), int(files), switch)

    def end_without_launcher(signum: int, frame: Any) -> None:
        # The kernel sends SIGTERM when the launcher dies, even if another process still holds its end of the socket.
        # Who sends it to all processes at once has sent it to the launcher too, which gives the others time to save.
        if os.getppid() != int(launcher):
            server.control.shutdown(socket.SHUT_RD)

    signal.signal(signal.SIGTERM, end_without_launcher)
    task = server.serve()
    if task is None:
        os._exit(0)  # nothing here needs an orderly end
    with open("/proc/self/comm", "w") as file:
        file.write(task["name"])  # what `ps` and `top` show; cut by the kernel to 15 bytes
    os.environ.update(task["env"])
    if task["command"]:
        user_program.execute(task["argv"])
    # NumPy's random state was forked too, and would give every process the same numbers. `random` reseeds by itself.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    user_program.run_as_main(task["argv"])
