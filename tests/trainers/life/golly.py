"""Every engine beside bgolly (Debian package `golly`) on golly's own pattern collection.

python -m tests.trainers.life.golly [--largest CELLS] [FILE ...] compares the whole collection, or
the files, and prints a table.
"""

from __future__ import annotations

import argparse
import collections
import functools
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np

from tf2dist.data.errors import DataError
from trainers.life import packed_board, pattern_files
from trainers.life.engines import ENGINES, make_engine
from trainers.life.pattern_files import Pattern
from trainers.life.rule import LIFE

COLLECTION = pathlib.Path("/usr/share/golly/Patterns")
GENERATIONS = (1, 10, 100, 1000)
_LARGEST = {"numpy_function": 1e8, "conv": 1e8, "packed": 1e12}  # cells of a board that there is memory for
# Cells that an engine computes in all before it is let off: some patterns of the collection are very large.
MOST = {"numpy_function": 2e8, "conv": 1e9, "packed": 2e12}


def available() -> bool:
    """Are bgolly and its patterns on this machine?"""
    return bool(shutil.which("bgolly")) and COLLECTION.is_dir()


def on_torus(pattern: Pattern, margin: int = 20) -> tuple[np.ndarray, Pattern]:
    """The pattern in the middle of a torus, words u64[rows, w], and that board as a pattern.

    Sizes are multiples of 100, so that not every pattern needs graphs of its own, and almost never of 64.
    """
    rows, columns = (100 * -(-(size + 2 * margin) // 100) for size in (pattern.rows, pattern.columns))
    board = np.zeros([rows, packed_board.width(columns)], np.uint64)
    packed_board.place(board, pattern.cells, ((rows - pattern.rows) // 2, (columns - pattern.columns) // 2))
    rule = pattern.rule or LIFE
    return board, Pattern(packed_board.living_cells(board), rows, columns, rule, (rows, columns, "torus"))


def bgolly(start: Pattern, generations: int, timeout: float = 1200.0) -> np.ndarray:
    """Living cells i64[n, 2] after so many generations, from the first row and column that have any.

    What bgolly writes has lost its place on the torus. On a bounded grid its step size must be 1.
    """
    with tempfile.TemporaryDirectory() as folder:
        pattern_files.write(f"{folder}/in.rle", start)
        command = [
            "bgolly",
            "-q",
            "-q",
            "-a",
            "QuickLife",
            "-m",
            str(generations),
            "-i",
            "1",
            "-o",
            "out.rle",
            "in.rle",
        ]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=timeout)
        return normal(pattern_files.read(f"{folder}/out.rle").cells)


def normal(cells: np.ndarray) -> np.ndarray:
    """The same cells, moved to the upper left corner."""
    return cells - cells.min(0) if len(cells) else cells


@functools.lru_cache(maxsize=8)
def engine(name, rule, rows, columns):
    return make_engine(name, rule, rows, columns, "torus")


def compare(
    path: pathlib.Path, generations=GENERATIONS, engines=ENGINES, most=MOST
) -> dict[tuple[str, int], bool | None]:
    """Whether each engine has bgolly's cells after each number of generations; None: not computed, too large.

    Raises:
      DataError: the file is no pattern of two states in a format and a rule that can be read.
    """
    board, start = on_torus(pattern_files.read(str(path)))
    cells = start.rows * start.columns
    seen = {}
    wanted = {g: bgolly(start, g) for g in generations}
    for name in engines:
        if cells > _LARGEST[name]:
            seen.update({(name, g): None for g in generations})
            continue
        played = engine(name, start.rule, start.rows, start.columns)
        state, now = played.load(board), 0
        for g in generations:
            if cells * g > most[name]:
                seen[name, g] = None
                continue
            state, now = played.advance(state, g - now), g
            last = played.board(state)
            found = packed_board.living_cells(last)
            same = played.observe(state)[1] == len(found)
            if 0 in start.rule.birth and 8 not in start.rule.survival and g % 2:
                # An empty plane would be full in odd generations; bgolly computes, and writes, the dead cells then.
                found = np.argwhere(packed_board.unpack(last, start.columns) == 0)
            seen[name, g] = same and len(found) == len(wanted[g]) and bool((normal(found) == wanted[g]).all())
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    parser.add_argument("--largest", type=float, default=2e9, help="cells of the largest board")
    options = parser.parse_args()
    counts: dict[tuple[str, int], collections.Counter] = collections.defaultdict(collections.Counter)
    unread, tried = [], 0
    for path in options.files or sorted(p for p in COLLECTION.rglob("*") if p.is_file()):
        began = time.monotonic()
        try:
            pattern = pattern_files.read(str(path))
            if (pattern.rows + 100) * (pattern.columns + 100) > options.largest:
                raise DataError(f"{pattern.rows}x{pattern.columns} cells, more than --largest")
            result = compare(path)
        except (DataError, ValueError) as error:
            unread.append((path, error))
            continue
        tried += 1
        for key, same in result.items():
            counts[key][same] += 1
        wrong = [key for key, same in result.items() if same is False]
        skipped = [key for key, same in result.items() if same is None]
        print(f"{path.name}: {'WRONG ' + str(wrong) if wrong else 'equal'}; not computed {skipped}; "
              f"{time.monotonic() - began:.1f} s", flush=True)  # fmt: skip
    print("\nnot read:")
    for path, error in unread:
        print(f"  {path.relative_to(COLLECTION) if path.is_relative_to(COLLECTION) else path}: {error}")
    print(
        f"\n{tried} patterns compared, {len(unread)} not\n"
        f"{'engine':16s}{'generations':>12s}  equal  wrong  not computed"
    )
    for (name, g), counter in counts.items():
        print(f"{name:16s}{g:12,d}  {counter[True]:5d}  {counter[False]:5d}  {counter[None]:12d}")
    return 1 if any(counter[False] for counter in counts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
