"""bgolly, the program that most people run Life with, finds the same cells.

What bgolly 3.3 computed is kept here, so that it need not be there; where it and its collection are installed
(Debian's `golly`), patterns of the collection are compared too: all of them by `python -m tests.trainers.life.golly`.
"""

import hashlib

import numpy as np
import pytest

from tests.conftest import every_third, sampled
from tests.trainers.life import golly
from trainers.life import classic_patterns, packed_board
from trainers.life.engines import ENGINES, make_engine
from trainers.life.pattern_files import Pattern
from trainers.life.rule import parse

SAMPLE = (
    "Life/Guns/golly-ticker.rle",
    "Life/Methuselahs/justyna.rle",
    "Life/Oscillators/queen-bee-turn.rle",
    "Life/Spaceships/spaceship-types.rle",
    "Life/Still-Lifes/eaters.rle",
    "Life-Like/Day-and-Night-gun-and-antigun.rle",
    "Life-Like/replicator.rle",
    "Life-Like/coral.rle",
    "Life-Like/p168-knightship.rle",
)
# By pattern, rule, rows and columns of the torus, generations: population, and SHA-256 of the cells moved to the
# upper left corner, "row column" a line.
KNOWN: dict[tuple[str, str, int, int, int], tuple[int, str]] = {
    ("acorn", "B3/S23", 97, 150, 1000): (349, "c15e2081b924f948"),
    ("gosper", "B3/S23", 90, 110, 100): (63, "5d1f2909c53c9418"),
    ("gosper", "B36/S23", 64, 77, 100): (22, "02f8b7d17eaf57e0"),
    ("pulsar", "B2/S", 60, 129, 10): (84, "2eb1284b59de3765"),
    ("acorn", "B1357/S1357", 50, 50, 10): (224, "cf158de4b3e4e51a"),
    ("diehard", "B34/S34", 130, 70, 1): (5, "93956db21c5356a4"),
}


def digest(cells: np.ndarray) -> str:
    text = "\n".join(f"{row} {column}" for row, column in golly.normal(cells).tolist())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", sampled(ENGINES, ["conv"], ["packed", "numpy_function"]))
@every_third("case", KNOWN, rarely=pytest.mark.exhaustive, ids=str)
def test_what_bgolly_computed(case, name, tf):
    _, rule, rows, columns, count = case
    engine = make_engine(name, parse(rule), rows, columns, "torus")
    last = packed_board.living_cells(engine.board(engine.advance(engine.load(start(case)), count)))
    assert (len(last), digest(last)) == KNOWN[case]


def start(case) -> np.ndarray:
    pattern, _, rows, columns, _ = case
    cells = classic_patterns.find(pattern)
    board = np.zeros([rows, packed_board.width(columns)], np.uint64)
    packed_board.place(board, cells.cells, ((rows - cells.rows) // 2, (columns - cells.columns) // 2))
    return board


@pytest.mark.parametrize("path", sampled(SAMPLE, slow=SAMPLE[1:4]))
def test_patterns_of_its_collection(path, tf):
    if not golly.available():
        pytest.skip("bgolly and its patterns are not installed (Debian package golly)")
    found = golly.compare(golly.COLLECTION / path, generations=(1, 10, 100), most=dict.fromkeys(ENGINES, 5e8))
    assert set(found.values()) <= {True, None}
    assert all(found["packed", g] for g in (1, 10, 100))


def known() -> None:
    """Prints KNOWN anew, from bgolly."""
    for case in (
        ("acorn", "B3/S23", 97, 150, 1000), ("gosper", "B3/S23", 90, 110, 100), ("gosper", "B36/S23", 64, 77, 100),
        ("pulsar", "B2/S", 60, 129, 10), ("acorn", "B1357/S1357", 50, 50, 10), ("diehard", "B34/S34", 130, 70, 1),
    ):  # fmt: skip
        _, rule, rows, columns, count = case
        pattern = Pattern(packed_board.living_cells(start(case)), rows, columns, parse(rule), (rows, columns, "torus"))
        cells = golly.bgolly(pattern, count)
        print(f"    {case!r}: {(len(cells), digest(cells))!r},".replace("'", '"'))


if __name__ == "__main__":
    known()
