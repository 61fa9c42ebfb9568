"""Reads and writes pattern files: run-length encoded (RLE), Life 1.06, plaintext.

Formats: https://conwaylife.com/wiki/Run_Length_Encoded, /Life_1.06 and /Plaintext.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import zlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from tf2dist.data.errors import DataError
from tf2dist.system import files
from tf2dist.system.atomic_files import replacing
from trainers.life import rule as rules
from trainers.life.rule import Rule

SUFFIXES = (".rle", ".lif", ".cells")  # what `write` can write
EDGES = {"torus": "T", "dead": "P"}  # and their letters in RLE headers

_MAX_CELLS = 2**27  # 2 GiB of coordinates
_MAX_CHARACTERS = 2**28  # of a file
_HEADER = re.compile(r"\s*x\s*=\s*(\d{1,15})\s*,\s*y\s*=\s*(\d{1,15})\s*(?:,\s*rule\s*=\s*(\S+)\s*)?")
_RUN = re.compile(r"(\d*)\s*([bo$!])|\s+", re.IGNORECASE)
_BOUNDS = re.compile(r"([TP])(\d{1,15}),(\d{1,15})", re.IGNORECASE)


@dataclass(frozen=True)
class Pattern:
    """Living cells in a rectangle.

    Attributes:
      cells: (row, column) pairs i64[n, 2] in reading order, from (0, 0) at the top left.
      rows, columns: of the rectangle.
      rule: what the file says it is for.
      board: rows and columns of the board it is for, and whether its edges are "torus" or "dead".
    """

    cells: np.ndarray
    rows: int
    columns: int
    rule: Rule | None = None
    board: tuple[int, int, str] | None = None


def read(path: str) -> Pattern:
    """Reads a pattern file in any of the three formats, compressed by gzip or not.

    Raises:
      DataError: it cannot be read or parsed; names the line and the column.
    """
    try:
        with files.open_binary(path) as file:
            zipped = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            with io.TextIOWrapper(gzip.GzipFile(fileobj=file) if zipped else file, encoding="utf-8") as characters:
                text = characters.read(_MAX_CHARACTERS + 1)
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{path} cannot be read: {why.lower()}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text, and so no pattern; RLE, Life 1.06 and plaintext files are") from None
    if len(text) > _MAX_CHARACTERS:
        raise DataError(f"{path} has more than {_MAX_CHARACTERS:,} characters, the most that are read")
    return parse(text, path)


def parse(text: str, name: str = "the pattern") -> Pattern:
    """Parses the text of a file called `name`; see `read`."""
    lines = text.split("\n")
    if lines[0].startswith("#Life 1.06"):
        return _life_106(lines, name)
    first = next((i for i, line in enumerate(lines) if line.strip() and not line.startswith(("#", "!"))), None)
    if first is None:
        if any(line.startswith("!") for line in lines):
            return Pattern(_joined([]), 0, 0)
        raise _wrong(name, 1, 1, "nothing", "a pattern in RLE, Life 1.06 or plaintext")
    if re.match(r"\s*x\s*=", lines[first]):
        return _rle(lines, first, name)
    return _plaintext(lines, name)


def _rle(lines: list[str], first: int, name: str) -> Pattern:
    header = _HEADER.fullmatch(lines[first])
    if not header:
        raise _wrong(name, first + 1, 1, lines[first], "a header as x = 3, y = 3, rule = B3/S23")
    columns, rows = int(header[1]), int(header[2])
    try:
        rule, board = _rule_and_board(header[3]) if header[3] else (None, None)
    except DataError as error:
        raise DataError(f"{name}, line {first + 1}, column {header.start(3) + 1}: {error}") from None
    found: list[np.ndarray] = []
    row = column = count = 0
    for number, line in enumerate(lines[first + 1 :], first + 2):
        at = 0
        while at < len(line) and not (at == 0 and line[0] == "#"):
            run = _RUN.match(line, at)
            if not run:
                raise _wrong(name, number, at + 1, line[at:], "b, o, $ or ! after an optional count")
            many, what = run[1], (run[2] or "").lower()
            length = int(many) if many and len(many) < 12 else 10**12 if many else 1
            if what == "!":
                return Pattern(_joined(found), rows, columns, rule, board)
            if what == "$":
                row, column = row + length, 0
            elif what:
                if what == "o" and (column + length > columns or row >= rows):
                    raise _wrong(name, number, at + 1, f"a cell in row {row + 1}, column {column + length}",
                                 f"cells in {rows} rows of {columns}, as the header says")  # fmt: skip
                if what == "o":
                    count += length
                    if count > _MAX_CELLS:
                        raise DataError(f"{name} has more than {_MAX_CELLS:,} living cells, the most that are read")
                    found.append(np.stack([np.full(length, row), np.arange(column, column + length)], 1))
                column += length
            at = run.end()
    raise _wrong(name, len(lines), len(lines[-1]) + 1, "the end of the file", "a ! where the pattern ends")


def _rule_and_board(text: str) -> tuple[Rule, tuple[int, int, str] | None]:
    text, colon, bounds = text.partition(":")
    rule = rules.parse(text)
    if not colon:
        return rule, None
    found = _BOUNDS.fullmatch(bounds)
    if not found or not int(found[2]) or not int(found[3]):
        raise DataError(f"board {bounds!r} cannot be had; T30,20 is a torus of 30 columns and 20 rows, P30,20 a plane")
    return rule, (int(found[3]), int(found[2]), "torus" if found[1] in "Tt" else "dead")


def _life_106(lines: list[str], name: str) -> Pattern:
    numbers = array("q")
    for number, line in enumerate(lines[1:], 2):
        if not line.strip() or line.startswith("#"):
            continue
        if not re.fullmatch(r"\s*-?\d{1,15}\s+-?\d{1,15}\s*", line):
            raise _wrong(name, number, 1, line, "a column and a row, two whole numbers")
        x, y = line.split()
        numbers.extend((int(y), int(x)))
    if not numbers:
        return Pattern(_joined([]), 0, 0)
    cells = np.array(numbers).reshape(-1, 2)
    cells = cells[np.lexsort((cells[:, 1], cells[:, 0]))]
    again = np.r_[False, (np.diff(cells, axis=0) == 0).all(1)]
    cells = cells[~again] - cells.min(0)
    return Pattern(cells, int(cells[:, 0].max()) + 1, int(cells[:, 1].max()) + 1)


def _plaintext(lines: list[str], name: str) -> Pattern:
    found: list[np.ndarray] = []
    row = columns = rows = 0
    for number, line in enumerate(lines, 1):
        if line.startswith("!"):
            continue
        line = line.rstrip()
        if wrong := re.search(r"[^.O*]", line):
            expected = "a header x = , y = (RLE), #Life 1.06, or rows of . and O" if not rows else ". or O"
            raise _wrong(name, number, wrong.start() + 1, line[wrong.start() :], expected)
        alive = np.flatnonzero(np.frombuffer(line.encode(), np.uint8) != ord("."))
        if len(alive):
            found.append(np.stack([np.full(len(alive), row), alive], 1))
        columns = max(columns, len(line))
        row += 1
        if line:
            rows = row  # empty lines at the end are no rows
    return Pattern(_joined(found), rows, columns)


def _joined(found: list[np.ndarray]) -> np.ndarray:
    """Returns the cells i64[n, 2] of these runs, which are in reading order."""
    return np.concatenate(found) if found else np.empty([0, 2], np.int64)


def _wrong(name: str, line: int, column: int, found: str, expected: str) -> DataError:
    found = found if len(found) <= 30 else f"{found[:27]}..."
    return DataError(f"{name}, line {line}, column {column}: found {found}, expected {expected}")


def write(path: str, pattern: Pattern) -> None:
    """Writes the pattern in the format of the path's suffix, completely or not at all.

    Raises:
      ValueError: an unknown suffix.
      OSError: it cannot be written, for example because the disk is full.
    """
    suffix = os.path.splitext(path)[1]
    if suffix not in SUFFIXES:
        raise ValueError(f"{path} must end in {', '.join(SUFFIXES)}")
    lines = {".rle": rle, ".lif": life_106, ".cells": plaintext}[suffix](pattern)
    with replacing(files.target(path)) as (part,), open(part, "w") as file:
        file.writelines(f"{line}\n" for line in lines)


def rle(pattern: Pattern) -> Iterator[str]:
    """Yields the lines of an RLE file, none longer than 70 characters."""
    rule = str(pattern.rule or rules.LIFE)
    if pattern.board:
        rows, columns, edges = pattern.board
        rule += f":{EDGES[edges]}{columns},{rows}"
    yield f"x = {pattern.columns}, y = {pattern.rows}, rule = {rule}"
    line = ""
    for token in _tokens(pattern):
        if len(line) + len(token) > 70:
            yield line
            line = ""
        line += token
    yield line


def _tokens(pattern: Pattern) -> Iterator[str]:
    cells = pattern.cells
    if len(cells):
        breaks = np.flatnonzero((np.diff(cells[:, 0]) != 0) | (np.diff(cells[:, 1]) != 1))
        starts, ends = np.r_[0, breaks + 1], np.r_[breaks, len(cells) - 1]
        row = column = 0
        for (y, x), length in zip(cells[starts].tolist(), (ends - starts + 1).tolist(), strict=True):
            if y > row:
                yield _run(y - row, "$")
                row, column = y, 0
            if x > column:
                yield _run(x - column, "b")
            yield _run(length, "o")
            column = x + length
    yield "!"


def _run(count: int, what: str) -> str:
    return what if count == 1 else f"{count}{what}"


def life_106(pattern: Pattern) -> Iterable[str]:
    """Yields the lines of a Life 1.06 file, which holds the cells only."""
    yield "#Life 1.06"
    yield from (f"{x} {y}" for y, x in pattern.cells.tolist())


def plaintext(pattern: Pattern) -> Iterable[str]:
    """Yields the lines of a plaintext file; the rule is in a comment."""
    yield f"!Rule: {pattern.rule or rules.LIFE}"
    ends = np.searchsorted(pattern.cells[:, 0], np.arange(pattern.rows + 1))
    for row in range(pattern.rows):
        line = np.full(pattern.columns, ord("."), np.uint8)
        line[pattern.cells[ends[row] : ends[row + 1], 1]] = ord("O")
        yield line.tobytes().decode()
