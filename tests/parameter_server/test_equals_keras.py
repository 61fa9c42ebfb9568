"""One asynchronous worker, and two synchronous ones, come to the numbers of Keras on one device in every variable."""

import functools
import pickle
import re

import numpy as np
import pytest

from tests.conftest import sampled
from tests.jobs import run_program
from tests.parameter_server import cases

WORKERS = {"async": 1, "sync": 2}
# Others have what is particular about these; they are tried when all are asked for, in jobs of their own.
LIKE_OTHERS = (
    "words, nadam", "words, ftrl", "words, lion", "words, adafactor", "words, clipnorm", "dense, decay", "dense, adamw",
    "spectral",
)  # fmt: skip
pytestmark = pytest.mark.timeout(400)
by_keras = functools.cache(cases.by_keras)


@functools.cache
def trained(directory, servers, update, like_others=False):
    """What the program came to; it ran once for all tests."""
    out = directory / f"{servers}, {update}, {like_others}.pickle"
    names = [name for name in cases.CASES if (name in LIKE_OTHERS) == like_others]
    layout = [f"--ps={servers}", f"--workers={WORKERS[update]}"]
    run_program(layout, "equal_to_keras", out, update, *names, limit=380)
    return pickle.loads(out.read_bytes())


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return functools.partial(trained, tmp_path_factory.mktemp("equal_to_keras"))


REFUSED = [("async", "own function", 3), ("async", "computed again", 3)]
ALL = [(update, name, steps) for name, case in cases.CASES.items() for update, steps in case.options]
# One server makes updates in a call of its own, and answers with weights; with two, each has a part of every model.
ALL = [(servers, *one) for servers in (1, 2) for one in ALL if one not in REFUSED]


@pytest.mark.parametrize(
    ("servers", "update", "name", "local_steps"), sampled(ALL, (), [one for one in ALL if one[2] not in LIKE_OTHERS])
)
def test_equals_keras(tf, results, servers, update, name, local_steps):
    found = results(servers, update, name in LIKE_OTHERS)[name, local_steps]
    assert not isinstance(found, str), found
    variables, history = by_keras(name)
    for ours, theirs in zip(found[0], variables, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=5e-4, atol=2e-5)
    assert set(found[1]) == set(history)
    for key, values in history.items():
        np.testing.assert_allclose(found[1][key], values, rtol=5e-4, err_msg=key)


@pytest.mark.slow
@pytest.mark.parametrize(("update", "name", "local_steps"), REFUSED)
def test_a_worker_has_no_copies_of_weights_that_functions_see_as_variables(results, update, name, local_steps):
    found = results(1, update, False)[name, local_steps]
    layer = name.replace(" ", "_")
    assert re.search(rf"UsageError: local_steps: \S*/{layer}/kernel is used in a function of the model's own", found)


@pytest.mark.slow
@pytest.mark.parametrize("servers", [1, 2])
def test_hooks_for_a_batch(tf, results, servers):
    """With one worker they are called in Keras's order; what they change or stop counts from the next step on."""
    calls, variables = results(servers, "async", False)["hooks"]
    expected, theirs = cases.with_hooks()
    assert calls == expected
    for ours, value in zip(variables, theirs, strict=True):
        np.testing.assert_allclose(ours, value, rtol=5e-4, atol=2e-5)
