"""The interface of launch backends: what starts the tasks of a job."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from typing import Protocol

NAMES = ("local", "ssh", "slurm", "k8s")  # each is `BACKEND` in the module of its name in `tf2dist.launch.backends`


class Backend(Protocol):
    """Starts the tasks of a job, or prints what starts them.

    To add one: write the class in a module of `tf2dist.launch.backends`, make `BACKEND` an instance of it, and add the
    module's name to `NAMES`. `cluster_layout` holds the options that all backends share.

    Attributes:
      summary: one line for `python -m launch --help`.
    """

    summary: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options that stand between the backend's name and `--`."""
        ...

    def start(self, options: argparse.Namespace, program: Sequence[str]) -> int:
        """Starts the job.

        Args:
          options: the parsed options.
          program: a module or a script, and its arguments; not empty.

        Returns:
          The exit status of `python -m launch`: that of the job where the backend waits for its end, else 0 when the
          job was submitted or printed.

        Raises:
          UsageError: the options or the program are wrong; nothing was started.
        """
        ...


def find(name: str) -> Backend:
    """Returns the backend of a name in `NAMES`; imports only that one's module."""
    backend: Backend = importlib.import_module(f"tf2dist.launch.backends.{name}").BACKEND
    return backend
