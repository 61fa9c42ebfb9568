"""The console command `tf2dist launch|doctor|migrate|convert-checkpoint|version`, or `python -m tf2dist`.

Imports no TensorFlow by itself.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
from collections.abc import Sequence

from tf2dist.system import standard_output

USAGE = "tf2dist COMMAND [arguments]"
# Each module has main(arguments) -> exit status.
COMMANDS = {
    "launch": ("tf2dist.launch.command_line", "start a job: on this machine, over ssh, on Slurm or on Kubernetes"),
    "doctor": ("tf2dist.doctor", "say what this process would be in a job, and what is in the way"),
    "migrate": ("tf2dist.migrate.__main__", "list the distributed concepts of TensorFlow 1 in programs"),
    "convert-checkpoint": (
        "tf2dist.convert_checkpoint.__main__",
        "fill a Keras 3 model from a TensorFlow 1 checkpoint",
    ),
    "version": ("tf2dist.__main__", "print the versions of tf2dist, TensorFlow, Keras and Python"),
}


def main(arguments: Sequence[str]) -> int:
    """Runs a command; returns its exit status: 2, with one line that says why, for a wrong command."""
    if not arguments or arguments[0] in ("-h", "--help"):
        to = sys.stdout if arguments else sys.stderr
        print(f"usage: {USAGE}\n", file=to)
        for name, (_, summary) in COMMANDS.items():
            print(f"  {name:20} {summary}", file=to)
        print("\n`tf2dist COMMAND --help` lists the arguments of a command.", file=to)
        return 0 if arguments else 2
    name, *rest = arguments
    if name in ("version", "--version"):
        if rest in (["-h"], ["--help"]):
            print(f"usage: tf2dist version\n\n{COMMANDS['version'][1]}; it takes no arguments")
            return 0
        if rest:
            return _refuse(f"version takes no arguments, found {rest[0]!r}")
        print(_version())
        return 0
    if name not in COMMANDS:
        return _refuse(f"there is no command {name!r}; there is {', '.join(COMMANDS)}")
    # `python -m` puts the working directory on the path, a console script does not; --model=MODULE:... is there.
    if name == "convert-checkpoint" and not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())
    status: int = importlib.import_module(COMMANDS[name][0]).main(rest)
    return status


def run() -> int | str | None:
    """Runs the command with this process's arguments; returns its exit status, as `standard_output.run`."""
    return standard_output.run(main)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    found: list[str] = []
    for package in ("tf2dist", "tensorflow", "keras"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"{package} (not installed)")
    return ", ".join([*found, f"Python {platform.python_version()}"])


def _refuse(message: str) -> int:
    print(f"tf2dist: {message}; see tf2dist --help", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(run())
