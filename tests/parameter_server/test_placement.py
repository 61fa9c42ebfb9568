"""With two servers a small model is on one of them, and a large one on both."""

import pickle

import numpy as np
import pytest

from tests.jobs import run_program
from tests.parameter_server import cases


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    out = tmp_path_factory.mktemp("placement") / "found"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TF2DIST_ONE_SERVER_BYTES")
        run_program(["--ps=2", "--workers=1"], "server_placement", out)
    return pickle.loads(out.read_bytes())


pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


def test_a_large_model_is_on_both_and_what_belongs_to_a_weight_beside_it(found):
    kernels = {path: server for path, server in found["first"].items() if "kernel" in path}
    assert sorted(kernels.values()) == [0, 0, 0, 1, 1, 1]  # each with two moments
    assert {server for path, server in found["first"].items() if path not in kernels} == {0}


def test_a_small_model_is_on_the_first(found):
    assert len(found["small"]) > 4
    assert {*found["small"].values()} == {0}


@pytest.mark.parametrize("update", ["async", "sync"])
def test_it_trains_as_on_one_device(tf, found, update):
    values, history = found[update]
    expected, theirs = cases.by_keras("words, rmsprop")
    for ours, value in zip(values, expected, strict=True):
        np.testing.assert_allclose(ours, value, rtol=5e-4, atol=2e-5)
    np.testing.assert_allclose(history["loss"], theirs["loss"], rtol=5e-4)


@pytest.mark.parametrize("text", ["x", "-1", "1.5"])
def test_bytes_that_are_no_number(tf, monkeypatch, text):
    from tf2dist.errors import UsageError
    from tf2dist.runtime.make_strategy import _one_server_bytes

    monkeypatch.setenv("TF2DIST_ONE_SERVER_BYTES", text)
    with pytest.raises(UsageError, match=f"TF2DIST_ONE_SERVER_BYTES is '{text}'; it must be a number of bytes"):
        _one_server_bytes()
