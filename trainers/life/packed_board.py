"""Packed boards in NumPy: words of 64 cells; bit b of word w in a row is the cell in column 64 w + b. No TensorFlow."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np

assert sys.byteorder == "little"  # a word's bytes are then its columns in order; TensorFlow runs on no other machine

_CHUNK_ROWS = 256  # rows that are unpacked at a time


def width(columns: int) -> int:
    """Returns the words of a row."""
    return -(-columns // 64)


def pack(cells: np.ndarray) -> np.ndarray:
    """Packs cells (0 or 1) u8[r, c] to words u64[r, ceil(c / 64)]; bits beyond the last column are 0."""
    rows, columns = cells.shape
    octets = np.zeros([rows, 8 * width(columns)], np.uint8)
    octets[:, : -(-columns // 8)] = np.packbits(cells, axis=1, bitorder="little")
    return octets.view(np.uint64)


def unpack(words: np.ndarray, columns: int) -> np.ndarray:
    """Returns the cells u8[r, columns] of words u64[r, w]."""
    octets = np.ascontiguousarray(words).view(np.uint8)
    return np.unpackbits(octets, axis=1, count=columns, bitorder="little")


def random(rows: int, columns: int, seed: int, density: float = 0.5) -> np.ndarray:
    """Returns a board u64[rows, w] in which each cell lives with probability `density`."""
    generator = np.random.default_rng(seed)
    board = np.empty([rows, width(columns)], np.uint64)
    for first in range(0, rows, _CHUNK_ROWS):  # a byte a cell of the whole board might not fit
        part = board[first : first + _CHUNK_ROWS]
        part[:] = pack((generator.random([len(part), columns], np.float32) < density).astype(np.uint8))
    return board


def place(board: np.ndarray, cells: np.ndarray, at: tuple[int, int]) -> None:
    """Sets cells in place: (row, column) pairs i64[n, 2], offset by `at`; all must lie on the board."""
    row, column = cells[:, 0] + at[0], cells[:, 1] + at[1]
    np.bitwise_or.at(board, (row, column // 64), np.uint64(1) << (column % 64).astype(np.uint64))


def living_cells(board: np.ndarray) -> np.ndarray:
    """Returns (row, column) pairs i64[n, 2] of the living cells, in reading order."""
    found = [np.empty([0, 2], np.int64)]
    for first, cells in unpacked_chunks(board, 64 * board.shape[1]):
        found.append(np.argwhere(cells) + np.array([first, 0]))
    return np.concatenate(found)


def population(board: np.ndarray) -> int:
    """Counts the living cells."""
    return int(np.bitwise_count(board).sum(dtype=np.int64))


def unpacked_chunks(board: np.ndarray, columns: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yields the board a few rows at a time: the first row's number, and cells u8[n, columns]."""
    for first in range(0, len(board), _CHUNK_ROWS):
        yield first, unpack(board[first : first + _CHUNK_ROWS], columns)
