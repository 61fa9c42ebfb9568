"""Engines against ten lines of NumPy, against each other, and against what is known of famous patterns."""

import itertools
import pathlib
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.conftest import sampled
from tests.trainers.life.random_games import boards, edges, examples, rules
from tests.trainers.life.reference import generations
from tf2dist.errors import UsageError
from trainers.life import classic_patterns, packed_board
from trainers.life.engines import ENGINES, check, make_engine
from trainers.life.rule import LIFE, parse

ROOT = pathlib.Path(__file__).parents[3]
SMALL = np.random.default_rng(0).integers(0, 2, [3, 3], np.uint8)
AWKWARD = np.random.default_rng(0).integers(0, 2, [5, 129], np.uint8)  # a column more than two words


def compare(engine, cells, rule, edges, count):
    """Fails unless the engine computes the same generations, populations and hashes as the reference."""
    columns = cells.shape[1]
    start = engine.load(packed_board.pack(cells))
    assert (packed_board.unpack(engine.board(start), columns) == cells).all()
    wanted = generations(cells, rule, edges, count)
    later = engine.advance(start, count)
    assert (packed_board.unpack(engine.board(later), columns) == wanted).all()
    assert (engine.board(later) == packed_board.pack(wanted)).all(), "bits that are no cells are 0"

    seen, hashes, populations = engine.advance_observed(start, count)
    assert engine.equal(seen, later)
    assert engine.observe(seen) == (int(hashes[-1]), int(populations[-1]))
    assert populations[-1] == wanted.sum()
    assert populations[0] == generations(cells, rule, edges, 1).sum()
    wanted[0, -1] ^= 1
    other = engine.load(packed_board.pack(wanted))
    assert not engine.equal(other, later)
    assert engine.observe(other)[0] != engine.observe(later)[0]


@pytest.mark.parametrize("name", ["numpy_function", pytest.param("conv", marks=pytest.mark.slow)])
@examples(15)
@given(boards(), rules, edges, st.integers(1, 8))
@example(SMALL, parse("B1/S12"), "torus", 3)
@example(AWKWARD, parse("B0/S8"), "dead", 3)
def test_engines_of_cells(name, tf, cells, rule, edges, count):
    compare(make_engine(name, rule, *cells.shape, edges), cells, rule, edges, count)


@pytest.mark.exhaustive
@examples(3)
@given(boards(), rules, edges, st.integers(1, 40), st.integers(1, 4), st.integers(1, 64))
@example(SMALL, parse("B0/S8"), "torus", 5, 3, 1)
@example(AWKWARD, parse("B0157/S2468"), "torus", 37, 1, 64)
def test_packed_in_strips(tf, cells, rule, edges, count, strips, halo):
    from trainers.life.engines.packed import Packed

    strips = min(strips, len(cells))
    compare(Packed(rule, *cells.shape, edges, strips=strips, halo=halo), cells, rule, edges, count)


@pytest.mark.parametrize("edges", ["torus", "dead"])
@pytest.mark.slow
def test_packed_as_it_chooses_its_strips(edges, tf):
    cells = np.random.default_rng(1).integers(0, 2, [70, 190], np.uint8)
    compare(make_engine("packed", LIFE, 70, 190, edges), cells, LIFE, edges, 130)


@pytest.mark.slow
def test_packed_on_two_replicas(tf):
    from tf2dist import make_strategy

    strategy = make_strategy("mirrored", replicas=2)
    for shape, rule, edge in (((51, 70), LIFE, "torus"), ((7, 130), parse("B0/S8"), "dead")):
        cells = np.random.default_rng(2).integers(0, 2, shape, np.uint8)
        compare(make_engine("packed", rule, *shape, edge, strategy), cells, rule, edge, 20)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES)
def test_a_gun_fires_every_thirty_generations(name, tf):
    # 36 cells, and after each period the same gun and one glider more, as long as none has come around the torus.
    engine = make_engine(name, LIFE, 120, 150, "torus")
    board = np.zeros([120, packed_board.width(150)], np.uint64)
    packed_board.place(board, classic_patterns.find("gosper").cells, (5, 5))
    _, _, populations = engine.advance_observed(engine.load(board), 240)
    assert populations[29::30].tolist() == [36 + 5 * n for n in range(1, 9)]
    gun = packed_board.unpack(board, 150)[:15, :60]
    again = packed_board.unpack(engine.board(engine.advance(engine.load(board), 30)), 150)
    assert (again[:14, :60] == gun[:14]).all(), "the gun itself has period 30"


@pytest.mark.slow
def test_the_r_pentomino_settles_at_generation_1103(tf):
    # On a plane, for which a torus does that no glider has gone around by then.
    engine = make_engine("packed", LIFE, 700, 700, "torus")
    board = np.zeros([700, packed_board.width(700)], np.uint64)
    packed_board.place(board, classic_patterns.find("r-pentomino").cells, (350, 350))
    state, _, populations = engine.advance_observed(engine.load(board), 1250)
    assert populations[1102] == 116
    assert set(populations[1102:].tolist()) == {116}
    assert populations[1101] != 116
    # What it has become is gliders, which move by a cell in four generations, and what has period 1 or 2.
    assert engine.observe(engine.advance(state, 4))[1] == 116


@pytest.mark.slow
def test_the_acorn_grows_to_633_cells(tf):
    # 5,206 generations on a plane; gliders fly a quarter as many cells far.
    engine = make_engine("packed", LIFE, 3000, 3000, "torus")
    board = np.zeros([3000, packed_board.width(3000)], np.uint64)
    packed_board.place(board, classic_patterns.find("acorn").cells, (1500, 1500))
    assert engine.observe(engine.advance(engine.load(board), 5206))[1] == 633


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fast", 9, 9, "torus"), "unknown engine 'fast'"),
        (("packed", 9, 9, "open"), "unknown edges 'open'"),
        (("packed", 2, 9, "torus"), "2x9 is too small"),
        (("conv", 9, 9, "torus", 2), "packed computes on several"),
        (("packed", 3, 9, "torus", 4), "too small for 4 strips"),
    ],
)
def test_refused(arguments, said):
    with pytest.raises(UsageError, match=said):
        check(*arguments)


@pytest.mark.parametrize("name", ["conv", "numpy_function"])
def test_a_strategy_of_several_devices_is_refused_where_only_tensorflow_knows_their_number(name):
    """GPUs: the flags alone do not say how many there are."""
    with pytest.raises(UsageError, match=f"engine {name} computes on one device; packed computes on several"):
        make_engine(name, LIFE, 9, 9, "torus", SimpleNamespace(num_replicas_in_sync=2))


def test_plans():
    from trainers.life.strips_in_cache import plan

    for rows, width, replicas in ((3, 3, 3), (50, 3, 1), (4096, 64, 1), (16384, 256, 2), (1001, 7, 4)):
        found = plan(rows, width, replicas)
        strips = [strip for replica in range(replicas) for strip in found.of(replica)]
        assert strips[0][0] == 0
        assert strips[-1][1] == rows
        assert all(a[1] == b[0] for a, b in itertools.pairwise(strips))
        assert 1 <= found.halo <= min(64, *(last - first for first, last in strips))
    with pytest.raises(UsageError, match="3 rows is too small for 4 strips"):
        plan(3, 3, 4)


@pytest.mark.parametrize("replicas", sampled([1, 3, 4]))
def test_packed_on_more_replicas(replicas):
    # A process of its own for each, since collectives of one process are all of one size.
    command = [sys.executable, "-m", "tests.trainers.life.programs.replicas", str(replicas)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170)
    assert (done.returncode, done.stdout) == (0, f"done on {replicas} replicas\n"), done.stderr
