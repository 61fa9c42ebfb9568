"""Which variable of a checkpoint is meant by its name, and where a name does not say."""

import pytest

from tf2dist.convert_checkpoint import ConvertError
from tf2dist.convert_checkpoint.match_variables import match

TWO = {"encoder/dense/kernel": (4, 4), "dense/kernel": (4, 4)}


@pytest.mark.parametrize(
    ("wanted", "found", "expected"),
    [
        (TWO, ["dense/kernel", "encoder/dense/kernel"], ["encoder/dense/kernel", "dense/kernel"]),
        (TWO, ["dense/weights", "encoder/dense/weights"], ["encoder/dense/weights", "dense/weights"]),
        (TWO, ["encoder/dense/kernel", "dense/w"], ["encoder/dense/kernel", "dense/w"]),
        ({"dense/kernel": (4, 4)}, ["net/dense/weights", "other/w"], ["net/dense/weights"]),
        ({"net/dense/kernel": (4, 4)}, ["dense/weights", "other/w"], ["dense/weights"]),
        ({"net/dense/kernel": (4, 4)}, ["dense/kernel", "dense/weights"], ["dense/kernel"]),
    ],
)
def test_the_closest_name_is_meant(wanted, found, expected):
    matches = match(wanted, dict.fromkeys(found, (4, 4)), {})
    assert [(pair.name, pair.why) for pair in matches.values()] == [(name, "name") for name in expected]


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        # Which of the two was dense/kernel of a program with one network? Not the first by order of the alphabet.
        (["a/dense/kernel", "b/dense/kernel"], ["dense/kernel", "other/w"]),
        (["a/dense/kernel", "b/dense/kernel"], ["dense/weights", "other/w"]),
        (["a/dense/kernel"], ["dense/w", "dense/weights"]),
        (["dense/kernel"], ["a/dense/kernel", "b/dense/kernel"]),
        (["a/dense/kernel"], ["a/dense/w", "a/dense/weights", "dense/kernel"]),
    ],
)
def test_a_name_that_does_not_say_which_is_left_to_the_shape(paths, names):
    with pytest.raises(ConvertError, match="say in a name map which is meant"):
        match(dict.fromkeys(paths, (4, 4)), dict.fromkeys(names, (4, 4)), {})
    # Of other shapes they are told apart, and a name map says it too.
    if len(paths) == len(names):
        matches = match({paths[0]: (4, 4), paths[1]: (5, 5)}, {names[1]: (4, 4), names[0]: (5, 5)}, {})
        assert [pair.name for pair in matches.values()] == names[::-1]
    given = dict(zip(paths, names[::-1], strict=False))
    assert match(dict.fromkeys(paths, (4, 4)), dict.fromkeys(names, (4, 4)), given)


def test_a_variable_of_the_name_and_another_shape_is_not_passed_over():
    with pytest.raises(ConvertError, match=r"dense/weights, which is meant by name, \[5, 4\]"):
        match({"dense/kernel": (4, 4)}, {"dense/weights": (5, 4), "other/w": (4, 4)}, {})
