"""64 cells a word, and back."""

import numpy as np
from hypothesis import given

from tests.life.random_games import boards, examples
from tf2dist.life import words


@examples(30)
@given(boards())
def test_round_trip(cells):
    packed = words.pack(cells)
    assert packed.shape == (len(cells), -(-cells.shape[1] // 64))
    assert (words.unpack(packed, cells.shape[1]) == cells).all()
    assert words.population(packed) == cells.sum()
    assert (words.live(packed) == np.argwhere(cells)).all()


def test_which_bit_is_which_cell():
    cells = np.zeros([2, 70], np.uint8)
    cells[1, 65] = 1
    assert words.pack(cells).tolist() == [[0, 0], [0, 2]]


def test_placing_keeps_what_is_there():
    board = np.zeros([4, 2], np.uint64)
    words.place(board, np.array([[0, 0], [1, 63]]), (1, 1))
    words.place(board, np.array([[0, 0]]), (1, 2))
    assert words.live(board).tolist() == [[1, 1], [1, 2], [2, 64]]


def test_random_boards_follow_their_seed():
    one, other = words.random(300, 100, 1), words.random(300, 100, 2)
    assert (one == words.random(300, 100, 1)).all()
    assert (one != other).any()
    assert abs(words.population(one) / 30_000 - 0.5) < 0.02
    assert abs(words.population(words.random(300, 100, 1, 0.1)) / 30_000 - 0.1) < 0.02
