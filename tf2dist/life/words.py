"""Boards on the host: 64 cells a word, bit b of word w of a row is the cell in column 64 w + b. NumPy only."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np

assert sys.byteorder == "little"  # a word's bytes are then its columns in order; TensorFlow runs on no other machine

_ROWS = 256  # rows that are taken apart at a time


def width(columns: int) -> int:
    """Words of a row."""
    return -(-columns // 64)


def pack(cells: np.ndarray) -> np.ndarray:
    """Packs cells (0 or 1) u8[r, c] to words u64[r, ceil(c / 64)]; bits beyond the last column are 0."""
    rows, columns = cells.shape
    octets = np.zeros([rows, 8 * width(columns)], np.uint8)
    octets[:, : -(-columns // 8)] = np.packbits(cells, axis=1, bitorder="little")
    return octets.view(np.uint64)


def unpack(words: np.ndarray, columns: int) -> np.ndarray:
    """The cells u8[r, columns] of words u64[r, w]."""
    octets = np.ascontiguousarray(words).view(np.uint8)
    return np.unpackbits(octets, axis=1, count=columns, bitorder="little")


def random(rows: int, columns: int, seed: int, density: float = 0.5) -> np.ndarray:
    """A board u64[rows, w] of which each cell lives with the probability `density`."""
    generator = np.random.default_rng(seed)
    board = np.empty([rows, width(columns)], np.uint64)
    for first in range(0, rows, _ROWS):  # a byte a cell of the whole board might not fit
        part = board[first : first + _ROWS]
        part[:] = pack((generator.random([len(part), columns], np.float32) < density).astype(np.uint8))
    return board


def place(board: np.ndarray, cells: np.ndarray, at: tuple[int, int]) -> None:
    """Brings cells to life in place: (row, column) pairs i64[n, 2], from `at` on; all must lie on the board."""
    row, column = cells[:, 0] + at[0], cells[:, 1] + at[1]
    np.bitwise_or.at(board, (row, column // 64), np.uint64(1) << (column % 64).astype(np.uint64))


def live(board: np.ndarray) -> np.ndarray:
    """(row, column) pairs i64[n, 2] of the living cells, in reading order."""
    found = [np.empty([0, 2], np.int64)]
    for first, cells in parts(board, 64 * board.shape[1]):
        found.append(np.argwhere(cells) + np.array([first, 0]))
    return np.concatenate(found)


def population(board: np.ndarray) -> int:
    """Living cells."""
    return int(np.bitwise_count(board).sum(dtype=np.int64))


def parts(board: np.ndarray, columns: int) -> Iterator[tuple[int, np.ndarray]]:
    """The board a few rows at a time: their first row and their cells u8[n, columns]."""
    for first in range(0, len(board), _ROWS):
        yield first, unpack(board[first : first + _ROWS], columns)
