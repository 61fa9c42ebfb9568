"""Several hosts on one machine: network namespaces with addresses of their own on one switch, and sshd in each."""

import contextlib
import os
import pathlib
import pwd
import shlex
import shutil
import signal
import subprocess
import sys
import time
import uuid

import pytest

import launch
from tf2dist.system import linux

ROOT = pathlib.Path(launch.__file__).parents[1]
MARK = "TF2DIST_TEST_HOSTS"  # handed on to every task, as all that begins so
DEADLINE = 240.0


def sh(command, **kwargs):
    return subprocess.run(shlex.split(command), check=True, capture_output=True, text=True, timeout=30, **kwargs).stdout


def possible():
    """Why there can be no hosts here; empty if there can."""
    if os.getuid() != 0:
        return "network namespaces with their own addresses need root"
    missing = [name for name in ("ip", "nsenter", "unshare", "ssh", "ssh-keygen") if not shutil.which(name)]
    if missing or not os.path.exists("/usr/sbin/sshd"):
        return f"tests/install.sh has not installed {', '.join(missing) or 'sshd'}"
    probe = f"tf2dist{os.getpid()}-probe"
    try:
        sh(f"ip netns add {probe}")
        sh(f"nsenter --net=/run/netns/{probe} unshare --mount true")
    except subprocess.CalledProcessError as error:
        return f"network namespaces are not allowed here: {error.stderr.strip()}"
    finally:
        subprocess.run(["ip", "netns", "delete", probe], capture_output=True, check=False)
    return ""


class Hosts:
    """Hosts a, b, c, ... with addresses 10.77.0.1, .2, ..., and fd77::1, ..., which know each other's names."""

    def __init__(self, directory, names, stack):
        self.directory = directory
        self.names = names
        self.addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, 1)}
        self.prefix = f"tf2dist{os.getpid()}"
        self.servers = []
        stack.callback(self._remove)
        sh(f"ip netns add {self.prefix}-switch")
        sh(f"ip -n {self.prefix}-switch link add br0 type bridge")
        sh(f"ip -n {self.prefix}-switch link set br0 up")
        known = "127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in self.addresses.items())
        (directory / "names").write_text(known)
        for name, address in self.addresses.items():
            space = f"{self.prefix}-{name}"
            sh(f"ip netns add {space}")
            sh(f"ip link add eth0 netns {space} type veth peer name {name} netns {self.prefix}-switch")
            sh(f"ip -n {self.prefix}-switch link set dev {name} master br0 up")
            sh(f"ip -n {space} address add {address}/24 dev eth0")
            sh(f"ip -n {space} address add fd77::{address[-1]}/64 dev eth0 nodad")
            sh(f"ip -n {space} link set eth0 up")
            sh(f"ip -n {space} link set lo up")

    def on(self, name, command, **kwargs):
        """Starts a command on a host."""
        # Not `ip netns exec`: that also puts a new /sys in place, and Slurm looks for control groups there.
        enter = ["nsenter", f"--net=/run/netns/{self.prefix}-{name}", "unshare", "--mount", "sh", "-c"]
        known = 'mount --bind "$0" /etc/hosts && exec "$@"'
        return subprocess.Popen([*enter, known, str(self.directory / "names"), *command], **kwargs)

    def serve_ssh(self):
        """Starts sshd on every host, and writes the configuration of a client that may go to all."""
        os.makedirs("/run/sshd", exist_ok=True)
        if not any(user.pw_name == "sshd" for user in pwd.getpwall()):
            pytest.skip("sshd has no user of its own here")
        for key in ("host", "user"):
            sh(f"ssh-keygen -q -t ed25519 -N '' -f {self.directory / key}")
        public = (self.directory / "host.pub").read_text()
        (self.directory / "known").write_text(f"* {public}")
        shutil.copy(self.directory / "user.pub", self.directory / "authorized")
        (self.directory / "sshd_config").write_text(
            f"HostKey {self.directory}/host\nAuthorizedKeysFile {self.directory}/authorized\nPidFile none\n"
            "StrictModes no\nUsePAM no\nPermitRootLogin yes\nPasswordAuthentication yes\n"
        )
        client = f"UserKnownHostsFile {self.directory}/known\n"
        (self.directory / "ssh_config").write_text(f"{client}IdentityFile {self.directory}/user\nIdentitiesOnly yes\n")
        (self.directory / "stranger").write_text(f"{client}IdentityFile none\nIdentityAgent none\n")
        for name in self.names:
            command = ["/usr/sbin/sshd", "-D", "-e", "-f", str(self.directory / "sshd_config")]
            log = open(self.directory / f"sshd_{name}.log", "wb")  # noqa: SIM115 - it is the server's
            self.servers.append(self.on(name, command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        deadline = time.monotonic() + DEADLINE
        for name in self.names:
            while "0.0.0.0:22" not in sh(f"ip netns exec {self.prefix}-{name} ss -ltn"):
                assert time.monotonic() < deadline
                time.sleep(0.05)

    @contextlib.contextmanager
    def cut_off(self, name):
        """Inside, a host is off the network, without a word to anybody."""
        sh(f"ip -n {self.prefix}-switch link set dev {name} down")
        try:
            yield
        finally:
            sh(f"ip -n {self.prefix}-switch link set dev {name} up")

    def processes(self, name):
        """Command lines, by pid, of all that runs on a host but its own servers."""
        servers = [server.pid for server in self.servers]
        found = {}
        for pid in map(int, sh(f"ip netns pids {self.prefix}-{name}").split()):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline") as file:
                command = file.read().replace("\0", " ").strip()
                if pid not in servers and command:  # zombies have none
                    found[pid] = command
        return found

    def empty(self, *names, within=60.0, but="\0"):
        """Whether nothing runs on these hosts, all if none is named, or soon will not, but for what is called so."""
        deadline = time.monotonic() + within
        while left := [c for name in names or self.names for c in self.processes(name).values() if but not in c]:
            if time.monotonic() > deadline:
                print(left)
                return False
            time.sleep(0.1)
        return True

    def _remove(self):
        for name in [*self.names, "switch"]:
            with contextlib.suppress(subprocess.CalledProcessError):
                pids = list(map(int, sh(f"ip netns pids {self.prefix}-{name}").split()))
                linux.kill(pids, signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", f"{self.prefix}-{name}"], capture_output=True, check=False)
        for server in self.servers:
            server.wait()


class Launcher:
    """A launcher that runs on a host."""

    def __init__(self, hosts, name, arguments, directory, env=()):
        self.mark = uuid.uuid4().hex
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self.out = open(directory / f"{self.mark}.out", "w+b")  # noqa: SIM115 - read to the end of the test
        self.process = hosts.on(
            name,
            [sys.executable, "-m", "launch", *arguments],
            env={**os.environ, "PYTHONPATH": path, MARK: self.mark, **dict(env)},
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=self.out,
            stderr=self.out,
            start_new_session=True,
        )

    def text(self):
        with open(self.out.name, errors="replace") as file:
            return file.read()

    def until(self, text, times=1):
        """Waits until a text was printed so often."""
        deadline = time.monotonic() + DEADLINE
        while self.text().count(text) < times:
            assert self.process.poll() is None, f"ended without {text!r}:\n{self.text()}"
            assert time.monotonic() < deadline, f"no {text!r} in\n{self.text()}"
            time.sleep(0.05)

    def finish(self, timeout=DEADLINE):
        """Waits for the end; returns the exit status and what was printed."""
        status = self.process.wait(timeout)
        return status, self.text()
