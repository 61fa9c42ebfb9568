"""Lists the distributed concepts of TensorFlow 1 in programs: python -m tf2dist.migrate FILE...

It changes nothing, and imports and runs nothing of the files. Exit status: 0 all files were read, 1 one could not be,
2 the command was wrong.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence

from tf2dist.migrate import source
from tf2dist.migrate.uses import uses

_CODING = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tf2dist.migrate", allow_abbrev=False)
    parser.add_argument("files", metavar="FILE", nargs="+", help="a program, or a directory of them")
    options = parser.parse_args(arguments)
    for path in options.files:
        if not os.path.exists(path):
            print(f"tf2dist.migrate: there is no file {path}", file=sys.stderr)
            return 2
    status, rows, count, files = 0, {}, 0, 0
    for path in _programs(options.files):
        try:
            text = _read(path)
        except OSError as error:
            print(f"tf2dist.migrate: {path} cannot be read: {error.strerror or error}", file=sys.stderr)
            status = 1
            continue
        files += 1
        if error := source.syntax_error(text):
            print(f"{path}: this Python cannot parse it ({error}), perhaps it is for Python 2; read by its words")
        for use in uses(text):
            print(f"{path}:{use.line}: {use.symbol}  [{use.concept.row}] {use.concept.here}")
            rows[use.concept.row] = use.concept
            count += 1
    what = f"{count} uses of {len(rows)} concepts" if count else "no distributed concept of TensorFlow 1"
    print(f"{what} in {files} {'file' if files == 1 else 'files'}" + ("; docs/mapping.md#ROW says more" * bool(count)))
    return status


def _programs(paths: Sequence[str]) -> Iterator[str]:
    for path in paths:
        if not os.path.isdir(path):
            yield path
            continue
        for folder, folders, names in os.walk(path):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            yield from (os.path.join(folder, name) for name in sorted(names) if name.endswith(".py"))


def _read(path: str) -> str:
    """The text of a program in the encoding that it names, else UTF-8; no byte is an error."""
    with open(path, "rb") as file:
        data = file.read()
    named = next((m[1] for line in data.split(b"\n")[:2] if (m := _CODING.match(line))), b"utf-8")
    try:
        text = data.decode(named.decode("ascii"), "replace")
    except LookupError:
        text = data.decode("utf-8", "replace")
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


if __name__ == "__main__":
    try:
        status = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        status = 1
    raise SystemExit(status)
