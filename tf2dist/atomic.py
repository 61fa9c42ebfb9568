"""Files that are there complete or not at all."""

import contextlib
import os
import secrets
from collections.abc import Iterator


@contextlib.contextmanager
def replacing(*paths: str) -> Iterator[list[str]]:
    """Gives one temporary name a path, to be written in the body; then puts them all in place, in the order given.

    The names are in the same directories, begin with a dot and end in `.part`, so that no pattern for finished
    files finds one. When the body fails or is interrupted they are removed and the paths are as they were.

    Raises:
        OSError: a file could not be flushed to the disk or renamed.
    """
    places = [os.path.split(os.path.abspath(path)) for path in paths]
    parts = [os.path.join(folder, f".{name}.{secrets.token_hex(4)}.part") for folder, name in places]
    try:
        yield parts
        for part in parts:
            flush(part)
        for path, part in zip(paths, parts, strict=True):
            os.replace(part, path)
    except BaseException:
        for part in parts:
            with contextlib.suppress(OSError):
                os.remove(part)
        raise
    for folder in {folder for folder, _ in places}:
        with contextlib.suppress(OSError):  # some file systems cannot flush a directory; the files are in place
            flush(folder)


def flush(path: str) -> None:
    """Waits until a file, or the names in a directory, are on the disk.

    Raises:
        OSError: the disk is full, say.
    """
    handle = os.open(path, os.O_RDONLY if os.path.isdir(path) else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
