"""Partitions a board into strips of rows that fit a core's cache."""

from __future__ import annotations

import itertools
import math
import os
from dataclasses import dataclass

from tf2dist.errors import UsageError

# Measured on two cores with 1 MiB of L2 cache each and 32 MiB of L3.
_STRIP_BYTES = 2**20  # of a strip; two are held at a time
_CALL_WORDS = 18_000  # words that are computed in the time of a call of a compiled function
_MAX_HALO = 64  # generations: a strip has one word, 64 cells, on either side


@dataclass(frozen=True)
class Plan:
    """A partition of the board's rows into strips, from top to bottom, `strips` of them on each replica.

    Attributes:
      starts: the first row of each strip, and the number of rows.
      halo: rows that a strip gets from each neighbour, and generations between two exchanges.
    """

    starts: tuple[int, ...]
    strips: int
    halo: int

    def of(self, replica: int) -> list[tuple[int, int]]:
        """Returns the first row, and the row after the last, of each strip of a replica."""
        first = replica * self.strips
        return [(self.starts[i], self.starts[i + 1]) for i in range(first, first + self.strips)]


def plan(rows: int, width: int, replicas: int, *, strips: int | None = None, halo: int | None = None) -> Plan:
    """Divides rows of `width` words among replicas.

    Raises:
      UsageError: there are fewer rows than strips.
    """
    if rows < replicas * (strips or 1):
        raise UsageError(f"a board of {rows} rows is too small for {replicas * (strips or 1)} strips")
    if strips is None:
        share = rows / replicas
        cores = max(1, len(os.sched_getaffinity(0)) // replicas)
        # One strip a core, unless the board is so small that a second call costs more than it saves.
        cores = max(1, min(cores, int(share * width / (4 * _CALL_WORDS))))
        strips = max(1, min(math.ceil(share * width * 8 / _STRIP_BYTES / cores) * cores, int(share)))
    count = replicas * strips
    starts = tuple(rows * i // count for i in range(count + 1))
    least = min(b - a for a, b in itertools.pairwise(starts))
    if halo is None:
        # A pass costs a call and two copies of the strip, about 1.5 generations' worth; a row of halo costs itself
        # above and below in each generation.
        halo = round(math.sqrt((_CALL_WORDS / width + 1.5 * rows / count) / 2))
    return Plan(starts, strips, max(1, min(halo, least, _MAX_HALO)))
