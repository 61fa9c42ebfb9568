"""Which paths are those of local and mounted file systems, and which are URLs."""

import os
import re

from tf2dist.errors import UsageError

# pathlib.Path("gs://bucket") has one slash.
_URL = re.compile(r"(gs|s3a?|hdfs|https?|file|[A-Za-z][A-Za-z0-9+.-]*(?=://)):/+(.*)", re.DOTALL)


def split_url(path: str | os.PathLike[str]) -> tuple[str, str] | None:
    """Returns a URL's scheme, in lower case, and what follows its slashes; None for a path."""
    found = _URL.match(os.fspath(path))
    return (found[1].lower(), found[2]) if found else None


def check_local(named: str, path: str | os.PathLike[str]) -> None:
    """Raises UsageError for a URL; where it is taken for a path, a directory called `gs:` is made.

    Args:
      named: how the user has named the path, as "--logdir=gs://bucket/x", for the message.
      path: of a file or directory, which need not exist.
    """
    if url := split_url(path):
        scheme, rest = url
        place = rest if scheme == "file" else f"mnt/{rest}"
        raise UsageError(
            f"{named} is a URL, and files are read and written on local and mounted file systems only; mount it and "
            f"give the path, as /{place.lstrip('/')}"
        )
