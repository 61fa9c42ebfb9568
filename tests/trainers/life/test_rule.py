"""Rules as text, and the circuits that compute them."""

import operator
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given

from tests.trainers.life.random_games import examples, rules
from tf2dist.data.errors import DataError
from trainers.life import rule_diagram
from trainers.life.rule import LIFE, parse


@pytest.mark.parametrize("text", ["B3/S23", "b3/s23", "B3S23", "b3s23", "S23/B3", "23/3", " B3/S32 ", "B33/S232"])
def test_ways_to_write_life(text):
    assert parse(text) == LIFE


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "''"), ("B3", "'B3'"), ("B3/S23/4", "'B3/S23/4'"), ("B9/S23", "9 neighbours"), ("B2-a/S12", "'B2-a/S12'"),
     ("Life", "'Life'"), ("B3/S23:T5,5", "T5,5"), ("3", "'3'")],
)  # fmt: skip
def test_what_is_no_rule(text, said):
    with pytest.raises(DataError, match="rule") as refused:
        parse(text)
    assert said in str(refused.value)


@examples(30)
@given(rules)
def test_round_trip(rule):
    assert parse(str(rule)) == rule


NUMPY = SimpleNamespace(
    land=operator.and_, lor=operator.or_, xor=operator.xor, lnot=np.logical_not, constant=lambda bit: np.full(18, bit)
)


@examples(30)
@given(rules)
def test_circuits_compute_the_rule(rule):
    alive, count = np.divmod(np.arange(18), 9)
    bits = {f"n{i}": (count >> i & 1).astype(bool) for i in range(4)}
    found = rule_diagram.evaluate(rule_diagram.compile_rule(rule), {"alive": alive.astype(bool), **bits}, NUMPY)
    assert found.astype(int).tolist() == rule.table()


def test_life_needs_no_fourth_bit():
    assert "n3" not in str(rule_diagram.compile_rule(LIFE))
