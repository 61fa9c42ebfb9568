"""Files that are written atomically: complete or absent."""

import contextlib
import os
import secrets
import tempfile
from collections.abc import Generator
from typing import Any


@contextlib.contextmanager
def replacing(*paths: str) -> Generator[list[str]]:
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
        flush_directory(folder)


def flush_directory(folder: str) -> None:
    """Makes the names in a directory durable, where the file system can; the files are in place in any case."""
    with contextlib.suppress(OSError):
        flush(folder)


def save(model: Any, path: str) -> None:
    """Saves a Keras model, or its weights if the name ends in .weights.h5; until then what is there stays.

    Keras looks at the name that it is given, so the part has the same one, in a directory of its own beside.

    Raises:
        OSError: the disk is full, say.
    """
    folder, name = os.path.split(os.path.abspath(path))
    with tempfile.TemporaryDirectory(dir=folder, prefix=".saving.") as unfinished:
        part = os.path.join(unfinished, name)
        model.save_weights(part) if name.endswith(".weights.h5") else model.save(part)
        flush(part)
        os.replace(part, path)


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
