"""A run: how far it is, what it has seen, and how long its engine took."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from tf2dist.life import saved
from tf2dist.life.cycle import Cycle, Finder
from tf2dist.life.engines import Engine


class Run:
    """Generations of one board.

    Attributes:
      state, generation: how far it is.
      seconds: that the engine took, without the time in which its graphs were compiled.
      finder: looks for a cycle, if one is wanted.
      populations: of all generations from the first on, a list of i64[n], if a curve is wanted.
    """

    def __init__(self, engine: Engine, board: np.ndarray, generation: int = 0, *, cycle: bool = False, curve=False):
        self.engine, self.began = engine, generation
        self.state, self.generation, self.seconds = engine.load(board), generation, 0.0
        self.finder = Finder(engine, self.state, generation) if cycle else None
        self.populations = [np.array([engine.look(self.state)[1]])] if curve else None
        # Compiles what will be called, before a clock is started.
        if cycle or curve:
            engine.watched(self.state, 1)
        engine.same(engine.advance(self.state, 1), self.state)

    @property
    def cycle(self) -> Cycle | None:
        return self.finder.cycle if self.finder else None

    def advance(self, generations: int) -> None:
        """So many generations more, or up to the one at which a cycle is noticed."""
        began, before = time.perf_counter(), self.generation
        populations = None
        if self.finder:
            populations = self.finder.advance(generations)
            self.state, self.generation = self.finder.state, self.finder.generation
        else:
            if self.populations is None:
                self.state = self.engine.advance(self.state, generations)
            else:
                self.state, _, populations = self.engine.watched(self.state, generations)
            self.generation = before + generations
        self.seconds += time.perf_counter() - began
        if self.populations is not None and populations is not None:
            self.populations.append(populations)

    def generations_per_second(self) -> float:
        return (self.generation - self.began) / self.seconds if self.seconds else 0.0

    def board(self) -> np.ndarray:
        """Words u64[rows, w]; to be called by all processes of a job together."""
        return self.engine.words(self.state)

    def save(self, folder: str, key: str, writes: bool) -> None:
        """Saves it for `resume`; called by all processes of a job together, of which one writes."""
        board, memory = self.board(), self.finder.memory() if self.finder else {}
        if writes:
            saved.write(folder, saved.Saved(board, self.generation, key, memory))


def resume(engine: Engine, before: saved.Saved, **wanted: Any) -> Run:
    """The run that was saved; see `Run` for what can be wanted of it."""
    run = Run(engine, before.board, before.generation, **wanted)
    if run.finder and before.memory:
        run.finder.remember(before.memory)
    return run
