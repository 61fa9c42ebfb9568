"""Pattern files: what is read, what is written, and what is refused."""

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainers.life.random_games import boards, edges, examples, rules
from tf2dist.data.errors import DataError
from trainers.life import classic_patterns, pattern_files
from trainers.life.pattern_files import Pattern
from trainers.life.rule import LIFE, parse

GLIDER = [(0, 1), (1, 2), (2, 0), (2, 1), (2, 2)]


@pytest.mark.parametrize(
    "text",
    [
        "#C a comment\n#N Glider\nx = 3, y = 3, rule = B3/S23\nbob$2bo$3o!\nwhat follows is no pattern",
        "x=3,y=3\nbo$2bo\n$\n3o!",
        "x = 3, y = 3, rule = 23/3\nb o $ 2b\no$ 3 o !",
        "#Life 1.06\n1 0\n2 1\n0 2\n1 2\n2 2\n",
        "#Life 1.06\n-9 -1\n-8 0\n-10 1\n-9 1\n-8 1\n-8 1",
        "!Name: Glider\n!\n.O\n..O\nOOO\n",
        ".*.\n..*\n***",
    ],
)
def test_gliders(text):
    pattern = pattern_files.parse(text)
    assert list(map(tuple, pattern.cells.tolist())) == GLIDER
    assert (pattern.rows, pattern.columns) == (3, 3)
    assert pattern.rule in (None, LIFE)


def test_rules_and_boards_in_headers():
    pattern = pattern_files.parse("x = 1, y = 1, rule = B36/S23:T30,20\no!")
    assert (pattern.rule, pattern.board) == (parse("B36/S23"), (20, 30, "torus"))
    assert pattern_files.parse("x = 1, y = 1, rule = B36/S23:p30,20\no!").board == (20, 30, "dead")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1, column 1"),
        ("hello", "line 1, column 1: found hello"),
        (".O\n.x.", "line 2, column 2: found x., expected . or O"),
        ("#C\nx = 3, z = 3\no!", "line 2, column 1: found x = 3, z = 3"),
        ("x = 3, y = 3, rule = B2-a/S12\no!", "line 1, column 22: rule 'B2-a/S12'"),
        ("x = 3, y = 3, rule = B3/S23:K30,20\no!", "line 1, column 22: board 'K30,20'"),
        ("x = 3, y = 3, rule = B3/S23:T0,20\no!", "board 'T0,20'"),
        ("x = 3, y = 3\nbo$\n2bA!", "line 3, column 3: found A!"),
        ("x = 3, y = 3\nbo$\n2bo", "line 3, column 4: found the end of the file, expected a !"),
        ("x = 3, y = 3\n4o!", "line 2, column 1: found a cell in row 1, column 4, expected cells in 3 rows of 3"),
        ("x = 3, y = 1\no$o!", "line 2, column 3: found a cell in row 2, column 1"),
        (f"x = 3, y = 3\n{'9' * 40}o!", "line 2, column 1"),
        ("x = 99999999999, y = 1\n99999999999o!", "living cells, the most that are read"),
        ("#Life 1.06\n1 0\n1,1", "line 3, column 1: found 1,1, expected a column and a row"),
        ("#Life 1.05\n#P 0 0\n*", "found #Life 1.05"),
    ],
)
def test_what_is_no_pattern(text, said):
    with pytest.raises(DataError) as refused:
        pattern_files.parse(text, "it")
    assert str(refused.value).startswith("it")
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "no such file"), (b"\xff\xfe\x00\x01", "is not text"), (b"\x1f\x8b\x08broken", "cannot be read")],
)
def test_files_that_cannot_be_read(content, said, tmp_path):
    path = tmp_path / "it.rle"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=said):
        pattern_files.read(str(path))


@examples(30)
@given(boards(), rules, edges, st.booleans())
def test_rle_round_trip(cells, rule, edges, bounded):
    shape = cells.shape
    before = Pattern(np.argwhere(cells), *shape, rule, (*shape, edges) if bounded else None)
    lines = list(pattern_files.rle(before))
    after = pattern_files.parse("\n".join(lines))
    assert (after.cells == before.cells).all()
    assert (after.rows, after.columns, after.rule, after.board) == (*shape, rule, before.board)
    assert max(map(len, lines[1:])) <= 70
    assert "\n".join(pattern_files.rle(after)) == "\n".join(lines)


@examples(30)
@given(boards())
def test_plaintext_and_life_106_round_trips(cells):
    cells[0, 0] = cells[-1, -1] = 1  # these formats do not tell how large an empty border is
    before = Pattern(np.argwhere(cells), *cells.shape)
    for write in (pattern_files.plaintext, pattern_files.life_106):
        after = pattern_files.parse("\n".join(write(before)))
        assert (after.cells == before.cells).all()
        assert (after.rows, after.columns) == cells.shape


@pytest.mark.parametrize("suffix", pattern_files.SUFFIXES)
def test_files_round_trip(suffix, tmp_path):
    path = str(tmp_path / f"gun{suffix}")
    gun = classic_patterns.find("gosper")
    pattern_files.write(path, gun)
    assert (pattern_files.read(path).cells == gun.cells).all()
    with open(path, "rb") as file, gzip.open(f"{path}.gz", "wb") as zipped:
        zipped.write(file.read())
    assert (pattern_files.read(f"{path}.gz").cells == gun.cells).all()


def test_a_file_that_cannot_be_written_whole_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "gun.rle"
    pattern_files.write(str(path), classic_patterns.find("glider"))
    before = path.read_bytes()

    def broken(pattern):
        yield "x = 1"
        raise OSError("disk full")

    monkeypatch.setattr(pattern_files, "rle", broken)
    with pytest.raises(OSError, match="disk full"):
        pattern_files.write(str(path), classic_patterns.find("gosper"))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["gun.rle"]


def test_unknown_suffix(tmp_path):
    with pytest.raises(ValueError, match=r"\.rle, \.lif, \.cells"):
        pattern_files.write(str(tmp_path / "gun.txt"), classic_patterns.find("gosper"))


def test_classics_have_the_cells_that_they_are_known_for():
    sizes = {name: len(classic_patterns.find(name).cells) for name in classic_patterns.NAMES}
    known = {"acorn": 7, "beacon": 6, "blinker": 3, "block": 4, "diehard": 7, "glider": 5, "gosper": 36, "lwss": 9}
    assert sizes == {**known, "pentadecathlon": 12, "pulsar": 48, "r-pentomino": 5, "toad": 6}
