"""Files on local file systems and in object stores: one set of functions for paths and for URLs.

URLs go through fsspec, which has a library for each store, needs no TensorFlow, and so can look for a file before
anything heavy is imported. TensorFlow 2.21 itself reads `gs://` and its own `ram://` alone
(`tf.io.gfile.get_registered_schemes`), and `etils.epath` passes `s3://`, `gs://` and `az://` on to fsspec, without
limits.

A store has no rename and its directories are prefixes of names: an object is put in place as a whole, by one request,
and is whole or absent. What consists of several objects is whole once its last one is there.

Every call has a limit: `TF2DIST_FILES_TIMEOUT` seconds (60) without an answer, or without progress in a transfer. What
a store or its library says is raised as a `StoreError`, an OSError of one line.
"""

# fsspec ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import os
import re
import secrets
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Any, TypeVar, cast

from tf2dist.errors import UsageError, printable, reason
from tf2dist.system import environment_variables, store_timeout
from tf2dist.system.local_paths import split_url

_BLOCK = 1 << 20  # bytes that a reader asks for at a time
_PART = 8 << 20  # bytes of one request of an upload: a slow line sends them within the limit
_Result = TypeVar("_Result")

Path = str | os.PathLike[str]


@dataclass(frozen=True)
class _Store:
    """What is known of a scheme.

    Attributes:
      module: what must be installed for it, beside fsspec; by the same name on PyPI.
      put_is_atomic: whether a file that is being written cannot be seen; else it is written beside and renamed.
      options: for the library's file system.
      get_options, put_options: for its `get_file` and `put_file`.
      has_network: whether it is reached over a network.
    """

    module: str
    put_is_atomic: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    get_options: dict[str, Any] = field(default_factory=dict)
    put_options: dict[str, Any] = field(default_factory=dict)
    has_network: bool = True


# s3fs tries again by itself; botocore's attempts would multiply with these. It asks for ten parts of a large object at
# once, holds them in memory, says nothing before all are there, and does not see that the object is another one now.
_S3 = _Store(
    "s3fs",
    options={"config_kwargs": {"retries": {"max_attempts": 1}}},
    get_options={"max_concurrency": 1},
    put_options={"max_concurrency": 1, "chunksize": _PART},
)
_GCS = _Store("gcsfs", put_options={"chunksize": _PART})
_AZURE = _Store("adlfs")
_STORES = {
    "s3": _S3,
    "s3a": _S3,
    "gs": _GCS,
    "gcs": _GCS,
    "abfs": _AZURE,
    "abfss": _AZURE,
    "az": _AZURE,
    "hdfs": _Store("pyarrow", put_is_atomic=False),
    "memory": _Store("fsspec", put_is_atomic=False, has_network=False),
}


_systems: dict[tuple[int, str, str], Any] = {}


class StoreError(OSError):
    """A store did not do what it was asked for. The message is one line; `strerror` has the cause alone."""

    def __init__(self, url: str, action: str, cause: str):
        self._arguments = url, action, printable(" ".join(cause.split()))
        super().__init__("{} cannot be {}: {}".format(*self._arguments))
        self.strerror = self._arguments[2]

    def __reduce__(self):
        return type(self), self._arguments


class NoObjectError(StoreError, FileNotFoundError):
    """There is no such object or directory; where the bucket is missing it is a plain `StoreError`."""


def is_url(path: Path) -> bool:
    """Returns whether `path` names something in a store; `file:///x` is the local path /x."""
    url = split_url(path)
    return url is not None and url[0] != "file"


def needs_network(path: Path) -> bool:
    """Returns whether `path` is a URL of a store that is reached over a network."""
    url = split_url(path)
    return url is not None and url[0] in _STORES and _STORES[url[0]].has_network


def absolute(path: Path) -> str:
    """Returns a local path as an absolute one, also of `file:///x`; a URL as it is."""
    if url := split_url(path):
        has_host = not re.match("hdfs:///", os.fspath(path), re.IGNORECASE)  # else it is the configured one
        return f"/{url[1]}" if url[0] == "file" else f"{url[0]}://{'' if has_host else '/'}{url[1]}"
    return os.path.abspath(path)


def _local(path: Path) -> Path:
    """Returns a local path as it is, which may be empty and then names nothing, or that of `file:///x`."""
    return absolute(path) if split_url(path) else path


def target(path: Path) -> str:
    """Returns the file that is to be replaced where `path` is written: links are followed, and stores have none."""
    return absolute(path) if is_url(path) else os.path.realpath(absolute(path))


def check(named: str, path: Path) -> None:
    """Checks a URL without asking its store; a path is taken as it is.

    Args:
      named: how the user has named it, as "--report=s3://bucket/x", for the message.

    Raises:
      UsageError: its scheme is not known, its package is not installed, or it names nothing.
    """
    url = split_url(path)
    if url is None:
        return
    scheme, rest = url
    if scheme == "file":
        if re.match("file://[^/]", os.fspath(path), re.IGNORECASE):
            raise UsageError(
                f"{named} names a file of another host; one of this host has three slashes, file:///{rest}"
            )
        return
    store = _STORES.get(scheme)
    if store is None:
        known = ", ".join(f"{name}://" for name in ("file", *_STORES))
        raise UsageError(f"{named} is a URL of an unknown scheme; {known} are known, and paths of mounted file systems")
    if not rest:
        raise UsageError(f"{named} names nothing in the store; a URL is {scheme}://BUCKET/NAME")
    for module in ("fsspec", store.module):
        if importlib.util.find_spec(module) is None:
            raise UsageError(f"{named} needs the package {module}, and it is not installed (pip install {module})")


def check_writable(named: str, url: str) -> None:
    """Checks that an object can be put at a URL, as far as its store tells without writing; leaves no trace.

    Args:
      named: as in `check`.

    Raises:
      UsageError: as `check`; it names no object; or its bucket cannot be reached, and why.
    """
    check(named, url)

    def has_name(system: Any, place: str) -> bool:
        bucket, _, name = place.partition("/")  # where there are none, as in HDFS, it begins with a slash
        _look(system, bucket or "/")
        return bool(name) and not url.endswith("/")

    try:
        if not _ask(absolute(url), "written", has_name):
            raise UsageError(f"{named} is a directory; name a file in it")
    except StoreError as error:
        raise UsageError(f"{named} cannot be written: {error.strerror}") from None


def exists(path: Path) -> bool:
    """Returns whether there is a file, an object or a directory. Raises StoreError where the store does not tell."""
    if not is_url(path):
        return os.path.exists(_local(path))
    try:
        _info(absolute(path))
    except NoObjectError:
        return False
    return True


def is_file(path: Path) -> bool:
    """Returns whether there is a file or an object. Raises StoreError where the store does not tell."""
    return exists(path) and not is_directory(path) if is_url(path) else os.path.isfile(_local(path))


def is_directory(path: Path) -> bool:
    """Returns whether there is a directory; in a store, whether there are objects below. Raises StoreError."""
    if not is_url(path):
        return os.path.isdir(_local(path))
    try:
        return _info(absolute(path))["type"] == "directory"
    except NoObjectError:
        return False


def size(path: Path) -> int:
    """Returns the size of a file in bytes. Raises OSError."""
    return int(_info(absolute(path))["size"]) if is_url(path) else os.path.getsize(absolute(path))


def version(url: str) -> str:
    """Returns a text that is another one once an object has been replaced. Raises StoreError."""
    return _ask(url, "read", lambda system, place: str(system.ukey(place)))


def list_names(path: Path) -> list[str]:
    """Returns the names of the files and directories in a directory, sorted. Raises OSError."""
    if not is_url(path):
        return sorted(os.listdir(absolute(path)))
    if not is_directory(path):
        raise NoObjectError(absolute(path), "listed", "there is no such directory")
    found: list[str] = _ask(absolute(path), "listed", lambda system, place: system.ls(place, detail=False))
    own = absolute(path).rstrip("/").rpartition("/")[2]
    names = [each.rstrip("/").rpartition("/")[2] for each in found if each.rstrip("/")]
    # A directory's marker, an object of its name with a slash, is listed in it.
    return sorted({name for name, each in zip(names, found, strict=True) if not (each.endswith("/") and name == own)})


def make_directories(path: Path) -> None:
    """Makes a directory and those that it is in; in an object store a name needs none. Raises OSError."""
    if not is_url(path):
        os.makedirs(absolute(path), exist_ok=True)
    elif not _store(path).put_is_atomic:
        _ask(absolute(path), "made", lambda system, place: system.makedirs(place, exist_ok=True))


def remove(path: Path) -> None:
    """Removes a file or an object; no error if there is none. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        if is_url(path):
            _ask(absolute(path), "removed", lambda system, place: system.rm_file(place))
        else:
            os.remove(absolute(path))


def open_binary(path: Path) -> IO[bytes]:
    """Opens a file for reading bytes, with `seek`; an object is fetched in blocks as it is read. Raises OSError."""
    if not is_url(path):
        return open(absolute(path), "rb")
    url = absolute(path)
    if _info(url)["type"] == "directory":
        raise StoreError(url, "read", "is a directory")
    file = _ask(url, "read", lambda system, place: system.open(place, "rb", block_size=_PART))
    return io.BufferedReader(_Reader(url, file), _BLOCK)


def open_text(path: Path) -> IO[str]:
    """Opens a text file in UTF-8 for reading. Raises OSError."""
    return io.TextIOWrapper(open_binary(path), encoding="utf-8")


def unnamed_file() -> tuple[IO[bytes], str]:
    """Returns a temporary file without a name, which is gone when it is closed or its process dies, and a path to it.

    Other processes of this user and host can open the path as long as the file is open here.
    """
    file = cast("IO[bytes]", tempfile.TemporaryFile())  # noqa: SIM115 (the caller's)
    return file, f"/proc/{os.getpid()}/fd/{file.fileno()}"


def fetch(url: str, path: str) -> None:
    """Copies an object into the local file `path`, in full. Raises StoreError, and OSError if the disk is full."""
    wanted, store = int(_info(url)["size"]), _store(url)
    # The thread's own: one that is given up may come to open the file when its number is that of another one. It is
    # closed with the last of those who know it, for the thread may fail before it begins to copy.
    own = open(path, "wb")  # noqa: SIM115

    def copy(system: Any, place: str, progress: Any) -> None:
        with own:
            system.get_file(place, f"/proc/{os.getpid()}/fd/{own.fileno()}", callback=progress, **store.get_options)

    _transfer(url, "read", copy)
    if (found := os.path.getsize(path)) != wanted:
        raise StoreError(url, "read", f"{found:,} of {wanted:,} bytes have come")


def put(path: str, url: str) -> None:
    """Puts the local file `path` in place at `url`: readers see the old object, or none, until this one is whole.

    Raises:
      StoreError: the store does not take it.
    """
    store = _store(url)
    import fsspec

    def send(system: Any, place: str, progress: Any) -> None:
        if store.put_is_atomic:
            system.put_file(path, place, callback=progress, **store.put_options)
            return
        folder, _, name = place.rpartition("/")
        part = f"{folder}/.{name}.{secrets.token_hex(4)}.part"
        try:
            system.put_file(path, part, callback=progress, **store.put_options)
            with contextlib.suppress(FileNotFoundError):  # these do not rename to a name that is taken
                system.rm_file(place)
            if type(system).mv is not fsspec.AbstractFileSystem.mv:
                system.mv(part, place)
            else:  # which takes the name for a pattern
                system.cp_file(part, place)
                system.rm_file(part)
        except BaseException:
            with contextlib.suppress(Exception):
                system.rm_file(part)
            raise

    _transfer(url, "written", send)


class _Reader(io.RawIOBase):
    """A library's file with a limit on each call."""

    def __init__(self, url: str, file: Any):
        self._url, self._file = url, file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def readinto(self, buffer: Any) -> int:
        data: bytes = _within_limit(self._url, "read", lambda beat: self._file.read(len(buffer)))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _store(path: Path) -> _Store:
    """Returns what is known of a URL's store; its library is imported then, for which there is no limit."""
    check(os.fspath(path), path)
    url = split_url(path)
    assert url is not None  # the caller's
    import fsspec

    try:
        fsspec.get_filesystem_class(url[0])
    except ImportError as error:
        raise StoreError(absolute(path), "reached", reason(error)) from None
    return _STORES[url[0]]


def _ask(url: str, action: str, call: Callable[[Any, str], _Result]) -> _Result:
    """Returns what `call` does with the library's file system and the path in it, within the limit."""
    store = _store(url)

    def work(beat: Callable[[], None]) -> _Result:
        return call(*_system(store, url))

    return _within_limit(url, action, work)


def _transfer(url: str, action: str, call: Callable[[Any, str, Any], None]) -> None:
    """As `_ask`, with a limit on the time without progress: `call` also gets fsspec's callback for it."""
    store = _store(url)

    def work(beat: Callable[[], None]) -> None:
        from fsspec.callbacks import Callback

        def on(size: int, value: int, **_: object) -> None:
            beat()

        call(*_system(store, url), Callback(hooks={"beat": on}))

    _within_limit(url, action, work)


def _system(store: _Store, url: str) -> tuple[Any, str]:
    """Returns the library's file system for a URL, made once in a process for each bucket, and the path in it."""
    import fsspec

    # fsspec keeps one for each thread, and a call here has one of its own. Without its cache of listings, what another
    # process has written since is seen.
    key = os.getpid(), url.partition("://")[0], url.partition("://")[2].partition("/")[0]
    if key not in _systems:
        options = {"skip_instance_cache": True, "use_listings_cache": False} | _with_configured(store.options, key[1])
        _systems[key] = fsspec.url_to_fs(url, **options)[0]
    return _systems[key], cast(str, fsspec.core.strip_protocol(url))


def _with_configured(options: dict[str, Any], scheme: str) -> dict[str, Any]:
    """Returns the options with what the user's configuration of fsspec says inside of them, which fsspec would drop.

    They are a copy: botocore changes what it is given.
    """
    import fsspec

    options = copy.deepcopy(options)
    protocols = fsspec.get_filesystem_class(scheme).protocol
    for protocol in (protocols,) if isinstance(protocols, str) else protocols:
        configured = fsspec.config.conf.get(protocol, {})
        options = {name: {**configured.get(name, {}), **value} for name, value in options.items()}
    return options


def _info(url: str) -> dict[str, Any]:
    """Returns fsspec's `info`: `size`, `type` ("file" or "directory"). Raises NoObjectError, StoreError."""

    return _ask(url, "read", _look)


def _look(system: Any, place: str) -> dict[str, Any]:
    """Returns what `system` says of `place`. FileNotFoundError says that it is not in its bucket, and no more."""
    try:
        return system.info(place)
    except FileNotFoundError:
        bucket = place.partition("/")[0]
        if not bucket or (bucket != place.rstrip("/") and _has(system, bucket)):
            raise
        raise OSError(f"there is no bucket {bucket}") from None


def _has(system: Any, bucket: str) -> bool:
    try:
        system.info(bucket)
    except FileNotFoundError:
        return False
    return True


def _within_limit(url: str, action: str, work: Callable[[Callable[[], None]], _Result]) -> _Result:
    """Returns what `work` does (see `store_timeout.call`). Raises StoreError if it fails, or takes too long."""
    limit = store_timeout.limit()
    try:
        return store_timeout.call(limit, work)
    except store_timeout.NoAnswerError:
        raise StoreError(
            url, action, f"the store has not answered within {limit:g} s ({environment_variables.FILES_TIMEOUT})"
        ) from None
    except store_timeout.FailedError as failed:
        kind = NoObjectError if isinstance(failed.error, FileNotFoundError) else StoreError
        raise kind(url, action, _cause(failed.error)) from None


def _cause(error: BaseException) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, PermissionError):
        return f"permission denied ({error})"
    if isinstance(error, TimeoutError):
        return "the store has not answered in time"
    if isinstance(error, OSError):  # the store's own words, or why the local disk does not take it
        return error.strerror or str(error) or type(error).__name__
    return reason(error) if isinstance(error, Exception) else type(error).__name__
