"""What is drawn, and that shrinking leaves the fewest options."""

import json

from tests.differential import configurations
from tests.differential.configurations import OPTIONS, draw, sensible, shrink

DRAWN = [draw(seed) for seed in range(1500)]


def test_a_seed_always_draws_the_same():
    assert draw(3) == draw(3) != draw(4)
    assert json.loads(json.dumps(DRAWN)) == DRAWN  # as it travels to other processes


def test_every_value_of_every_option_is_drawn():
    drawn = {(name, c.get(name, values[0])) for c in DRAWN for name, values in OPTIONS.items()}
    assert {(name, value) for name, values in OPTIONS.items() for value in values} == drawn


def test_options_can_be_drawn_always():
    assert all("train_step" in draw(seed, ["train_step"]) for seed in range(50))


def test_what_is_drawn_stays_as_it_is():
    assert [sensible(c) for c in DRAWN] == DRAWN


def test_shrinking_leaves_the_fewest_options():
    tried = []

    def fails(candidate):
        tried.append(candidate)
        return candidate.get("clip") == "clipnorm" and candidate.get("batch") == 1

    found = next(c for c in DRAWN if fails(c) and len(c) > 6)
    assert shrink(found, fails) == {"clip": "clipnorm", "batch": 1}
    assert all(sensible(c) == c for c in tried)


def test_shrinking_what_fails_without_options_leaves_none():
    assert shrink(DRAWN[0], lambda candidate: True) == {}


def test_short_data_is_one_batch():
    for c in map(configurations.complete, DRAWN):
        assert configurations.rows(c) > 0
        assert (configurations.steps_of_a_pass(c) == 1) == (c["rows"] == "short")
