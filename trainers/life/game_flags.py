"""Chooses the game from the flags: board size, rule, edges, and the position of the pattern. No TensorFlow.

Flags that are not given default to what the pattern file says. Every error is a `tf2dist.data.errors.DataError` that
names the flag.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass

import numpy as np

from tf2dist.data.errors import DataError
from tf2dist.system import files
from trainers.life import classic_patterns, packed_board, pattern_files, rule
from trainers.life.pattern_files import Pattern
from trainers.life.rule import Rule

_MOST = 99_999_999  # rows or columns
_DEFAULT_SIZE = 50  # rows and columns, as in the tutorials; a pattern gets twice its own size if that is more


@dataclass(frozen=True)
class Game:
    """A first board and how it evolves.

    Attributes:
      pattern: None for a random board.
      at: row and column of the pattern's upper left corner.
    """

    rows: int
    columns: int
    rule: Rule
    edges: str
    pattern: Pattern | None
    at: tuple[int, int] = (0, 0)

    @property
    def cells(self) -> int:
        return self.rows * self.columns

    def __str__(self) -> str:
        return f"rule {self.rule}, {self.rows}x{self.columns} cells, edges {self.edges}"

    def beginning(self, seed: int) -> str:
        """Returns the first generation in words, others for other boards."""
        if self.pattern is None:
            return f"a random board of seed {seed}"
        number = zlib.crc32(self.pattern.cells.astype("<i8").tobytes())
        row, column = self.at
        return f"{len(self.pattern.cells):,} living cells at {row},{column} (pattern {number:08x})"

    def board(self, seed: int) -> np.ndarray:
        """Returns the first generation, packed u64[rows, w]; of a random one half of the cells are alive."""
        if self.pattern is None:
            return packed_board.random(self.rows, self.columns, seed)
        board = np.zeros([self.rows, packed_board.width(self.columns)], np.uint64)
        packed_board.place(board, self.pattern.cells, self.at)
        return board

    def write(self, path: str, board: np.ndarray) -> None:
        """Writes a board of this game as a pattern file, in the format that the path's suffix names."""
        shape = self.rows, self.columns
        pattern_files.write(path, Pattern(packed_board.living_cells(board), *shape, self.rule, (*shape, self.edges)))


def choose(pattern: str, size: str | None, at: str | None, rule_text: str | None, edges: str | None) -> Game:
    """Returns the game that --pattern, --size, --at, --rule and --edges describe; None means the pattern's own.

    Raises:
      DataError: they describe none.
    """
    found = _find(pattern)
    rows, columns = _size(size, found)
    if max(rows, columns) > _MOST:
        raise DataError(f"--pattern={pattern} needs a board of {rows}x{columns} cells; {_MOST}x{_MOST} is the largest")
    chosen = rule.parse(rule_text) if rule_text is not None else (found and found.rule) or rule.LIFE
    edges = edges or (found.board[2] if found and found.board else "torus")
    if found is None:
        if at is not None:
            raise DataError(f"--at={at} says where the pattern is, and a random board has none; give --pattern")
        return Game(rows, columns, chosen, edges, None)
    if found.rows > rows or found.columns > columns:
        raise DataError(
            f"--pattern={pattern} has {found.rows}x{found.columns} cells and the board {rows}x{columns}; "
            f"--size={max(rows, found.rows)}x{max(columns, found.columns)} would hold it"
        )
    return Game(rows, columns, chosen, edges, found, _corner(at, rows - found.rows, columns - found.columns))


def _find(name: str) -> Pattern | None:
    if name == "random":
        return None
    if name in classic_patterns.NAMES:
        return classic_patterns.find(name)
    files.check(f"--pattern={name}", name)
    try:
        found = files.exists(name)
    except files.StoreError as error:
        raise DataError(f"--pattern={name} cannot be read: {error.strerror}") from None
    if not found:
        raise DataError(
            f"--pattern={name} is no file and no name; names are random, {', '.join(classic_patterns.NAMES)}"
        )
    return pattern_files.read(name)


def _size(text: str | None, pattern: Pattern | None) -> tuple[int, int]:
    if text is None:
        if pattern is None:
            return _DEFAULT_SIZE, _DEFAULT_SIZE
        if pattern.board:
            return pattern.board[:2]
        return max(_DEFAULT_SIZE, 2 * pattern.rows), max(_DEFAULT_SIZE, 2 * pattern.columns)
    found = re.fullmatch(r"(\d{1,8})x(\d{1,8})", text)
    if not found:
        raise DataError(f"--size={text} cannot be read; 50x80 is 50 rows of 80 cells")
    return int(found[1]), int(found[2])


def _corner(text: str | None, last_row: int, last_column: int) -> tuple[int, int]:
    if text is None:
        return last_row // 2, last_column // 2
    found = re.fullmatch(r"(\d{1,8}),(\d{1,8})", text)
    if not found:
        raise DataError(f"--at={text} cannot be read; 10,20 is row 10 and column 20, counted from 0")
    row, column = int(found[1]), int(found[2])
    if row > last_row or column > last_column:
        raise DataError(f"--at={text} leaves no room for the pattern; {last_row},{last_column} is the last that does")
    return row, column
