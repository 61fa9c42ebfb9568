"""Whom the input tells that it moves on, or waits: who watches a job for stalls."""

# pyright: strict

from __future__ import annotations

from typing import Protocol


class InputProgress(Protocol):
    """What is told of batches that Python makes."""

    def moves(self) -> None:
        """Notes that data is read without a step: it is counted, or read again up to where training goes on."""
        ...

    def waits_for_input(self, waits: bool) -> None:
        """Notes whether a batch has not come for some time; in the thread that takes it."""
        ...


class Unwatched:
    """Nobody watches. An `InputProgress`."""

    def moves(self) -> None:
        """See `InputProgress`."""

    def waits_for_input(self, waits: bool) -> None:
        """See `InputProgress`."""
