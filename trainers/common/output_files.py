"""Output files that flags name: checks before a job starts that they can be written; replaces them in one piece."""

from __future__ import annotations

import os
import tempfile

from tf2dist.errors import UsageError
from tf2dist.system import optional_packages
from tf2dist.system.atomic_files import replacing
from tf2dist.system.local_paths import check_local
from trainers.common.shared_flags import SharedFlags


def check_shared_outputs(shared: SharedFlags) -> None:
    """Raises UsageError unless --report and --logdir can be written; leaves no trace."""
    if shared.report:
        check_writable(f"--report={shared.report}", shared.report)
    if shared.logdir:
        # The directory is made when there is something to write, so that a wrong command leaves nothing behind.
        existing = os.path.realpath(shared.logdir)
        while not os.path.exists(existing):
            existing = os.path.dirname(existing)
        _check_directory(f"--logdir={shared.logdir}", existing)


def check_writable(flag: str, path: str) -> None:
    """Raises UsageError unless a file can be written at `path`; leaves no trace.

    Args:
      flag: the flag with its value, for the message.
      path: of the file, which need not exist.
    """
    check_local(flag, path)
    target = os.path.realpath(path)
    if os.path.isdir(target):
        raise UsageError(f"{flag} is a directory; name a file in it")
    if not _is_special(path):
        _check_directory(flag, os.path.dirname(target))


def check_installed(flag: str, module: str) -> None:
    """Raises UsageError unless the package that a flag needs is installed; imports nothing.

    Args:
      flag: the flag with its value, for the message.
      module: what the package is imported as.
    """
    if why := optional_packages.missing(module):
        raise UsageError(f"{flag} needs a package: {why}")


def write_text(path: str, text: str) -> None:
    """Replaces the file in one piece: readers see the old text or the new one. Pipes and devices are written to."""
    if _is_special(path):
        with open(path, "w") as file:
            file.write(text)
        return
    with replacing(os.path.realpath(path)) as (part,), open(part, "w") as file:
        file.write(text)


def _check_directory(flag: str, directory: str) -> None:
    try:
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsageError(
            f"{flag} cannot be written: {why} ({directory}); name a place in a writable directory"
        ) from None


def _is_special(path: str) -> bool:
    """Returns whether `path` exists but is no regular file: /dev/null, /dev/stdout, a pipe."""
    return os.path.exists(path) and not os.path.isfile(path)
