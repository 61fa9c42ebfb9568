"""What this project's commands share: their argument parser, and what they are called."""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from tf2dist.errors import printable


def as_called(command: str, module: str) -> str:
    """A command as the user has called it: through the console command, or its module."""
    return f"tf2dist {command}" if os.path.basename(sys.argv[0]) == "tf2dist" else f"python -m {module}"


class Parser(argparse.ArgumentParser):
    """A parser that reports a wrong command in one line, without argparse's usage."""

    def parse_known_args(  # type: ignore[override]  # argparse's has overloads
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """As in argparse, which makes an empty list of the value in `--name=--`."""
        for argument in sys.argv[1:] if args is None else args:
            if re.fullmatch(r"--\w+=--", argument):
                self.error(f"argument {argument[:-3]}: expected another value than --")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {printable(message)}; see --help\n")
