"""What must be true on GPUs. `make test-gpu` runs it on them; otherwise virtual CPU devices stand in.

TF2DIST_TESTS_GPU says which: `gpu` (all tests are skipped, with one reason, where there is none) or `cpu`, the default.
On GPUs the tests of one process see two logical devices that share the first one; those of several processes see what
the user's environment shows.
"""

import functools
import os

import numpy as np
import pytest

from tests.conftest import sampled

_ASKED = os.environ.get("TF2DIST_TESTS_GPU", "cpu")
if _ASKED not in ("cpu", "gpu"):
    raise pytest.UsageError(f"TF2DIST_TESTS_GPU is {_ASKED!r}; it is gpu or cpu")
ON_GPU = _ASKED == "gpu"
_PART_MIB = 3000  # of each of two logical devices on one GPU


@functools.cache
def reason_to_skip():
    """Why nothing of this can run, in one line; empty if it can."""
    from tf2dist.errors import UsageError
    from tf2dist.system import gpus

    if not ON_GPU:
        return ""
    try:
        found = gpus.visible()
    except UsageError as error:
        return str(error)
    return "" if found else "there is no GPU here: TF2DIST_TESTS_GPU=cpu runs these on virtual CPU devices"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    if reason := reason_to_skip():
        pytest.skip(reason)  # here, so that pytest counts all of them in one line


@pytest.fixture(scope="session", autouse=True)
def parts(tf):
    """Two logical devices on the first GPU, as `/gpu:0` and `/gpu:1`, before any test touches them."""
    if not ON_GPU:
        return
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        pytest.exit("nvidia-smi sees a GPU and TensorFlow does not: python -m tf2dist.doctor says why", returncode=1)
    tf.config.set_visible_devices(gpus[:1], "GPU")
    part = tf.config.LogicalDeviceConfiguration(memory_limit=_PART_MIB)
    tf.config.set_logical_device_configuration(gpus[0], [part, part])
    tf.config.experimental.enable_tensor_float_32_execution(False)  # the tolerances are those of float32


@pytest.fixture(autouse=True)
def way_of_accelerators(monkeypatch):
    """On CPUs, code takes the way that it takes on parts of one GPU: tf.distribute's iterators, one-device sums."""
    from tf2dist.runtime import devices, make_strategy

    make_strategy._mirrored.cache_clear()
    if not ON_GPU:
        monkeypatch.setattr(devices, "on_accelerators", lambda strategy: True)
        monkeypatch.setattr(devices, "physical_gpus", lambda replicas: [0] * len(replicas))
    yield
    make_strategy._mirrored.cache_clear()


@pytest.fixture(params=sampled(["one", "mirrored", "central"], slow=["one", "mirrored"]))
def strategy(request, tf):
    """A strategy on the GPU, or on both of its parts."""
    from tf2dist import make_strategy

    return make_strategy(request.param, replicas=1 if request.param == "one" else 2)


@pytest.fixture
def cpu(tf):
    """One CPU, which has the numbers to compare with."""
    return tf.distribute.OneDeviceStrategy("/cpu:3")


@pytest.fixture
def kind():
    """The kind of device that the tests run on, as in the names of devices."""
    return "GPU" if ON_GPU else "CPU"


def skip_without_bfloat16():
    """Skips what multiplies in bfloat16 on a GPU from before Ampere, which has no instructions for it."""
    if not ON_GPU:
        return
    import tensorflow as tf

    gpu = tf.config.list_physical_devices("GPU")[0]
    capability = tf.config.experimental.get_device_details(gpu).get("compute_capability", (0, 0))
    if capability < (8, 0):
        pytest.skip(f"compute capability {'.'.join(map(str, capability))} has no bfloat16; 8.0 (Ampere) and later have")


def assert_close(ours, theirs, rtol=2e-3, atol=2e-4):
    """Compares lists of arrays. On GPUs sums have other orders; all else is float32 without TF32."""
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=rtol, atol=atol)
