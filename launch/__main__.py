"""python -m launch NAME [options] -- MODULE_OR_SCRIPT [args]"""

from __future__ import annotations

import sys

# Modules with a docstring, add_arguments(parser) and start(options, program) -> exit status.
LAUNCHERS = ("local", "ssh", "slurm", "k8s")
USAGE = "python -m launch NAME [options] -- MODULE_OR_SCRIPT [args]"


def main(arguments: list[str]) -> int:
    """Runs a launcher; returns the exit status: 2 for a command that is wrong, with one line that says what."""
    import importlib
    import os

    from launch import UsageError

    for fd in (0, 1, 2):  # one that the caller closed would become one of our pipes
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number, this one
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: {USAGE}\n", file=sys.stdout if arguments else sys.stderr)
        for name in LAUNCHERS:
            about = importlib.import_module(f"launch.{name}").__doc__ or ""
            print(f"  {name:8} {about.splitlines()[0]}", file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    name, *rest = arguments
    if name not in LAUNCHERS:
        return _wrong(f"there is no launcher {name!r}; there is {', '.join(LAUNCHERS)}")
    launcher = importlib.import_module(f"launch.{name}")
    own, program = rest, []
    if "--" in rest:
        own, program = rest[: rest.index("--")], rest[rest.index("--") + 1 :]
    options = _parser(name, launcher).parse_args(own)
    if not program:
        return _wrong(f"{name}: no program; name a module or a script after --, as in: {USAGE}")
    try:
        return launcher.start(options, program)
    except UsageError as error:
        return _wrong(f"{name}: {error}")


def _parser(name: str, launcher):
    import argparse

    class Parser(argparse.ArgumentParser):
        def error(self, message: str):  # in one line, where argparse prints the usage too
            raise SystemExit(_wrong(f"{name}: {message}"))

    parser = Parser(
        prog=f"python -m launch {name}",
        usage=USAGE.replace("NAME", name),
        description=launcher.__doc__,
        allow_abbrev=False,
    )
    launcher.add_arguments(parser)
    return parser


def _wrong(message: str) -> int:
    print(f"launch: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
