"""Tables whose rows are looked up, with options of their optimizers, against `keras.Model.fit` on one device."""

import functools
import pickle

import pytest

import tf2dist
from tests import embedding_cases
from tests.jobs import run_program

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("strategy", "replicas", "options"),
    [
        *(("mirrored", 2, options) for options in embedding_cases.OPTIONS),
        ("mirrored", 3, "accumulation, global_clipnorm, averages"),
        ("mirrored", 3, "loss scale, averages"),
        ("central", 3, "loss scale, accumulation"),
        ("one", None, "loss scale, accumulation"),
    ],
)
def test_equals_keras(tf, strategy, replicas, options):
    strategy = tf2dist.make_strategy(strategy, replicas=replicas)
    several_steps = functools.partial(tf2dist.fit, steps_per_execution=4)
    embedding_cases.check(options, embedding_cases.trained(options, several_steps, strategy.scope()))


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        pytest.param(["--workers=2"], ["loss scale, averages"], id="peers"),
        pytest.param(["--ps=1", "--workers=2"], embedding_cases.OPTIONS, id="synchronous workers"),
    ],
)
def test_processes_equal_keras(tf, tmp_path, layout, options):
    out = tmp_path / "results.pickle"
    run_program(layout, "embeddings", out, *options)
    for options, ours in pickle.loads(out.read_bytes()).items():
        embedding_cases.check(options, ours)
