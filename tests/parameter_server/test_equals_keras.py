"""One asynchronous worker, and two synchronous ones, come to the numbers of Keras on one device in every variable."""

import functools
import pickle

import numpy as np
import pytest

from tests.jobs import run_program
from tests.parameter_server import cases

WORKERS = {"async": 1, "sync": 2}
pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]
by_keras = functools.cache(cases.by_keras)


@functools.cache
def trained(directory, update):
    """What the program came to; it ran once for all tests."""
    out = directory / f"{update}.pickle"
    run_program(["--ps=2", f"--workers={WORKERS[update]}"], "equal_to_keras", out, update, limit=380)
    return pickle.loads(out.read_bytes())


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return functools.partial(trained, tmp_path_factory.mktemp("equal_to_keras"))


ALL = [(update, name, steps) for name, case in cases.CASES.items() for update, steps in case.options]


@pytest.mark.parametrize(("update", "name", "local_steps"), ALL)
def test_equals_keras(tf, results, update, name, local_steps):
    found = results(update)[name, local_steps]
    assert not isinstance(found, str), found
    variables, history = by_keras(name)
    for ours, theirs in zip(found[0], variables, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=5e-4, atol=2e-5)
    assert set(found[1]) == set(history)
    for key, values in history.items():
        np.testing.assert_allclose(found[1][key], values, rtol=5e-4, err_msg=key)


def test_hooks_for_a_batch(tf, results):
    """With one worker they are called in Keras's order; what they change or stop counts from the next step on."""
    calls, variables = results("async")["hooks"]
    expected, theirs = cases.with_hooks()
    assert calls == expected
    for ours, value in zip(variables, theirs, strict=True):
        np.testing.assert_allclose(ours, value, rtol=5e-4, atol=2e-5)
