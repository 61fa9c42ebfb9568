"""Finds the generation from which a board repeats, and its period, exactly and in bounded memory.

Each generation's hash is looked up among those of earlier generations. A hit is verified by comparing the two boards;
the older one is computed again from a stored state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trainers.life.engines import Engine

_MIN_BATCH, _MAX_BATCH = 64, 4096  # generations that are computed before their hashes are looked up


@dataclass(frozen=True)
class Cycle:
    """The board of generation `first`, the earliest that repeats, appears again after `period` generations."""

    first: int
    period: int


class CycleFinder:
    """Advances a run until a board repeats.

    Holds at most `hashes` hashes and `states` states. When full, it drops about every second one and records half as
    many from then on: a cycle is then noticed later, by at most the interval between recorded generations, but its
    start and period are still exact.

    Attributes:
      state, generation: of the run now.
      cycle: None until it is found.
    """

    def __init__(self, engine: Engine, state: Any, generation: int = 0, *, hashes: int = 2**18, states: int = 16):
        self._engine, self._most_hashes, self._most_states = engine, hashes, states
        self.state, self.generation = state, generation
        self.cycle: Cycle | None = None
        self._seen = {engine.observe(state)[0]: generation}  # generation by hash
        self._every = 1  # generations between two whose hashes are noted
        self._kept = {generation: state}  # in the order of generations; the first stays
        self._spacing = 1  # generations between two states that are kept, at least

    def advance(self, generations: int) -> np.ndarray:
        """Advances by `generations`, or until a cycle is noticed; returns the populations i64[n]."""
        populations, until = [np.empty(0, np.int64)], self.generation + generations
        while self.generation < until and not self.cycle:
            # At most half of what it has run, so that little is computed in vain after a cycle has closed.
            some = min(max(_MIN_BATCH, (self.generation - min(self._kept)) // 2), _MAX_BATCH)
            populations.append(self._advance(min(some, until - self.generation)))
        return np.concatenate(populations)

    def _advance(self, generations: int) -> np.ndarray:
        before = self.generation
        state, hashes, populations = self._engine.advance_observed(self.state, generations)
        for i, hashed in enumerate(hashes.tolist(), 1):
            now = before + i
            here = None
            while (earlier := self._seen.get(hashed)) is not None:
                here = self._engine.advance(self.state, i) if here is None else here
                if self._engine.equal(here, self._recompute(earlier)):
                    self.state, self.generation = here, now
                    self.cycle = Cycle(self._first_repeating(earlier, now - earlier), now - earlier)
                    return populations[:i]
                hashed += 1  # a hash collision: the second board is recorded at the next free hash
            self._record_hash(hashed, now)
        self.state, self.generation = state, before + generations
        self._store_state()
        return populations

    def memory(self) -> dict[str, np.ndarray]:
        """Returns its hashes and states, and the cycle, as arrays, for `restore_memory`."""
        return {
            "seen": np.array(list(self._seen), np.uint64),
            "seen_at": np.array(list(self._seen.values()), np.int64),
            "kept": np.stack([self._engine.board(state) for state in self._kept.values()]),
            "kept_at": np.array(list(self._kept), np.int64),
            "strides": np.array([self._every, self._spacing], np.int64),
            "cycle": np.array([self.cycle.first, self.cycle.period] if self.cycle else [], np.int64),
        }

    def restore_memory(self, memory: dict[str, np.ndarray]) -> None:
        """Restores the `memory` of a finder of the same run and engine, up to this one's state."""
        self._seen = dict(zip(memory["seen"].tolist(), memory["seen_at"].tolist(), strict=True))
        states = map(self._engine.load, memory["kept"])
        self._kept = dict(zip(memory["kept_at"].tolist(), states, strict=True))
        self._every, self._spacing = memory["strides"].tolist()
        if len(cycle := memory.get("cycle", ())):  # which the memory of an older program lacks
            self.cycle = Cycle(*map(int, cycle))

    def _record_hash(self, hashed: int, generation: int) -> None:
        if generation % self._every:
            return
        self._seen[hashed] = generation
        if len(self._seen) > self._most_hashes:
            self._every *= 2
            self._seen = {h: g for h, g in self._seen.items() if not g % self._every}

    def _store_state(self) -> None:
        if self.generation - max(self._kept) < self._spacing:
            return
        self._kept[self.generation] = self.state
        while len(self._kept) > self._most_states:
            self._spacing *= 2
            kept: dict[int, Any] = {}
            for generation, state in self._kept.items():
                if not kept or generation - max(kept) >= self._spacing:
                    kept[generation] = state
            self._kept = kept

    def _recompute(self, generation: int) -> Any:
        """Computes the state of an earlier generation again."""
        known = {**self._kept, self.generation: self.state}
        nearest = max(g for g in known if g <= generation)
        return self._engine.advance(known[nearest], generation - nearest)

    def _first_repeating(self, inside: int, period: int) -> int:
        """Returns the first generation whose board repeats after `period`, given a generation that does."""
        engine = self._engine
        for before in sorted((g for g in self._kept if g <= inside), reverse=True):
            state = self._kept[before]
            later = engine.advance(state, period)
            if not engine.equal(state, later):
                break
            inside = before
        else:
            return inside  # the run began inside the cycle
        # Binary search: the board of `before` does not repeat, that of `inside` does.
        while inside - before > 1:
            half = (inside - before) // 2
            there, there_later = engine.advance(state, half), engine.advance(later, half)
            if engine.equal(there, there_later):
                inside = before + half
            else:
                before, state, later = before + half, there, there_later
        return inside
