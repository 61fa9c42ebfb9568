"""Output files that a user names: checks before a job starts that they can be written; replaces them in one piece."""

from __future__ import annotations

import os
import re
import sys
import tempfile

from tf2dist.errors import UsageError
from tf2dist.system import files
from tf2dist.system.atomic_files import replacing

# What /dev/stdout, /dev/fd/3 and the like are links to. The kernel makes them links to the open file in turn, which is
# to be written to, and not replaced, whatever it is.
_DESCRIPTOR = re.compile(r"(?:/proc/\d+|/dev)/fd/(\d+)")


def check_writable(flag: str, path: str, *, takes_special: bool = False) -> None:
    """Raises UsageError unless a file can be written at `path`; leaves no trace.

    Args:
      flag: the flag with its value, for the message.
      path: of the file, or its URL; it need not exist.
      takes_special: whether it may be a pipe, a device or an open file, as for `write_text`; others would be replaced.
    """
    if files.is_url(path):
        files.check_writable(flag, path)
        return
    files.check(flag, path)
    path = files.absolute(path)
    target = files.target(path)
    if os.path.isdir(target):
        raise UsageError(f"{flag} is a directory; name a file in it")
    if not _is_special(path):
        check_directory(flag, os.path.dirname(target))
    elif not takes_special:
        raise UsageError(f"{flag} is no regular file and would be replaced by one; name another place")


def write_text(path: str, text: str) -> None:
    """Replaces the file in one piece: readers see the old text or the new one. Pipes and devices are written to.

    So are open files of this process (/dev/stdout), behind what is in them.
    """
    path = files.absolute(path)
    descriptor = None if files.is_url(path) else _descriptor(path)
    if descriptor is not None:
        sys.stdout.flush()
        with open(os.dup(descriptor), "w") as file:
            file.write(text)
        return
    if not files.is_url(path) and _is_special(path):
        with open(path, "w") as file:
            file.write(text)
        return
    with replacing(files.target(path)) as (part,), open(part, "w") as file:
        file.write(text)


def check_directory(flag: str, directory: str) -> None:
    """Raises UsageError unless files can be made in this directory, which is there; leaves no trace."""
    try:
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsageError(
            f"{flag} cannot be written: {why} ({directory}); name a place in a writable directory"
        ) from None


def _is_special(path: str) -> bool:
    """Returns whether `path` exists but is no regular file of its own: /dev/null, a pipe, /dev/stdout."""
    return os.path.exists(path) and (not os.path.isfile(path) or _descriptor(path) is not None)


def _descriptor(path: str) -> int | None:
    """Returns the descriptor of this process that `path` stands for, as /dev/stdout does for 1; None if for none."""
    for _ in range(40):  # links; the kernel follows as many
        folder, name = os.path.split(os.path.abspath(path))
        path = os.path.join(os.path.realpath(folder), name)
        if found := _DESCRIPTOR.fullmatch(path):
            return int(found[1])
        if not os.path.islink(path):
            return None
        path = os.path.join(os.path.dirname(path), os.readlink(path))
    return None
