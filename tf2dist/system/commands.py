"""The argument parser of this project's commands."""

import argparse
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """A parser that reports a wrong command in one line, without argparse's usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}; see --help\n")
