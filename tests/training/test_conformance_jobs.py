"""Every model of the zoo in clusters of several processes, against Keras's own `fit` on one device."""

import functools
import itertools
import pickle

import keras
import numpy as np
import pytest

from tests import zoo
from tests.conftest import sampled
from tests.jobs import run_program

LAYOUTS = {
    "multiworker": ["--workers=2"],
    "ps, 1 worker": ["--ps=1", "--workers=1"],
    "ps, 2 workers": ["--ps=2", "--workers=2"],
}
# What the tests marked slow try on every layout, and on some; all tests together try every model on every layout.
EVERYWHERE = ("mlp", "measured", "lstm", "scaled")
SOME = {
    "multiworker": (
        "convnet", "class_weights", "batch_normalization", "averaged_often", "several_optimizers", "float16",
        "own_logs",
    ),
    "ps, 1 worker": (
        "two_tower", "sample_weights", "clipped_each", "accumulated", "constrained", "text", "own_logs",
    ),
    "ps, 2 workers": ("transformer", "overridden_step", "batch_normalization", "dropout"),
}  # fmt: skip
CASES = [(layout, name) for layout in LAYOUTS for name in (*EVERYWHERE, *SOME[layout]) if name in zoo.CASES]
QUICK = ("measured",)  # whose bands are tried in `make test`
SMALL = ("sample_weights",)  # a Poisson loss, which is far above 0 where the counts are right
SAVED = sampled(list(itertools.product(LAYOUTS, zoo.SAVED)), (), [case for case in CASES if case[1] in zoo.SAVED])
TRIED = ("mlp", "lstm", "clipped", "averaged", "scaled", "float16")


def _when(name):
    return () if name in QUICK else pytest.mark.slow if name in TRIED else pytest.mark.exhaustive


BANDS = [
    pytest.param(name, band, marks=_when(name), id=f"{name}-{number}")
    for name, case in zoo.CASES.items()
    for number, band in enumerate(sorted(case.bands(), key=repr))
]
pytestmark = pytest.mark.timeout(500)


every_layout = pytest.mark.parametrize("layout", [pytest.param(layout, marks=pytest.mark.slow) for layout in LAYOUTS])


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """directory(layout, name): where a cluster of this layout left what it trained, this model among others.

    It runs once for some models, and once for the others.
    """
    parent = tmp_path_factory.mktemp("zoo")

    @functools.cache
    def run(layout, some):
        out = parent / f"{layout}, {some}"
        out.mkdir()
        names = [name for name in zoo.CASES if ((layout, name) in CASES) == some]
        run_program(LAYOUTS[layout], "conformance", layout, out, *names, limit=480)
        return out

    return lambda layout, name: run(layout, (layout, name) in CASES)


@pytest.fixture(scope="module")
def result(directory):
    """result(layout, name): what came of the case, a `zoo.Trained` or the error as text."""
    read = functools.cache(lambda out: pickle.loads((out / "results.pickle").read_bytes()))
    return lambda layout, name: read(directory(layout, name))[name]


def trained(result, layout, name):
    found = result(layout, name)
    assert isinstance(found, zoo.Trained), found
    return found


@pytest.mark.parametrize(("layout", "name"), sampled(list(itertools.product(LAYOUTS, zoo.CASES)), (), CASES))
def test_equals_keras(tf, layout, result, name):
    expected = zoo.CASES[name].expected(layout.partition(",")[0], asynchronous=layout == "ps, 2 workers")
    if isinstance(expected, zoo.Refused):
        assert str(result(layout, name)).startswith("UsageError")
        assert expected.match in result(layout, name)
    else:
        zoo.check(name, trained(result, layout, name), expected)


@every_layout
def test_examples_are_counted_exactly(tf, layout, result):
    """Each is in one of the four counts of a confusion, none is lost and none counted twice."""
    case, history = zoo.CASES["lstm"], trained(result, layout, "lstm").history
    possible = zoo.examples_in_async_epoch(case) if layout == "ps, 2 workers" else {case.rows}
    for counts in zip(*(history[name] for name in ("tp", "tn", "fp", "fn")), strict=True):
        assert sum(counts) in possible


@every_layout
def test_validation_counts_every_example_once(tf, layout, result):
    """Evaluation does not depend on who is fast: on every layout each example once."""
    cells = trained(result, layout, "measured").history["val_cells"]
    assert cells == [6 * zoo.CASES["measured"].rows] * len(cells)
    history = trained(result, layout, "mlp").history
    correct = np.array(history["val_accuracy"]) * zoo.CASES["mlp"].rows
    np.testing.assert_allclose(correct, np.round(correct), atol=1e-3)


@pytest.mark.parametrize(("layout", "name"), SAVED)
def test_saved_models_load_in_plain_keras(tf, layout, directory, result, name):
    x = zoo.CASES[name].inputs()
    expected = zoo.with_weights(name, trained(result, layout, name).weights)(x, training=False)
    loaded = keras.saving.load_model(directory(layout, name) / f"{name}.keras")
    np.testing.assert_allclose(loaded(x, training=False), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    assert int(loaded.optimizer.iterations.numpy()) == result(layout, name).updates


@pytest.mark.parametrize(("layout", "name"), SAVED)
def test_exported_models_load_in_plain_tensorflow(tf, layout, directory, result, name):
    x = zoo.CASES[name].inputs()
    expected = zoo.with_weights(name, trained(result, layout, name).weights)(x, training=False)
    loaded = tf.saved_model.load(str(directory(layout, name) / name))
    np.testing.assert_allclose(loaded.serve(x), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


# Here, and not in a file of their own, since the trainings of one device are the same as above.
@pytest.mark.parametrize(("name", "band"), BANDS)
def test_bands_refuse_an_untrained_model(tf, name, band):
    """And in the loss it is far from where one device comes, so that the rest of the way is no accident."""
    assert zoo.outside(name, zoo.weights_of(zoo.as_built(name)), band)
    begin, end = zoo.way(name, band)
    assert end["loss"] < 0.8 * begin["loss"] or name in SMALL


@pytest.mark.parametrize(("name", "band"), BANDS)
def test_bands_refuse_half_of_the_updates(tf, name, band):
    """As when all that one of two workers does is lost."""
    assert [line for line in zoo.outside(name, zoo.halfway(name, band), band) if line.startswith("loss: ")]
