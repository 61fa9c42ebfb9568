"""Downloads a data set with tensorflow-datasets in a child process, completely or not at all.

    find() ─ download() ─┬─ python -m tf2dist.data.download NAME <root>/.download-XXXXXXXX
                         └─ rename <root>/.download-XXXXXXXX/NAME/VERSION to <root>/NAME/VERSION

In a child process, because the caller is a launcher, which imports no TensorFlow. When the caller dies, in whatever
way, the kernel signals the child, which removes what it wrote and exits.
"""

# pyright: strict, reportMissingTypeStubs=false

import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.parse
import urllib.request
from typing import Any

from tf2dist.data import tfds_directory
from tf2dist.data.errors import DataError
from tf2dist.system import linux

HOST = "storage.googleapis.com"  # where tensorflow-datasets gets MNIST from
PROBE_SECONDS = 3.0
DOWNLOAD_SECONDS = 600.0  # MNIST is 11 MB and Fashion-MNIST 30 MB
_CALLER_DIED = signal.SIGUSR1  # sent to the child


def unreachable(seconds: float = PROBE_SECONDS) -> str:
    """Returns why `HOST`, or the HTTPS proxy to it, cannot be reached; empty when it can.

    Without this probe tensorflow-datasets retries for minutes before it reports that there is no network.
    """
    host, port, name = HOST, 443, HOST
    proxies = urllib.request.getproxies()
    proxy = proxies.get("https") or proxies.get("all")
    if proxy and not urllib.request.proxy_bypass(HOST):
        try:
            parts = urllib.parse.urlsplit(proxy if "://" in proxy else f"http://{proxy}")
            host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            host = ""
        if not host:
            return "the HTTPS proxy's address cannot be understood; it should be http://HOST:PORT"
        name = f"the HTTPS proxy {host}:{port}"

    answer: queue.Queue[str] = queue.Queue()

    def connect():
        try:
            socket.create_connection((host, port), timeout=seconds).close()
            answer.put("")
        except (OSError, UnicodeError) as error:
            answer.put(f"no connection to {name} ({getattr(error, 'strerror', None) or error})")

    # In a thread, because a name server that does not answer can hold getaddrinfo for longer than any timeout.
    threading.Thread(target=connect, daemon=True).start()
    try:
        return answer.get(timeout=seconds)
    except queue.Empty:
        return f"no connection to {name} within {seconds:g} s"


def download(name: str, root: str, seconds: float = DOWNLOAD_SECONDS) -> str:
    """Prepares a data set under `root`, which is created if needed; returns its version's directory.

    Raises:
        DataError: `root` cannot be written, or the download failed or took longer than `seconds`. It leaves no files.
    """
    try:
        os.makedirs(root, exist_ok=True)
        work_dir = tempfile.mkdtemp(prefix=".download-", dir=root)
    except OSError as error:
        raise DataError(f"{name} cannot be downloaded to {root}: {error.strerror}; name a writable directory") from None
    try:
        _run(name, work_dir, seconds)
        made = tfds_directory.find(name, work_dir)
        if made is None:
            raise DataError(f"{name} was downloaded, but tensorflow-datasets left no finished version of it")
        place = os.path.join(root, os.path.relpath(made, work_dir))
        try:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            os.rename(made, place)
        except OSError as error:
            # Another download may have finished first, with the same files.
            if not os.path.isdir(place):
                raise DataError(f"{name} cannot be moved to {place}: {error.strerror}") from None
            tfds_directory.shard_files(place)
        return place
    finally:
        shutil.rmtree(work_dir, ignore_errors=True)


def _run(name: str, work_dir: str, seconds: float) -> None:
    """Runs this file in a child process; the last line of its output is the reason of a failure."""
    command = [sys.executable, "-m", "tf2dist.data.download", name, work_dir, str(os.getpid())]
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            status = child.wait(seconds)
        except subprocess.TimeoutExpired:
            raise DataError(f"the download of {name} did not end within {seconds:g} s; try again") from None
        finally:
            child.kill()
            child.wait()
        if status:
            output.seek(0)
            lines = output.read().decode(errors="replace").strip().splitlines() or ["it printed nothing"]
            raise DataError(f"the download of {name} failed with status {status}: {lines[-1]}")


def _exit_with_caller(work_dir: str) -> None:
    signal.sigwait([_CALLER_DIED])
    for _ in range(10):  # the other threads go on writing meanwhile
        shutil.rmtree(work_dir, ignore_errors=True)
    os._exit(1)


def _main(name: str, work_dir: str, caller: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to the whole process group; the caller handles them
        signal.signal(number, signal.SIG_IGN)
    # Blocked in every thread, so that the waiting thread receives it even while another one runs C code.
    signal.pthread_sigmask(signal.SIG_BLOCK, [_CALLER_DIED])
    threading.Thread(target=_exit_with_caller, args=(work_dir,), daemon=True).start()
    linux.die_with_parent(int(caller), _CALLER_DIED)
    import tensorflow_datasets

    tfds: Any = tensorflow_datasets  # which ships no types
    builder = tfds.builder(name, data_dir=work_dir)
    builder.download_and_prepare(download_dir=os.path.join(work_dir, "downloads"))


if __name__ == "__main__":
    _main(*sys.argv[1:])
