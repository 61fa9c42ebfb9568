"""Which paths can be used: those of local and mounted file systems, and no URLs of object stores."""

import os
import re

from tf2dist.errors import UsageError

# pathlib.Path("gs://bucket") has one slash.
_URL = re.compile(r"(gs|s3a?|hdfs|https?|file|[A-Za-z][A-Za-z0-9+.-]*(?=://)):/+(.*)", re.DOTALL)


def check_local(named: str, path: str | os.PathLike[str]) -> None:
    """Raises UsageError for a URL; where it is taken for a path, a directory called `gs:` is made.

    Args:
      named: how the user has named the path, as "--logdir=gs://bucket/x", for the message.
      path: of a file or directory, which need not exist.
    """
    if url := _URL.match(os.fspath(path)):
        place = url[2] if url[1].lower() == "file" else f"mnt/{url[2]}"
        raise UsageError(
            f"{named} is a URL, and files are read and written on local and mounted file systems only; mount it and "
            f"give the path, as /{place.lstrip('/')}"
        )
