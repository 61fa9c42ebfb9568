"""Lists the distributed concepts of TensorFlow 1 in programs: python -m tf2dist.migrate FILE...

It changes nothing, and imports and runs nothing of the files. Exit status: 0 all files were read, 1 one could not be,
2 the command was wrong, 141 nobody reads the output. What can be read is read in any case.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence

from tf2dist.migrate import python_tokens
from tf2dist.migrate.concepts import Concept
from tf2dist.migrate.uses import uses
from tf2dist.system import standard_output
from tf2dist.system.commands import Parser, as_called

_CODING = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit status."""
    parser = Parser(prog=as_called("migrate", "tf2dist.migrate"), allow_abbrev=False)
    parser.add_argument("files", metavar="FILE", nargs="+", help="a program, or a directory of them")
    options = parser.parse_args(arguments)
    status, count, files = 0, 0, 0
    rows: dict[str, Concept] = {}
    for path in options.files:
        if not os.path.lexists(path):
            print(f"tf2dist.migrate: there is no file {path}", file=sys.stderr)
            status = 2
    for path in _programs(options.files):
        try:
            text = _read(path)
        except (OSError, ValueError) as error:
            said = error if isinstance(error, ValueError) else f"cannot be read: {error.strerror or error}"
            print(f"tf2dist.migrate: {path} {said}", file=sys.stderr)
            status = status or 1
            continue
        files += 1
        if error := python_tokens.syntax_error(text):
            print(f"{path}: this Python cannot parse it ({error}), perhaps it is for Python 2; read by its words")
        for use in uses(text):
            print(f"{path}:{use.line}: {use.symbol}  [{use.concept.row}] {use.concept.here}")
            rows[use.concept.row] = use.concept
            count += 1
    if status == 2 and not files:
        return status
    what = f"{count} uses of {len(rows)} concepts" if count else "no distributed concept of TensorFlow 1"
    print(f"{what} in {files} {'file' if files == 1 else 'files'}" + ("; docs/mapping.md#ROW says more" * bool(count)))
    return status


def _programs(paths: Sequence[str]) -> Iterator[str]:
    for path in paths:
        if not os.path.isdir(path):
            yield from [path] if os.path.lexists(path) else []
            continue
        for folder, folders, names in os.walk(path):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            yield from (os.path.join(folder, name) for name in sorted(names) if name.endswith((".py", ".ipynb")))


def _read(path: str) -> str:
    """The text of a program in the encoding that it names, else UTF-8; no byte is an error.

    Raises:
      OSError: it cannot be read.
      ValueError: it is no program.
    """
    if path.endswith(".ipynb"):
        raise ValueError("is a notebook; `jupyter nbconvert --to script` makes a program of it")
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError("is no program: it is no regular file")
    with open(path, "rb") as file:
        data = file.read()
    if b"\0" in data:
        raise ValueError("is no program: it holds bytes that are no text")
    named = next((m[1] for line in data.split(b"\n")[:2] if (m := _CODING.match(line))), b"utf-8").decode("ascii")
    try:
        text = data.decode(named if "a".encode(named) == b"a" else "utf-8", "replace")
    except (LookupError, UnicodeError):
        text = data.decode("utf-8", "replace")
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


if __name__ == "__main__":
    sys.exit(standard_output.run(main))
