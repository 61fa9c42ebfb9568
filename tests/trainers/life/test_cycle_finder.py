"""Cycles: the first generation and the period, exactly, however little is remembered."""

import hashlib

import numpy as np
import pytest

from tests.conftest import sampled
from tests.trainers.life.reference import first_cycle, generations
from trainers.life import classic_patterns, packed_board
from trainers.life.cycle_finder import Cycle, CycleFinder
from trainers.life.engines import make_engine
from trainers.life.rule import LIFE, parse


class Slow:
    """An engine of NumPy, whose hashes can be made as bad as a test wants."""

    def __init__(self, rule, edges, hashed):
        self._rule, self._edges, self._hashed = rule, edges, hashed
        self.computed = 0

    def load(self, board):
        return board

    def board(self, state):
        return state

    def advance(self, state, count):
        self.computed += count
        return generations(state, self._rule, self._edges, count)

    def advance_observed(self, state, count):
        seen = []
        for _ in range(count):
            state = self.advance(state, 1)
            seen.append(self.observe(state))
        hashes, populations = zip(*seen, strict=True)
        return state, np.array(hashes, np.uint64), np.array(populations)

    def observe(self, state):
        return self._hashed(state), int(state.sum())

    def equal(self, one, other):
        return bool((one == other).all())


def good(cells):
    return int.from_bytes(hashlib.sha256(cells).digest()[:8], "little")


def bad(cells):
    return good(cells) % 64  # many boards share one


MEMORIES = [{}, {"hashes": 30, "states": 4}, {"hashes": 7, "states": 2}, {"hashes": 500, "states": 1}]


@pytest.mark.parametrize("memory", MEMORIES, ids=str)
@pytest.mark.parametrize("hashed", [good, bad])
@pytest.mark.parametrize("seed", sampled([0, 1, 2, 3], [0], [1]))
def test_what_remembering_every_board_finds(seed, hashed, memory):
    cells = np.random.default_rng(seed).integers(0, 2, [9, 8 + seed], np.uint8)
    engine = Slow(LIFE, "torus", hashed)
    finder = CycleFinder(engine, cells, **memory)
    first, period = first_cycle(cells, LIFE, "torus")
    populations = []
    while not finder.cycle:
        populations += finder.advance(37).tolist()
        assert finder.generation < 20 * (first + period) + 100, "it should have been noticed"
        assert len(finder._seen) <= memory.get("hashes", 2**18)
        assert len(finder._kept) <= memory.get("states", 16)
    assert finder.cycle == Cycle(first, period)
    if not memory and hashed is good:
        assert finder.generation == first + period
    assert len(populations) == finder.generation
    assert populations[-1] == finder.state.sum()
    assert (finder.state == generations(cells, LIFE, "torus", finder.generation)).all()


def test_a_long_run_is_not_computed_over_and_over():
    cells = np.zeros([9, 40], np.uint8)
    cells[2:5, 2:5] = [[0, 1, 0], [0, 0, 1], [1, 1, 1]]  # a glider, back after 4 * lcm(9, 40) = 1,440 generations
    engine = Slow(LIFE, "torus", good)
    finder = CycleFinder(engine, cells, hashes=64, states=4)
    while not finder.cycle:
        finder.advance(100)
    assert finder.cycle == Cycle(0, 1440)
    assert engine.computed < 8 * 1440


@pytest.mark.slow
@pytest.mark.parametrize("name", ["conv", "packed"])
def test_engines(name, tf):
    cells = np.random.default_rng(5).integers(0, 2, [20, 33], np.uint8)
    wanted = Cycle(*first_cycle(cells, LIFE, "torus"))
    engine = make_engine(name, LIFE, 20, 33, "torus")
    for memory in MEMORIES[:2]:
        finder = CycleFinder(engine, engine.load(packed_board.pack(cells)), **memory)
        while not finder.cycle:
            finder.advance(100)
        assert finder.cycle == wanted


def test_what_it_remembers_can_be_gone_on_with(tf):
    engine = make_engine("conv", LIFE, 20, 30, "torus")
    board = np.zeros([20, 1], np.uint64)
    packed_board.place(board, classic_patterns.find("glider").cells, (0, 0))
    before = CycleFinder(engine, engine.load(board), hashes=16, states=4)
    before.advance(100)
    after = CycleFinder(engine, engine.load(engine.board(before.state)), before.generation, hashes=16, states=4)
    after.restore_memory({name: array.copy() for name, array in before.memory().items()})
    while not after.cycle:
        after.advance(100)
    assert after.cycle == Cycle(0, 240)


def test_a_cycle_that_was_found_is_remembered():
    blinker = np.zeros([9, 9], np.uint8)
    blinker[4, 3:6] = 1
    engine = Slow(LIFE, "torus", good)
    found = CycleFinder(engine, blinker)
    assert len(found.advance(10)) == 2
    again = CycleFinder(engine, found.state, found.generation)
    again.restore_memory(found.memory())
    assert again.cycle == Cycle(0, 2)
    assert len(again.advance(10)) == 0
    assert again.generation == 2
    older = {name: array for name, array in found.memory().items() if name != "cycle"}
    again = CycleFinder(engine, found.state, found.generation)
    again.restore_memory(older)
    again.advance(10)
    assert again.cycle == Cycle(0, 2)


def test_a_board_that_stays():
    still = np.zeros([5, 5], np.uint8)
    finder = CycleFinder(Slow(parse("B3/S23"), "dead", good), still)
    assert finder.advance(10).tolist() == [0]
    assert finder.cycle == Cycle(0, 1)
