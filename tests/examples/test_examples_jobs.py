"""Programs in the architectures of keras.io's examples: changing the call is all, in jobs of several processes."""

import functools
import pickle

import pytest

from tests import examples
from tests.jobs import run_program

# Two workers of parameter servers do not wait for each other, so that their numbers are not Keras's.
LAYOUTS = {"multiworker": ["--workers=2"], "ps": ["--ps=2", "--workers=1"]}
# Some of each kind. Parameter servers refuse several others, as one with lookup tables that was made out of scope.
SAMPLE = (
    "collaborative_filtering",
    "image_similarity_metric_learning",
    "masked_language_model",
    "timeseries_weather_lstm",
)
pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


@pytest.fixture(scope="module")
def results_of(tmp_path_factory):
    """results_of(layout): what its programs have found, all in one job, which fails if one of them does."""

    @functools.cache
    def run(layout):
        out = tmp_path_factory.mktemp("examples") / "results.pickle"
        run_program(LAYOUTS[layout], "keras_examples", layout, out, *SAMPLE)
        return pickle.loads(out.read_bytes())

    return run


@pytest.mark.parametrize(("layout", "name"), [(layout, name) for layout in LAYOUTS for name in SAMPLE])
def test_changing_the_call_is_all(tf, results_of, layout, name):
    examples.check(name, results_of(layout)[name], examples.by_keras(name), several=layout == "multiworker")
