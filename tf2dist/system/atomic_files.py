"""Files that are written atomically, at a path or a URL: complete or absent."""

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Generator
from typing import Any

from tf2dist.system import files


@contextlib.contextmanager
def replacing(*paths: str) -> Generator[list[str]]:
    """Gives one temporary name a path, to be written in the body; then puts them all in place, in the order given.

    The names are in the same directories, begin with a dot and end in `.part`, so that no pattern for finished
    files finds one. When the body fails or is interrupted they are removed and the paths are as they were. What is to
    go to a URL is written to a local file without a name, which no end of the process leaves behind, and sent then.

    Raises:
        OSError: a file could not be flushed to the disk or renamed, or a store did not take it.
    """
    places = [files.absolute(path) for path in paths]
    with contextlib.ExitStack() as unnamed:
        parts = [_send_later(unnamed) if files.is_url(place) else _beside(place) for place in places]
        try:
            yield parts
            for place, part in zip(places, parts, strict=True):
                if not files.is_url(place):
                    flush(part)
            for place, part in zip(places, parts, strict=True):
                files.put(part, place) if files.is_url(place) else os.replace(part, place)
        except BaseException:
            for place, part in zip(places, parts, strict=True):
                if not files.is_url(place):
                    with contextlib.suppress(OSError):
                        os.remove(part)
            raise
    for folder in {os.path.dirname(place) for place in places if not files.is_url(place)}:
        flush_directory(folder)


def _beside(place: str) -> str:
    folder, name = os.path.split(place)
    return os.path.join(folder, f".{name}.{secrets.token_hex(4)}.part")


def _send_later(unnamed: contextlib.ExitStack) -> str:
    file, path = files.unnamed_file()
    unnamed.enter_context(file)
    return path


def flush_directory(folder: str) -> None:
    """Makes the names in a directory durable, where the file system can; the files are in place in any case."""
    with contextlib.suppress(OSError):
        flush(folder)


def put_in_place(unfinished: str, path: str) -> None:
    """Renames a finished directory; one of that name is there until the new one is.

    Where the process ends in between it is called `.NAME.replaced`, beside.

    Raises:
        OSError: it cannot be renamed, and all is as it was.
    """
    folder, name = os.path.split(path)
    replaced = os.path.join(folder, f".{name}.replaced")
    if os.path.isdir(path):
        shutil.rmtree(replaced, ignore_errors=True)
        os.rename(path, replaced)
    try:
        os.rename(unfinished, path)
    except BaseException:
        if os.path.isdir(replaced) and not os.path.isdir(path):
            os.rename(replaced, path)
        raise
    flush_directory(folder)
    shutil.rmtree(replaced, ignore_errors=True)


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
