"""Commands: python -m tf2dist.something."""

import argparse


class Parser(argparse.ArgumentParser):
    """Tells what is wrong with a command in one line, where argparse prints the usage too."""

    def error(self, message: str):
        self.exit(2, f"{self.prog}: error: {message}; see --help\n")
