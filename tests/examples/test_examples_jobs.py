"""Programs in the architectures of keras.io's examples: changing the call is all, in jobs of several processes."""

import functools
import itertools
import pickle
import re

import pytest

from tests import examples
from tests.conftest import sampled
from tests.jobs import run_program

# Two workers of parameter servers do not wait for each other, so that their numbers are not Keras's.
LAYOUTS = {"multiworker": ["--workers=2"], "ps": ["--ps=2", "--workers=1"]}
# Some of each kind; all of them when all are asked for.
SAMPLE = (
    "collaborative_filtering",
    "image_similarity_metric_learning",
)
# A loss of all words that are not padding: peers cannot exchange rows in a step (collective operations in a loop keep
# the shape that they met first, and a last batch has fewer rows).
REFUSED = {("multiworker", "ner_transformer"): "loss_of_real_words must be a mean over examples"}
CASES = list(itertools.product(LAYOUTS, examples.NAMES))
pytestmark = pytest.mark.timeout(1600)


@pytest.fixture(scope="module")
def results_of(tmp_path_factory):
    """results_of(layout, name): what a program has found; a job runs some of them, and another one the others."""

    @functools.cache
    def run(layout, some):
        out = tmp_path_factory.mktemp("examples") / "results.pickle"
        names = [name for name in examples.NAMES if (name in SAMPLE) == some]
        run_program(LAYOUTS[layout], "keras_examples", layout, out, *names, limit=1500)
        return pickle.loads(out.read_bytes())

    return lambda layout, name: run(layout, name in SAMPLE)[name]


@pytest.mark.parametrize(("layout", "name"), sampled(CASES, (), [case for case in CASES if case[1] in SAMPLE]))
def test_changing_the_call_is_all(tf, results_of, layout, name):
    found = results_of(layout, name)
    if (layout, name) in REFUSED:
        assert re.search(REFUSED[layout, name], found)
        return
    assert not isinstance(found, str), found
    examples.check(name, found, examples.by_keras(name), several=layout == "multiworker")
