"""AutoGraph converts what users write for `tf.data`, and none of our code: that would take longer than tracing it."""

import json

import pytest

from tests.conftest import SINGLE_PROCESS_SLOWLY, strategies
from tests.jobs import run_program
from tests.programs.autograph import converted_by

pytestmark = pytest.mark.timeout(200)
strategy = strategies(SINGLE_PROCESS_SLOWLY)
THEIRS = ["_upside_down"]


@pytest.mark.slow
def test_in_one_process(strategy):
    assert converted_by(strategy) == THEIRS


@pytest.mark.slow
def test_with_servers():
    ways = [{"update": "async"}, {"update": "sync"}, {"local_steps": 2}]
    output = run_program(["--ps=1", "--workers=1"], "autograph", "ps", json.dumps(ways))
    assert output.count("converted " + " ".join(THEIRS)) == len(ways)
    assert "trained 10 steps on data by number" in output


@pytest.mark.slow
def test_with_peers():
    output = run_program(["--workers=2"], "autograph", "multiworker")
    assert output.count("converted " + " ".join(THEIRS)) == 2
