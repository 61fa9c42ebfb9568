"""Local copies of TFRecord files that are in object stores, for TensorFlow to read: it knows few stores itself.

A copy is fetched once in each process that reads, whole, before its first record is used. It has no name, so nothing of
it is left however the process ends, and takes room on the disk of the directory for temporary files until then.
"""

import threading
from typing import IO

from tf2dist.data.errors import StoreDataError
from tf2dist.system import files

_copies: dict[tuple[str, str], tuple[IO[bytes], str]] = {}  # by URL and version
_lock = threading.Lock()


def local_path(path: str) -> str:
    """Returns a path that this process can read: of a copy, which is fetched if there is none of this version yet.

    A path of a local file system is its own.

    Raises:
        StoreDataError: it cannot be fetched, with the cause.
    """
    if not files.is_url(path):
        return files.absolute(path)
    try:
        with _lock:  # several threads of a tf.data pipeline ask at once
            key = path, files.version(path)
            if key not in _copies:
                file, name = files.unnamed_file()
                try:
                    files.fetch(path, name)
                except BaseException:
                    file.close()
                    raise
                _copies[key] = file, name
            return _copies[key][1]
    except OSError as error:
        raise StoreDataError(f"{path} cannot be read: {error.strerror or error}") from None
