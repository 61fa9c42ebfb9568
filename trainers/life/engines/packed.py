"""The engine that computes 64 cells a word, in strips of rows, on one device or on all replicas of a strategy."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from tf2dist.runtime import devices
from trainers.life import halo_exchange, packed_board, rule_diagram, strips_in_cache
from trainers.life.engines import packed_strip
from trainers.life.rule import Rule

_MIN_TORUS_COLUMNS = 128  # so that a word beyond an edge holds other cells than the word beside it
_MAX_OBSERVED = 4096  # generations in one call


class Packed:
    """The fastest engine. Its state is, on each replica, a tuple of strips u64[h, w].

    Strips that fit a core's cache are computed several generations at a time, on all cores. On a GPU a replica has one
    strip: its kernels run one after the other, and each of them keeps all multiprocessors busy. Replicas exchange halo
    rows with tf.distribute's collectives after as many generations.

    Args:
      strategy: of the replicas; the default device alone if not given.
      strips, halo: see `trainers.life.strips_in_cache.plan`, which chooses them.
    """

    def __init__(
        self,
        rule: Rule,
        rows: int,
        columns: int,
        edges: str,
        strategy: tf.distribute.Strategy | None = None,
        *,
        strips: int | None = None,
        halo: int | None = None,
    ):
        self._rows, self._columns, self._edges = rows, columns, edges
        # A narrow torus is repeated side by side, so that the board is wide enough.
        self._copies = -(-_MIN_TORUS_COLUMNS // columns) if edges == "torus" else 1
        self._strategy = strategy or tf.distribute.get_strategy()
        self._replicas = self._strategy.num_replicas_in_sync
        width = packed_board.width(columns * self._copies)
        if strips is None and _on_accelerators(strategy):
            strips = 1
        self.plan = strips_in_cache.plan(rows, width, self._replicas, strips=strips, halo=halo)
        kernel = functools.partial(
            packed_strip.advance, columns=columns * self._copies, edges=edges, diagram=rule_diagram.compile_rule(rule)
        )
        self._kernel = tf.function(kernel, jit_compile=True)
        looking = functools.partial(packed_strip.observe, columns=columns * self._copies)
        self._strip_look = tf.function(looking, jit_compile=True)
        self._advance = tf.function(functools.partial(self._generations, observe=False))
        self._advance_observed = tf.function(functools.partial(self._generations, observe=True))
        self._observe = tf.function(lambda state: self._run(self._sums, state))
        self._differences = tf.function(lambda one, other: self._run(self._compare, one, other))
        self._all_rows = tf.function(lambda state: self._run(self._gather, state))

    def load(self, board: np.ndarray) -> Any:
        if self._copies > 1:
            board = packed_board.pack(np.tile(packed_board.unpack(board, self._columns), self._copies))

        def part(index: int, replica: int) -> tf.Tensor:
            first, last = self.plan.of(replica)[index]
            return tf.constant(board[first:last])

        return tuple(self._values(functools.partial(part, i)) for i in range(self.plan.strips))

    def board(self, state: Any) -> np.ndarray:
        rows = self._local(self._all_rows(state))[0].numpy()
        return rows if self._copies == 1 else packed_board.pack(packed_board.unpack(rows, self._columns))

    def advance(self, state: Any, generations: int) -> Any:
        return self._advance(state, tf.constant(generations))[0]

    def advance_observed(self, state: Any, generations: int) -> tuple[Any, np.ndarray, np.ndarray]:
        hashes, populations = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
        for done in range(0, generations, _MAX_OBSERVED):
            state, seen = self._advance_observed(state, tf.constant(min(_MAX_OBSERVED, generations - done)))
            seen = self._local(seen)[0].numpy()  # i64[2, n]: the same on all replicas
            hashes.append(seen[0].view(np.uint64))
            populations.append(seen[1] // self._copies)
        return state, np.concatenate(hashes), np.concatenate(populations)

    def observe(self, state: Any) -> tuple[int, int]:
        hashed, population = self._local(self._observe(state))[0].numpy().tolist()
        return hashed % 2**64, population // self._copies

    def equal(self, one: Any, other: Any) -> bool:
        return int(self._local(self._differences(one, other))[0]) == 0

    def _run(self, function, *parts):
        """Calls `function` in every replica with its part of the arguments, in a graph."""
        return function(*parts) if self._replicas == 1 else self._strategy.run(function, parts)

    def _generations(self, state, generations: tf.Tensor, observe: bool):
        """The state so many generations later; if observeed, hashes and populations i64[2, generations] too.

        The loop is around the replicas, since tf.distribute lets them meet in no loop of their own.
        """
        most = self.plan.halo
        passes = -(-generations // most)
        seen = tf.TensorArray(tf.int64, passes, element_shape=[2, most])
        for i in tf.range(passes):
            now = tf.minimum(most, generations - i * most)
            state, sums = self._run(functools.partial(self._pass, observe=observe), state, now)
            if observe:
                seen = seen.write(i, self._local(sums)[0])
        if not observe:
            return state, None
        return state, tf.reshape(tf.transpose(seen.stack(), [1, 0, 2]), [2, -1])[:, :generations]

    def _pass(self, state: tuple[tf.Tensor, ...], generations: tf.Tensor, observe: bool):
        """In a replica: `halo` generations at most; if observeed, sums i64[2, halo] over all replicas too."""
        most, rows = self.plan.halo, self.plan.of(self._index())
        shaped = zip(state, rows, strict=True)
        state = tuple(tf.ensure_shape(strip, [last - first, strip.shape[1]]) for strip, (first, last) in shaped)
        above, below = halo_exchange.exchange(state[0][:most], state[-1][-most:])
        around = zip(
            [above, *(strip[-most:] for strip in state[:-1])],
            state,
            [*(strip[:most] for strip in state[1:]), below],
            [generations] * len(rows),
            [self._walls(*strip) for strip in rows],
            [tf.constant(first, tf.uint64) if observe else None for first, _ in rows],
            strict=True,
        )
        # Strips are independent of each other, so TensorFlow computes as many at a time as there are cores.
        done = [self._kernel(*each) for each in around]
        sums = self._total(_sum([tf.bitcast(sums, tf.int64) for _, sums in done])) if observe else None
        return tuple(strip for strip, _ in done), sums

    def _sums(self, state: tuple[tf.Tensor, ...]) -> tf.Tensor:
        """Returns hash and population i64[2] of the board."""
        starts = [tf.constant(first, tf.uint64) for first, _ in self.plan.of(self._index())]
        parts = [self._strip_look(rows, start) for rows, start in zip(state, starts, strict=True)]
        return self._total(_sum([tf.bitcast(sums, tf.int64) for sums in parts]))

    def _walls(self, first: int, last: int) -> tf.Tensor | None:
        """Where cells can live in and around the rows of a strip, as `packed_strip.advance` takes it."""
        if self._edges == "torus":
            return None
        most = self.plan.halo
        rows = tf.range(first - most, last + most)[:, None]
        columns = tf.constant(packed_strip.column_mask(self._columns))[None]
        return tf.where((rows >= 0) & (rows < self._rows), columns, tf.zeros_like(columns))

    def _total(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the sum i64[...] over all replicas."""
        if self._replicas == 1:
            return value
        return tf.bitcast(halo_exchange.add(tf.bitcast(value, tf.uint64)), tf.int64)

    def _compare(self, one: tuple[tf.Tensor, ...], other: tuple[tf.Tensor, ...]) -> tf.Tensor:
        """Counts the words that differ, over all replicas."""
        return self._total(_sum([tf.math.count_nonzero(a != b) for a, b in zip(one, other, strict=True)]))

    def _gather(self, state: tuple[tf.Tensor, ...]) -> tf.Tensor:
        """Returns all rows of all replicas, u64[rows, w]."""
        rows = tf.concat(state, 0)
        return rows if self._replicas == 1 else halo_exchange.gather(rows)

    def _values(self, function):
        if self._replicas == 1:
            return function(0)
        values = self._strategy.experimental_distribute_values_from_function(
            lambda context: function(int(context.replica_id_in_sync_group))
        )
        # Plain tensors where a process has one replica: `run` returns those, and a loop needs the same type throughout.
        return values if len(self._local(values)) > 1 else self._local(values)[0]

    def _local(self, value) -> tuple:
        return self._strategy.experimental_local_results(value)

    def _index(self) -> int:
        """Returns the number of the replica that is being traced; each has a graph of its own."""
        if self._replicas == 1:
            return 0
        index = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
        assert index is not None, "replicas are traced one by one"
        return int(index)


def _on_accelerators(strategy: tf.distribute.Strategy | None) -> bool:
    """Does the engine compute on anything but CPUs? Without a strategy it is on a GPU if TensorFlow sees one."""
    if strategy is None and not tf.distribute.has_strategy():
        return bool(tf.config.get_visible_devices("GPU"))
    return devices.on_accelerators(strategy or tf.distribute.get_strategy())


def _sum(values: list[tf.Tensor]) -> tf.Tensor:
    """Adds tensors; `tf.add_n` logs a warning that oneDNN has no AddN for int64."""
    return tf.reduce_sum(tf.stack(values), 0)
