"""A simulation of one board: its generation, its populations and cycle, and how long the engine took."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from trainers.life import saved_run
from trainers.life.cycle_finder import Cycle, CycleFinder
from trainers.life.engines import Engine


class Simulation:
    """Advances one board.

    Args:
      cycle: whether to look for a cycle.
      curve: whether to keep all populations.

    Attributes:
      state, generation: now.
      seconds: spent in the engine, without compilation.
      finder: a `CycleFinder`, or None.
      populations: of all generations up to this one that are known, a list of i64[n], or None.
    """

    def __init__(self, engine: Engine, board: np.ndarray, generation: int = 0, *, cycle: bool = False, curve=False):
        self.engine, self.began = engine, generation
        self.state, self.generation, self.seconds = engine.load(board), generation, 0.0
        self.finder = CycleFinder(engine, self.state, generation) if cycle else None
        self.populations = [np.array([engine.observe(self.state)[1]])] if curve else None
        # Compiles the functions before time is measured.
        if cycle or curve:
            engine.advance_observed(self.state, 1)
        engine.equal(engine.advance(self.state, 1), self.state)

    @property
    def cycle(self) -> Cycle | None:
        return self.finder.cycle if self.finder else None

    def advance(self, generations: int) -> None:
        """Advances by `generations`, or until a cycle is noticed."""
        began, before = time.perf_counter(), self.generation
        populations = None
        if self.finder:
            populations = self.finder.advance(generations)
            self.state, self.generation = self.finder.state, self.finder.generation
        else:
            if self.populations is None:
                self.state = self.engine.advance(self.state, generations)
            else:
                self.state, _, populations = self.engine.advance_observed(self.state, generations)
            self.generation = before + generations
        self.seconds += time.perf_counter() - began
        if self.populations is not None and populations is not None:
            self.populations.append(populations)

    def generations_per_second(self) -> float:
        return (self.generation - self.began) / self.seconds if self.seconds else 0.0

    def board(self) -> np.ndarray:
        """Returns the packed board u64[rows, w]. All processes of a job must call it together."""
        return self.engine.board(self.state)

    @property
    def populations_from(self) -> int:
        """The generation of the first of the `populations`."""
        return self.generation + 1 - sum(map(len, self.populations or ()))

    def save(self, folder: str, key: str, beginning: str, writes: bool) -> None:
        """Saves the run for `resume`. All processes of a job must call it together; one of them `writes`."""
        board, memory = self.board(), self.finder.memory() if self.finder else {}
        if writes:
            populations = np.concatenate(self.populations) if self.populations else None
            saved_run.write(folder, saved_run.SavedRun(board, self.generation, key, memory, beginning, populations))


def resume(engine: Engine, before: saved_run.SavedRun, **wanted: Any) -> Simulation:
    """Continues a saved run; `wanted` are keyword arguments of `Simulation`."""
    simulation = Simulation(engine, before.board, before.generation, **wanted)
    if simulation.finder and before.memory:
        simulation.finder.restore_memory(before.memory)
    if simulation.populations and before.populations is not None:
        simulation.populations = [before.populations]
    return simulation
