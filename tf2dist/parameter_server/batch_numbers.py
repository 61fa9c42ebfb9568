"""Batch numbers: each is handed out once, to whichever worker asks next."""

from __future__ import annotations

from collections.abc import Iterable


class BatchNumbers:
    """Hands out consecutive numbers from `first` on; those that come back unused first.

    So a pass over the data is complete, and no batch of it is used twice, whichever workers are slow or lost.
    """

    def __init__(self, first: int):
        self._next = first
        self._unused: list[range] = []

    @property
    def has_gaps(self) -> bool:
        """Whether unused numbers come before others that were handed out."""
        return bool(self._unused)

    def is_unused(self, number: int) -> bool:
        """Whether the number is still to be handed out, again or for the first time."""
        return number >= self._next or any(number in numbers for numbers in self._unused)

    def hand_out(self, most: int) -> range:
        """Hands out the next numbers: up to `most` consecutive ones, and at least one."""
        if not self._unused:
            self._next += most
            return range(self._next - most, self._next)
        first, *others = self._unused
        self._unused = [first[most:], *others] if len(first) > most else others
        return first[:most]

    def take_back(self, unused: Iterable[range]) -> None:
        """Takes back numbers that were handed out and not used."""
        merged: list[range] = []
        for numbers in sorted([*self._unused, *filter(None, unused)], key=lambda numbers: numbers.start):
            if merged and merged[-1].stop == numbers.start:
                numbers = range(merged.pop().start, numbers.stop)
            merged.append(numbers)
        if merged and merged[-1].stop == self._next:  # no later one was handed out
            self._next = merged.pop().start
        self._unused = merged
