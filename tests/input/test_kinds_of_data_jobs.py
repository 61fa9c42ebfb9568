"""Data of several kinds in clusters of several processes: each example once, and the numbers of one device."""

import json

import numpy as np
import pytest

from tests.custom_step_cases import CASES as CUSTOM_STEPS
from tests.custom_step_cases import batches
from tests.input.test_structures import BATCH, pair_data, pair_model
from tests.jobs import run_program

LAYOUTS = {"multiworker": ["--workers=2"], "ps": ["--ps=1", "--workers=2"]}
pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


@pytest.fixture(scope="module", params=LAYOUTS)
def layout(request):
    return request.param


@pytest.fixture(scope="module")
def results(layout, tmp_path_factory):
    """What the program found out in a cluster of this layout, under "ps" with synchronous updates."""
    out = tmp_path_factory.mktemp("kinds") / "results.json"
    run_program(LAYOUTS[layout], "kinds_of_data", layout, out)
    return json.loads(out.read_text())


@pytest.mark.parametrize("name", ["shuffled", "random in a function"])
def test_each_example_is_seen_once_a_pass(results, name):
    """`shuffle` without a seed, as TensorFlow's tutorials write it: each process reads the same order."""
    times = np.array(results[name])
    assert times.min() > 0
    np.testing.assert_allclose(times, times.mean(), rtol=1e-4)


def test_asynchronous_workers_see_each_example_once_a_pass(layout, results):
    """The coordinator reads the Dataset for them."""
    if layout == "ps":
        times = np.array(results["asynchronous"])
        assert times.min() > 0
        np.testing.assert_allclose(times, times.mean(), rtol=1e-4)


@pytest.mark.parametrize("name", ["of other lengths", "of other lengths, local steps"])
def test_batches_of_other_lengths(layout, results, name):
    """Several of them are sent with an execution."""
    if layout == "ps":
        times = np.array(results[name]) * 16  # of a batch of 16
        np.testing.assert_allclose(times, 3 * np.array(results["lengths"]), rtol=1e-4)


def test_asynchronous_workers_read_their_files_where_that_is_asked(layout, results):
    """Each example of a worker's as often as its others, but for those of the pass that it is in."""
    if layout == "ps":
        assert results["files of both workers in a batch"] == [0.0] * 5
        times = np.array(results["files"]) * 8  # of a batch of 8
        np.testing.assert_allclose(times.sum(), 5 * len(times), rtol=1e-4)
        for mine in (times[::2], times[1::2]):
            assert mine.max() - mine.min() <= 1 + 1e-3


def test_each_example_of_a_data_service_is_seen_once_a_pass(layout, results):
    """Peers would get different batches of it."""
    if layout == "multiworker":
        assert "a tf.data service gives each peer other elements" in results["service"]
        assert "service, evaluated" not in results
        return
    np.testing.assert_allclose(results["service"], results["shuffled"][0], rtol=1e-4)
    assert results["service, evaluated"] == pytest.approx(results["shuffled, evaluated"], rel=1e-5)


@pytest.mark.parametrize("name", ["shuffled"])
def test_each_example_is_evaluated_once(results, name):
    assert results[f"{name}, evaluated"] == pytest.approx(np.mean(np.arange(96.0) ** 2), rel=1e-5)


def test_lists_of_inputs_and_outputs(tf, results):
    a, b, y1, y2 = pair_data()
    model = pair_model(2)
    model.fit([a, b], [y1, y2], batch_size=BATCH, shuffle=False, epochs=2, verbose=0)
    for ours, theirs in zip(results["lists"], model.trainable_variables, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)
    for ours, theirs in zip(results["predicted"], model.predict([a, b], verbose=0), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["vae", "several outputs"])
def test_steps_of_ones_own(tf, layout, results, name):
    if layout == "ps":  # refuses them
        assert name not in results
        return
    make, rows = CUSTOM_STEPS[name]
    model = make()
    expected = model.fit(batches(rows, BATCH), epochs=2, verbose=0).history
    for ours, theirs in zip(results[name], model.trainable_variables, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)
    for log, values in expected.items():
        np.testing.assert_allclose(results[f"{name}, history"][log], values, rtol=5e-4, atol=1e-5, err_msg=log)


def test_a_trained_model_is_freed(results):
    assert results["freed"] == [True, True]
