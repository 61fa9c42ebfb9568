"""A run that goes on is as one that was never ended: its populations, its cycle, its generation."""

import numpy as np
import pytest

from tests.trainers.life.test_cycle_finder import Slow, good
from trainers.life import saved_run
from trainers.life.cycle_finder import Cycle
from trainers.life.rule import LIFE
from trainers.life.simulation import Simulation, resume


@pytest.fixture
def engine():
    return Slow(LIFE, "torus", good)


@pytest.fixture
def board():
    return np.random.default_rng(3).integers(0, 2, [9, 12], np.uint8)


def saved(simulation, folder):
    simulation.save(str(folder), "key", "beginning", writes=True)
    return saved_run.read(str(folder))


def test_populations_go_on(engine, board, tmp_path):
    whole = Simulation(engine, board, curve=True)
    whole.advance(50)
    first = Simulation(engine, board, curve=True)
    first.advance(20)
    second = resume(engine, saved(first, tmp_path), curve=True)
    assert (second.generation, second.populations_from) == (20, 0)
    second.advance(10)
    third = resume(engine, saved(second, tmp_path), curve=True)
    third.advance(20)
    assert third.populations_from == whole.populations_from == 0
    assert np.concatenate(third.populations).tolist() == np.concatenate(whole.populations).tolist()


def test_populations_that_were_not_kept_begin_where_it_goes_on(engine, board, tmp_path):
    first = Simulation(engine, board)
    first.advance(20)
    second = resume(engine, saved(first, tmp_path), curve=True)
    second.advance(5)
    assert second.populations_from == 20
    assert sum(map(len, second.populations)) == 6
    assert saved(second, tmp_path).populations.tolist() == np.concatenate(second.populations).tolist()
    assert saved(resume(engine, saved(second, tmp_path)), tmp_path).populations is None


def test_a_cycle_that_was_found_is_not_looked_for_again(engine, tmp_path):
    blinker = np.zeros([9, 9], np.uint8)
    blinker[4, 3:6] = 1
    first = Simulation(engine, blinker, cycle=True, curve=True)
    first.advance(100)
    again = resume(engine, saved(first, tmp_path), cycle=True, curve=True)
    assert (again.generation, again.cycle) == (2, Cycle(0, 2))
    assert np.concatenate(again.populations).tolist() == [3, 3, 3]
