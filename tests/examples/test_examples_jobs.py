"""Programs in the architectures of keras.io's examples: changing the call is all, in jobs of several processes."""

import functools
import pickle

import pytest

from tests import examples
from tests.conftest import sampled
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


@pytest.fixture(scope="module", params=LAYOUTS)
def layout(request):
    return request.param


@pytest.fixture(scope="module")
def results_of(layout, tmp_path_factory):
    """results_of(names): what each of these programs has found, all in one job; the trace where it raised."""

    @functools.cache
    def run(names):
        out = tmp_path_factory.mktemp("examples") / "results.pickle"
        run_program(LAYOUTS[layout], "keras_examples", layout, out, *names, limit=1000)
        return pickle.loads(out.read_bytes())

    return run


@pytest.mark.parametrize("name", sampled(examples.NAMES, (), SAMPLE))
def test_changing_the_call_is_all(tf, layout, results_of, name):
    others = tuple(n for n in examples.NAMES if n not in SAMPLE)
    found = results_of(SAMPLE if name in SAMPLE else others)[name]
    assert not isinstance(found, str), found
    examples.check(name, found, examples.by_keras(name), several=layout == "multiworker")
