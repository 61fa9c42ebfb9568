"""Patterns, rules, sizes and saved runs that are nearly right, or not at all: a game, or one line that says why."""

import gzip
import io

import numpy as np
import pytest
from hypothesis import given

from tests.hostile import bounded, contents, examples, parsed, texts, variables
from tf2dist.data.errors import DataError
from tf2dist.errors import UsageError
from trainers.life import engines, game_flags, pattern_files, rule, saved_run

_RLE = (
    "#N Glider\n#C a comment\nx = 3, y = 3, rule = B3/S23:T30,20\nbob$2bo$3o!\n",
    "x = 36, y = 9\n24bo11b$22bobo11b$12b2o6b2o12b2o$11bo3bo4b2o12b2o$2o8bo5bo3b2o14b$2o8b\no3bob2o4bobo11b$10bo5bo7b"
    "o11b$11bo3bo20b$12b2o!\n",
)
_LIFE = ("#Life 1.06\n0 -1\n1 0\n-1 1\n0 1\n1 1\n",)
_PLAIN = ("!Name: Glider\n!\n.O\n..O\nOOO\n", ".O.\n...\n***")


def check(pattern):
    if pattern is not None:
        cells = pattern.cells
        assert cells.dtype == np.int64
        assert cells.shape == (len(cells), 2)
        assert not len(cells) or (cells.min() >= 0 and (cells.max(0) < [pattern.rows, pattern.columns]).all())
        assert np.array_equal(np.unique(cells, axis=0), cells)
    return pattern


@pytest.mark.parametrize("right", [_RLE, _LIFE, _PLAIN], ids=["rle", "life106", "plaintext"])
def test_patterns(right):
    @examples()
    @given(texts(*right))
    def try_them(text):
        check(parsed(DataError, pattern_files.parse, text, "a\x1b[2J\nb.rle"))

    try_them()


@examples(60)
@given(contents(*_RLE, *_LIFE, *_PLAIN, gzip.compress(_RLE[0].encode()), gzip.compress(_PLAIN[0].encode())))
def test_files(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "pattern"
    path.write_bytes(content)
    check(parsed(DataError, pattern_files.read, str(path)))


@pytest.mark.parametrize(
    "text",
    [
        "x = 1, y = 1\n999999999999b!",
        "x = 999999999999, y = 1\n999999999999o!",
        "x = 1, y = 1\n999999999999$!",
        f"x = {'9' * 5000}, y = 1\no!",
        f"x = 1, y = {'9' * 5000}\no!",
        f"x = 1, y = 1, rule = B3/S23:T{'9' * 5000},1\no!",
        f"x = 1, y = {'9' * 4000}\no!",
        "x = 1, y = 1\n" + "9" * 5000 + "o!",
        "#Life 1.06\n" + "9" * 5000 + " 1",
        "#Life 1.06\n-999999999999999 -999999999999999\n999999999999999 999999999999999",
        f"x = 3, y = 3, rule = B{'3' * 5000}/S23\nbo!",
    ],
    ids=range(11),
)
def test_huge_numbers(text, tmp_path):
    """None of them takes memory or time, and no board can be made of what is read."""
    check(parsed(DataError, pattern_files.parse, text))
    (tmp_path / "pattern").write_text(text)

    def play():
        game = game_flags.choose(str(tmp_path / "pattern"), None, None, None, None)
        engines.check("packed", game.rows, game.columns, game.edges, 1)
        return game

    game = parsed(DataError, play)
    assert game is None or game.cells < 10**16


def test_living_cells_take_memory_in_proportion():
    """So that a file of a few characters does not end the machine: twice what the cells are given out in."""
    with bounded():
        pattern = pattern_files.parse("x = 4000000, y = 4\n4000000o$4000000o$4000000o$4000000o!")
    assert len(pattern.cells) == 16_000_000


def test_rows_of_text_take_memory_in_proportion():
    with bounded():
        pattern = pattern_files.parse("\n".join(["O" * 4000] * 4000))
    assert len(pattern.cells) == 16_000_000


@examples()
@given(texts("B3/S23", "S23/B3", "23/3", "b3s23"))
def test_rules(text):
    parsed(DataError, rule.parse, text)


@examples()
@given(variables("random", "glider", "gosper"), variables("50x80"), variables("10,20"), variables("B3/S23"))
def test_flags(pattern, size, at, rule_text):
    def play():
        game = game_flags.choose(pattern, size, at, rule_text, None)
        engines.check("packed", game.rows, game.columns, game.edges, 1)

    parsed(UsageError, play)  # of a DataError, or of a URL


def _saved():
    file = io.BytesIO()
    arrays = {
        "board": np.ones([2, 1], np.uint64),
        "generation": 7,
        "key": "a key",
        "beginning": "",
        "memory_x": np.ones(3),
    }
    np.savez(file, **arrays)
    return file.getvalue()


@examples(60)
@given(contents(_saved()))
def test_saved_runs(tmp_path_factory, content):
    folder = tmp_path_factory.getbasetemp()
    (folder / "life.npz").write_bytes(content)
    parsed(DataError, saved_run.read, str(folder))
