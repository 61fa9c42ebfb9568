"""Finds the generation from which a board repeats itself, and its period, exactly and in bounded memory.

Each generation's hash is looked up among those of generations before. A hit counts for nothing until the two boards
themselves have been compared, the older one computed again from a state that was kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tf2dist.life.engines import Engine

_FEW, _MANY = 64, 4096  # generations that are computed before their hashes are looked at


@dataclass(frozen=True)
class Cycle:
    """The board of generation `first` is the earliest one that comes back, for the first time after `period`."""

    first: int
    period: int


class Finder:
    """A run that is watched for its first board that comes back.

    Memory: as many hashes and states as are given here. When there is no room, about every second one is forgotten
    and half as many are noted from then on; a cycle may then be noticed as many generations later as lie between two
    that are noted, and is told no less exactly.

    Attributes:
      state, generation: how far the run is.
      cycle: once it is found.
    """

    def __init__(self, engine: Engine, state: Any, generation: int = 0, *, hashes: int = 2**18, states: int = 16):
        self._engine, self._most_hashes, self._most_states = engine, hashes, states
        self.state, self.generation = state, generation
        self.cycle: Cycle | None = None
        self._seen = {engine.look(state)[0]: generation}  # generation by hash
        self._every = 1  # generations between two whose hashes are noted
        self._kept = {generation: state}  # in the order of generations; the first stays
        self._spacing = 1  # generations between two states that are kept, at least

    def advance(self, generations: int) -> np.ndarray:
        """So many generations more, or up to the one at which a cycle is noticed; their populations i64[n]."""
        populations, until = [np.empty(0, np.int64)], self.generation + generations
        while self.generation < until and not self.cycle:
            # Half as long again as it has run, so that little is computed in vain after a cycle has closed.
            some = min(max(_FEW, (self.generation - min(self._kept)) // 2), _MANY)
            populations.append(self._advance(min(some, until - self.generation)))
        return np.concatenate(populations)

    def _advance(self, generations: int) -> np.ndarray:
        before = self.generation
        state, hashes, populations = self._engine.watched(self.state, generations)
        for i, hashed in enumerate(hashes.tolist(), 1):
            now = before + i
            here = None
            while (earlier := self._seen.get(hashed)) is not None:
                here = self._engine.advance(self.state, i) if here is None else here
                if self._engine.same(here, self._at(earlier)):
                    self.state, self.generation = here, now
                    self.cycle = Cycle(self._first(earlier, now - earlier), now - earlier)
                    return populations[:i]
                hashed += 1  # two boards of one hash: the second is noted in the next free place
            self._note(hashed, now)
        self.state, self.generation = state, before + generations
        self._keep()
        return populations

    def memory(self) -> dict[str, np.ndarray]:
        """What it remembers, to go on from with `remember`."""
        return {
            "seen": np.array(list(self._seen), np.uint64),
            "seen_at": np.array(list(self._seen.values()), np.int64),
            "kept": np.stack([self._engine.words(state) for state in self._kept.values()]),
            "kept_at": np.array(list(self._kept), np.int64),
            "strides": np.array([self._every, self._spacing], np.int64),
        }

    def remember(self, memory: dict[str, np.ndarray]) -> None:
        """Takes what another one remembered, of the same run under the same engine, up to this one's state."""
        self._seen = dict(zip(memory["seen"].tolist(), memory["seen_at"].tolist(), strict=True))
        states = map(self._engine.load, memory["kept"])
        self._kept = dict(zip(memory["kept_at"].tolist(), states, strict=True))
        self._every, self._spacing = memory["strides"].tolist()

    def _note(self, hashed: int, generation: int) -> None:
        if generation % self._every:
            return
        self._seen[hashed] = generation
        if len(self._seen) > self._most_hashes:
            self._every *= 2
            self._seen = {h: g for h, g in self._seen.items() if not g % self._every}

    def _keep(self) -> None:
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

    def _at(self, generation: int) -> Any:
        """The state of a generation before, computed again."""
        known = {**self._kept, self.generation: self.state}
        nearest = max(g for g in known if g <= generation)
        return self._engine.advance(known[nearest], generation - nearest)

    def _first(self, inside: int, period: int) -> int:
        """The first generation whose board comes back after `period`, given one that does."""
        engine = self._engine
        for before in sorted((g for g in self._kept if g <= inside), reverse=True):
            state = self._kept[before]
            later = engine.advance(state, period)
            if not engine.same(state, later):
                break
            inside = before
        else:
            return inside  # the run began inside the cycle
        # From the first that comes back on all do: `before` does not, `inside` does, and between them lies the change.
        while inside - before > 1:
            half = (inside - before) // 2
            there, there_later = engine.advance(state, half), engine.advance(later, half)
            if engine.same(there, there_later):
                inside = before + half
            else:
                before, state, later = before + half, there, there_later
        return inside
