"""64 cells a word, and back."""

import numpy as np
from hypothesis import given

from tests.trainers.life.random_games import boards, examples
from trainers.life import packed_board


@examples(30)
@given(boards())
def test_round_trip(cells):
    packed = packed_board.pack(cells)
    assert packed.shape == (len(cells), -(-cells.shape[1] // 64))
    assert (packed_board.unpack(packed, cells.shape[1]) == cells).all()
    assert packed_board.population(packed) == cells.sum()
    assert (packed_board.living_cells(packed) == np.argwhere(cells)).all()


def test_which_bit_is_which_cell():
    cells = np.zeros([2, 70], np.uint8)
    cells[1, 65] = 1
    assert packed_board.pack(cells).tolist() == [[0, 0], [0, 2]]


def test_placing_keeps_what_is_there():
    board = np.zeros([4, 2], np.uint64)
    packed_board.place(board, np.array([[0, 0], [1, 63]]), (1, 1))
    packed_board.place(board, np.array([[0, 0]]), (1, 2))
    assert packed_board.living_cells(board).tolist() == [[1, 1], [1, 2], [2, 64]]


def test_random_boards_follow_their_seed():
    one, other = packed_board.random(300, 100, 1), packed_board.random(300, 100, 2)
    assert (one == packed_board.random(300, 100, 1)).all()
    assert (one != other).any()
    assert abs(packed_board.population(one) / 30_000 - 0.5) < 0.02
    assert abs(packed_board.population(packed_board.random(300, 100, 1, 0.1)) / 30_000 - 0.1) < 0.02
