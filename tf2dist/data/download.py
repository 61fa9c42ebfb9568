"""Downloads a data set through tensorflow-datasets: once, in a process of its own, complete or not at all.

    find() ─ download() ─┬─ python -m tf2dist.data.download NAME <root>/.download-XXXXXXXX
                         └─ rename <root>/.download-XXXXXXXX/NAME/VERSION to <root>/NAME/VERSION

A process of its own because the caller is a launcher, which imports no TensorFlow. It holds the reading end of a
pipe whose writing end only the caller has: when the caller is gone, however it went, the download removes what it
wrote and ends.
"""

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

from tf2dist.data import prepared
from tf2dist.data.errors import DataError

HOST = "storage.googleapis.com"  # where tensorflow-datasets gets MNIST from
PROBE_SECONDS = 3.0
DOWNLOAD_SECONDS = 600.0  # MNIST is 11 MB and Fashion-MNIST 30 MB


def unreachable(seconds: float = PROBE_SECONDS) -> str:
    """Why `HOST` (or the HTTPS proxy that leads to it) cannot be reached; empty when it can.

    Without this probe tensorflow-datasets tries for minutes before it says that there is no network.
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
    """Prepares a data set under `root`, which is made if need be, and returns its version's directory.

    Raises:
        DataError: `root` cannot be written, or the download failed or took longer than `seconds`. Nothing of it
            is left then.
    """
    try:
        os.makedirs(root, exist_ok=True)
        workshop = tempfile.mkdtemp(prefix=".download-", dir=root)
    except OSError as error:
        raise DataError(f"{name} cannot be downloaded to {root}: {error.strerror}; name a writable directory") from None
    try:
        _run(name, workshop, seconds)
        made = prepared.find(name, workshop)
        if made is None:
            raise DataError(f"{name} was downloaded, but tensorflow-datasets left no finished version of it")
        place = os.path.join(root, os.path.relpath(made, workshop))
        try:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            os.rename(made, place)
        except OSError as error:
            # Another download may have been quicker: then the place is taken by the same files.
            if not os.path.isdir(place):
                raise DataError(f"{name} cannot be moved to {place}: {error.strerror}") from None
            prepared.shards(place)
        return place
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def _run(name: str, workshop: str, seconds: float) -> None:
    """Runs this file as a process; its output is shown only as the reason of a failure."""
    command = [sys.executable, "-m", "tf2dist.data.download", name, workshop]
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT)
        try:
            status = child.wait(seconds)
        except subprocess.TimeoutExpired:
            raise DataError(f"the download of {name} did not end within {seconds:g} s; try again") from None
        finally:
            child.kill()
            child.communicate()  # closes the pipe and waits
        if status:
            output.seek(0)
            lines = output.read().decode(errors="replace").strip().splitlines() or ["it printed nothing"]
            raise DataError(f"the download of {name} failed with status {status}: {lines[-1]}")


def _leave_with_caller(workshop: str) -> None:
    os.read(0, 1)  # blocks until the caller's end of the pipe is closed
    for _ in range(10):  # the other threads go on writing meanwhile
        shutil.rmtree(workshop, ignore_errors=True)
    os._exit(1)


def _main(name: str, workshop: str) -> None:
    threading.Thread(target=_leave_with_caller, args=(workshop,), daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to the whole group, they are the caller's to answer
        signal.signal(number, signal.SIG_IGN)
    import tensorflow_datasets as tfds

    builder = tfds.builder(name, data_dir=workshop)
    builder.download_and_prepare(download_dir=os.path.join(workshop, "downloads"))


if __name__ == "__main__":
    _main(*sys.argv[1:])
