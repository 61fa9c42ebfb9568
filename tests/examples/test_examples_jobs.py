"""Programs in the architectures of keras.io's examples: changing the call is all, in jobs of several processes."""

import functools
import pickle

import pytest

from tests import examples
from tests.jobs import run_program

# Two workers of parameter servers do not wait for each other, so that their numbers are not Keras's.
LAYOUTS = {"multiworker": ["--workers=2"], "ps": ["--ps=2", "--workers=1"]}
SAMPLE = (
    "collaborative_filtering",
    "image_similarity_metric_learning",
    "masked_language_model",
    "timeseries_weather_lstm",
)
pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]


NAMES = {
    "multiworker": examples.NAMES,
    "ps": tuple(name for name in examples.NAMES if name not in examples.OWN_TRAIN_STEPS),
}


@pytest.fixture(scope="module")
def results_of(tmp_path_factory):
    """results_of(layout, names): what these programs have found, all in one job, which fails if one of them does."""

    @functools.cache
    def run(layout, names):
        out = tmp_path_factory.mktemp("examples") / "results.pickle"
        run_program(LAYOUTS[layout], "keras_examples", layout, out, *names, limit=1000)
        return pickle.loads(out.read_bytes())

    return run


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        pytest.param(layout, name, marks=() if name in SAMPLE else pytest.mark.exhaustive)
        for layout in LAYOUTS
        for name in NAMES[layout]
    ],
)
def test_changing_the_call_is_all(tf, results_of, layout, name):
    together = tuple(n for n in NAMES[layout] if (n in SAMPLE) == (name in SAMPLE))
    found = results_of(layout, together)[name]
    examples.check(name, found, examples.by_keras(name), several=layout == "multiworker")
