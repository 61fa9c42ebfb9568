"""The command `python -m launch BACKEND [options] -- MODULE_OR_SCRIPT [args]`, which is also `tf2dist launch ...`."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn, cast

from tf2dist.errors import UsageError, printable
from tf2dist.launch import backend
from tf2dist.launch.backend import Backend
from tf2dist.system import linux, standard_output
from tf2dist.system.commands import Parser, as_called


class _LaunchParser(Parser):
    """Begins every error with "launch: BACKEND:", as the other errors of this command do."""

    def error(self, message: str) -> NoReturn:
        raise SystemExit(_refuse(f"{self.prog.split()[-1]}: {message}"))


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit status: 2, with one line that says why, for a wrong command."""
    linux.open_closed_streams()
    linux.wait_for_children_oneself()
    linux.allow_many_files()  # three for each task or host
    try:
        os.getcwd()
    except FileNotFoundError:
        return _refuse("the working directory is gone; go to one that is there")
    with contextlib.suppress(AttributeError):  # of something that a program has in place of its standard output
        cast(io.TextIOWrapper, sys.stdout).reconfigure(errors="surrogateescape")  # paths need not be text
    if not arguments or arguments[0] in ("-h", "--help"):
        to = sys.stdout if arguments else sys.stderr
        print(f"usage: {_usage()}\n", file=to)
        for name in backend.NAMES:
            print(f"  {name:8} {backend.find(name).summary}", file=to)
        return 0 if arguments else 2
    name, *rest = arguments
    if name not in backend.NAMES:
        return _refuse(f"there is no launcher {name!r}; there is {', '.join(backend.NAMES)}")
    chosen = backend.find(name)
    own, program = rest, []
    if "--" in rest:
        own, program = rest[: rest.index("--")], rest[rest.index("--") + 1 :]
    options, unknown = _parser(name, chosen).parse_known_args(own)
    if unknown:
        hint = "" if program else f"; the program comes after --, as in: {_usage(name)}"
        return _refuse(f"{name}: unrecognized arguments: {' '.join(unknown)}{hint}")
    if not program:
        return _refuse(f"{name}: no program; name a module or a script after --, as in: {_usage(name)}")
    try:
        return chosen.start(options, program)
    except UsageError as error:
        return _refuse(f"{name}: {error}")


def run() -> int | str | None:
    """Runs the command with this process's arguments; returns its exit status, as `standard_output.run`."""
    return standard_output.run(main)


def _usage(name: str = "NAME") -> str:
    return f"{as_called('launch', 'launch')} {name} [options] -- MODULE_OR_SCRIPT [args]"


def _parser(name: str, chosen: Backend) -> Parser:
    parser = _LaunchParser(
        prog=f"{as_called('launch', 'launch')} {name}",
        usage=_usage(name),
        description=chosen.summary,
        allow_abbrev=False,
    )
    chosen.add_arguments(parser)
    return parser


def _refuse(message: str) -> int:
    print(f"launch: {printable(message)}", file=sys.stderr)
    return 2
