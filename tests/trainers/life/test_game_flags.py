"""What is played: the command's words, and the pattern's where they say nothing."""

import pytest

from tf2dist.data.errors import DataError
from trainers.life import packed_board
from trainers.life.game_flags import choose
from trainers.life.rule import LIFE, parse


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bounded.rle").write_text("x = 2, y = 1, rule = B36/S23:P30,20\n2o!")


def test_the_default_is_a_random_torus():
    game = choose("random", None, None, None, None)
    assert (game.rows, game.columns, game.rule, game.edges) == (50, 50, LIFE, "torus")
    assert (game.board(1) == packed_board.random(50, 50, 1)).all()


def test_what_a_pattern_says():
    game = choose("bounded.rle", None, None, None, None)
    assert (game.rows, game.columns, game.rule, game.edges) == (20, 30, parse("B36/S23"), "dead")
    assert packed_board.living_cells(game.board(1)).tolist() == [[9, 14], [9, 15]]


def test_what_the_command_says_counts_more():
    game = choose("bounded.rle", "7x9", "6,7", "B3/S23", "torus")
    assert (game.rows, game.columns, game.rule, game.edges) == (7, 9, LIFE, "torus")
    assert packed_board.living_cells(game.board(1)).tolist() == [[6, 7], [6, 8]]


def test_what_a_board_begins_with(tmp_path):
    """Other words for other boards; the same for the same one, by whatever name."""
    (tmp_path / "mine.rle").write_text("x = 3, y = 3\nbo$2bo$3o!")
    (tmp_path / "other.rle").write_text("x = 3, y = 3\nbo$2bo$b2o!")
    glider = choose("glider", "30x40", "3,4", None, None).beginning(1)
    assert glider.startswith("5 living cells at 3,4 (pattern ")
    assert choose("mine.rle", "30x40", "3,4", None, None).beginning(2) == glider
    others = [
        choose("glider", "30x40", "4,3", None, None).beginning(1),
        choose("other.rle", "30x40", "3,4", None, None).beginning(1),
        choose("toad", "30x40", "3,4", None, None).beginning(1),
        *(choose("random", "30x40", None, None, None).beginning(seed) for seed in (1, 2)),
    ]
    assert len({glider, *others}) == 6
    assert others[-1] == "a random board of seed 2"


def test_boards_of_patterns_that_say_nothing():
    assert (choose("gosper", None, None, None, None).rows, choose("gosper", None, None, None, None).columns) == (50, 72)


def test_a_board_that_is_written_can_be_played_on(tmp_path):
    game = choose("glider", "30x40", "3,4", "B36/S23", "dead")
    game.write("last.rle", game.board(1))
    again = choose("last.rle", None, None, None, None)
    assert str(again) == str(game)
    assert (again.board(1) == game.board(1)).all()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("random", "50", None, None, None), "--size=50 cannot be read"),
        (("random", "50x", None, None, None), "--size=50x cannot be read"),
        (("random", None, "1,1", None, None), "--at=1,1 says where the pattern is"),
        (("random", None, None, "B9/S23", None), "9 neighbours"),
        (("unknown", None, None, None, None), "--pattern=unknown is no file and no name"),
        ((".", None, None, None, None), ". cannot be read: is a directory"),
        (("gosper", "30x30", None, None, None), "has 9x36 cells and the board 30x30; --size=30x36 would hold it"),
        (("glider", "9x9", "-1,0", None, None), "--at=-1,0 cannot be read"),
        (("glider", "9x9", "0,7", None, None), "--at=0,7 leaves no room for the pattern; 6,6 is the last"),
    ],
)
def test_refused(arguments, said):
    with pytest.raises(DataError) as refused:
        choose(*arguments)
    assert said in str(refused.value)
