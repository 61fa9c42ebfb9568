"""Strips of rows: how many, how high, and the rows that neighbouring devices tell each other."""

from __future__ import annotations

import itertools
import math
import os
from dataclasses import dataclass

import tensorflow as tf

# What sizes are chosen by, measured on two cores with 1 MiB of second-level cache each and 32 MiB of a third level.
_STRIP_BYTES = 2**20  # of a strip, of which there are two at a time
_CALL_WORDS = 18_000  # words that are computed in the time that calling a compiled function takes
_MOST = 64  # generations: a halo has one word on either side


@dataclass(frozen=True)
class Plan:
    """The board's rows in strips, from top to bottom, `strips` of them on each replica.

    Attributes:
      starts: the first row of each strip, and the number of rows.
      halo: rows that a strip is given of its neighbours; generations that are computed between two exchanges.
    """

    starts: tuple[int, ...]
    strips: int
    halo: int

    def of(self, replica: int) -> list[tuple[int, int]]:
        """First row, and the row after the last, of each strip of a replica."""
        first = replica * self.strips
        return [(self.starts[i], self.starts[i + 1]) for i in range(first, first + self.strips)]


def plan(rows: int, width: int, replicas: int, *, strips: int | None = None, halo: int | None = None) -> Plan:
    """Divides rows of `width` words among replicas.

    Raises:
      ValueError: there are fewer rows than strips.
    """
    if rows < replicas * (strips or 1):
        raise ValueError(f"a board of {rows} rows is too small for {replicas * (strips or 1)} strips")
    if strips is None:
        share = rows / replicas
        cores = max(1, len(os.sched_getaffinity(0)) // replicas)
        # One a core, unless the board is so small that a second call costs more than it saves.
        cores = max(1, min(cores, int(share * width / (4 * _CALL_WORDS))))
        strips = max(1, min(math.ceil(share * width * 8 / _STRIP_BYTES / cores) * cores, int(share)))
    count = replicas * strips
    starts = tuple(rows * i // count for i in range(count + 1))
    least = min(b - a for a, b in itertools.pairwise(starts))
    if halo is None:
        # A pass costs a call and two copies of the strip, about 1.5 generations' worth; a row of halo costs itself
        # above and below in each generation.
        halo = round(math.sqrt((_CALL_WORDS / width + 1.5 * rows / count) / 2))
    return Plan(starts, strips, max(1, min(halo, least, _MOST)))


def exchange(top: tf.Tensor, bottom: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """In a replica: the rows above and below its own, u64[k, w] each, on a torus of all replicas' rows.

    Args:
      top, bottom: its own first and last rows, u64[k, w].
    """
    context = tf.distribute.get_replica_context()
    count = context.num_replicas_in_sync
    if count == 1:
        return bottom, top
    borders = tf.bitcast(tf.stack([top, bottom])[None], tf.int64)  # collectives know no unsigned numbers
    everyones = tf.bitcast(context.all_gather(borders, 0), tf.uint64)  # [replicas, 2, k, w]
    everyones = tf.ensure_shape(everyones, [count, 2, *top.shape])
    mine = context.replica_id_in_sync_group
    return everyones[(mine - 1) % count, 1], everyones[(mine + 1) % count, 0]
