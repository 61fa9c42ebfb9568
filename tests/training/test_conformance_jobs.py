"""Every model of the zoo in clusters of several processes, against Keras's own `fit` on one device."""

import pickle

import keras
import numpy as np
import pytest

from tests import zoo
from tests.jobs import run_program

LAYOUTS = {
    "multiworker": ["--workers=2"],
    "ps, 1 worker": ["--ps=1", "--workers=1"],
    "ps, 2 workers": ["--ps=2", "--workers=2"],
}
QUICK = ("measured", "own_loss", "clipped", "scaled")  # whose bands are tried in `make test`
SMALL = ("sample_weights",)  # a Poisson loss, which is far above 0 where the counts are right
BANDS = [
    pytest.param(name, band, marks=() if name in QUICK else pytest.mark.slow, id=f"{name}-{number}")
    for name, case in zoo.CASES.items()
    for number, band in enumerate(sorted(case.bands(), key=repr))
]
pytestmark = pytest.mark.timeout(500)


@pytest.fixture(scope="module", params=[pytest.param(layout, marks=pytest.mark.slow) for layout in LAYOUTS])
def layout(request):
    return request.param


@pytest.fixture(scope="module")
def out(layout, tmp_path_factory):
    """Where a cluster of this layout left what it trained; it ran once, through the whole zoo."""
    out = tmp_path_factory.mktemp("zoo")
    run_program(LAYOUTS[layout], "conformance", layout, out, limit=480)
    return out


@pytest.fixture(scope="module")
def results(out):
    """What came of each case: a `zoo.Trained`, or the error as text."""
    return pickle.loads((out / "results.pickle").read_bytes())


def trained(results, name):
    assert isinstance(results[name], zoo.Trained), results[name]
    return results[name]


@pytest.mark.parametrize("name", zoo.CASES)
def test_equals_keras(tf, layout, results, name):
    expected = zoo.CASES[name].expected(layout.partition(",")[0], asynchronous=layout == "ps, 2 workers")
    if isinstance(expected, zoo.Refused):
        assert str(results[name]).startswith("ValueError")
        assert expected.match in results[name]
    else:
        zoo.check(name, trained(results, name), expected)


def test_examples_are_counted_exactly(tf, layout, results):
    """Each is in one of the four counts of a confusion, none is lost and none counted twice."""
    case, history = zoo.CASES["lstm"], trained(results, "lstm").history
    possible = zoo.examples_in_async_epoch(case) if layout == "ps, 2 workers" else {case.rows}
    for counts in zip(*(history[name] for name in ("tp", "tn", "fp", "fn")), strict=True):
        assert sum(counts) in possible


def test_validation_counts_every_example_once(tf, results):
    """Evaluation does not depend on who is fast: on every layout each example once."""
    cells = trained(results, "measured").history["val_cells"]
    assert cells == [6 * zoo.CASES["measured"].rows] * len(cells)
    history = trained(results, "mlp").history
    correct = np.array(history["val_accuracy"]) * zoo.CASES["mlp"].rows
    np.testing.assert_allclose(correct, np.round(correct), atol=1e-3)


@pytest.mark.parametrize("name", zoo.SAVED)
def test_saved_models_load_in_plain_keras(tf, out, results, name):
    x = zoo.CASES[name].inputs()
    expected = zoo.with_weights(name, trained(results, name).weights)(x, training=False)
    loaded = keras.saving.load_model(out / f"{name}.keras")
    np.testing.assert_allclose(loaded(x, training=False), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    assert int(loaded.optimizer.iterations.numpy()) == results[name].updates


@pytest.mark.parametrize("name", zoo.SAVED)
def test_exported_models_load_in_plain_tensorflow(tf, out, results, name):
    x = zoo.CASES[name].inputs()
    expected = zoo.with_weights(name, trained(results, name).weights)(x, training=False)
    loaded = tf.saved_model.load(str(out / name))
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
