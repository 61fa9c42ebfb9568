"""Engines of the Game of Life on random tori, beside bgolly and beside a plain copy of the board; one process and two.

Cells a second: rows * columns * generations / seconds. Every measurement begins with the same board, half of it alive.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

from benchmarks.rounds import in_turn, table

_SIDE, _LARGE = 4096, 16384
# Generations of a measurement: a second or so. bgolly leaves out what has come to rest, so it gets a board in which
# little has, and is measured between its 20th and its 220th.
_GENERATIONS = {"packed": 2000, "conv": 3, "numpy_function": 1}
_LARGE_GENERATIONS = 200
_TRAINER_GENERATIONS = 1000  # of a trainer, whose first second is slower: its processes see their memory first
_GOLLY_FROM, _GOLLY_TO = 20, 220
_SPEED = "cells/s, in millions"


def run(rounds: int) -> dict:
    """Measures; returns the figures, in millions of cells a second, and the ratios."""
    contestants = {
        name: functools.partial(engine_contestant, name, _SIDE, count) for name, count in _GENERATIONS.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        if shutil.which("bgolly"):
            contestants["bgolly, QuickLife"] = functools.partial(_golly, folder)
        else:
            print("bgolly is not on PATH (Debian package golly) and is left out")
        small = in_turn(contestants, rounds)
    large = in_turn(
        {
            "packed": functools.partial(engine_contestant, "packed", _LARGE, _LARGE_GENERATIONS),
            "a copy of the board a generation": _copy,
        },
        rounds,
    )
    one_thread = in_turn(
        {
            "2 processes": functools.partial(_trainer, "--strategy=multiworker", "--workers=2"),
            "1 process": functools.partial(_trainer, "--strategy=one"),
        },
        rounds,
    )
    return {
        "small": {"mcells_per_second": small, "packed_over": table(f"{_SIDE}x{_SIDE}", _SPEED, small, "packed")},
        "large": {"mcells_per_second": large, "packed_over": table(f"{_LARGE}x{_LARGE}", _SPEED, large, "packed")},
        "processes": {
            "mcells_per_second": one_thread,
            "two_over": table(f"{_LARGE}x{_LARGE}, one thread a process", _SPEED, one_thread, "2 processes"),
        },
    }


def engine_contestant(name: str, side: int, generations: int):
    """Makes the engine and its board; returns the function that measures it."""
    from tf2dist.runtime import tensorflow_import

    tensorflow_import.import_tensorflow()
    from trainers.life import packed_board
    from trainers.life.engines import make_engine
    from trainers.life.rule import LIFE

    engine = make_engine(name, LIFE, side, side, "torus")
    start = engine.load(packed_board.random(side, side, seed=1))

    def measure() -> float:
        began = time.perf_counter()
        engine.equal(start, engine.advance(start, generations))  # waits for it, and costs less than a generation
        return side * side * generations / (time.perf_counter() - began) / 1e6

    return measure


def _golly(folder: str):
    from trainers.life import packed_board, pattern_files
    from trainers.life.rule import LIFE

    path = os.path.join(folder, "start.rle")
    cells = packed_board.living_cells(packed_board.random(_SIDE, _SIDE, seed=1))
    pattern_files.write(path, pattern_files.Pattern(cells, _SIDE, _SIDE, LIFE, (_SIDE, _SIDE, "torus")))

    def seconds(generations: int) -> float:
        command = ["bgolly", "-q", "-q", "-a", "QuickLife", "-m", str(generations), "-i", "1", path]
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began

    def measure() -> float:
        took = seconds(_GOLLY_TO) - seconds(_GOLLY_FROM)  # without the reading of the file
        return _SIDE * _SIDE * (_GOLLY_TO - _GOLLY_FROM) / took / 1e6

    return measure


def _copy():
    import numpy as np

    from trainers.life import packed_board

    board = packed_board.random(_LARGE, _LARGE, seed=1)
    other = np.zeros_like(board)

    def measure() -> float:
        began = time.perf_counter()
        for _ in range(100):
            np.copyto(other, board)
        return _LARGE * _LARGE * 100 / (time.perf_counter() - began) / 1e6

    return measure


def _trainer(*arguments: str):
    """The trainer, each process with one thread; what it reports leaves out how long it took to start."""
    threads = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}

    def measure() -> float:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "report.json")
            command = [
                sys.executable, "-m", "trainers.life", f"--size={_LARGE}x{_LARGE}",
                f"--generations={_TRAINER_GENERATIONS}", "--view=none", f"--report={path}", *arguments,
            ]  # fmt: skip
            subprocess.run(command, check=True, env={**os.environ, **threads}, stdout=subprocess.DEVNULL)
            with open(path) as file:
                return json.load(file)["cells_per_second"] / 1e6

    return measure
