"""What threads of Keras and TensorFlow report as failing on a strategy: programs as there, and Keras's numbers."""

import functools
import pickle

import pytest

from tests import examples
from tests.conftest import SINGLE_PROCESS_SLOWLY, strategies
from tests.jobs import run_program

LAYOUTS = {"multiworker": ["--workers=2"], "ps": ["--ps=2", "--workers=1"], "ps, 2 workers": ["--ps=1", "--workers=2"]}
pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
strategy = strategies(SINGLE_PROCESS_SLOWLY)


@pytest.mark.parametrize("name", examples.UPSTREAM)
def test_in_one_process(strategy, name):
    expected = examples.by_keras(name)
    with strategy.scope():
        ours = examples.run(name, ours=True)
    assert not (found := examples.differences(ours, expected)), "\n".join(found)


@pytest.fixture(scope="module")
def results_of(tmp_path_factory):
    """results_of(layout): what each of the programs has found, in one job."""

    @functools.cache
    def run(layout):
        out = tmp_path_factory.mktemp("upstream") / "results.pickle"
        run_program(LAYOUTS[layout], "keras_examples", layout.partition(",")[0], out, *examples.UPSTREAM, limit=500)
        return pickle.loads(out.read_bytes())

    return run


@pytest.mark.parametrize("name", examples.UPSTREAM)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_in_jobs(tf, results_of, layout, name):
    found, expected = results_of(layout)[name], examples.by_keras(name)
    assert not isinstance(found, str), found
    if layout == "ps, 2 workers":  # which do not wait for each other; all the same their counts are exact
        assert found.keys() == expected.keys()
        exact = [key for key in found if "rows" in key or "updates" in key]
        found, expected = ({key: results[key] for key in exact} for results in (found, expected))
    assert not (differences := examples.differences(found, expected)), "\n".join(differences)


@pytest.mark.parametrize("name", ["keras_21172_strings", "tensorflow_41657"])
def test_upstream_fails_on_two_devices(tf, name):
    """Fails when Keras's own fit has mended it; then the table in docs/models.md is to say so."""
    expected = examples.by_keras(name)
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope(), pytest.raises((tf.errors.OpError, AssertionError)):
        assert not examples.differences(examples.run(name, ours=False), expected)
