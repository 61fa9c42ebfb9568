"""What all tests share: TensorFlow with four virtual CPU devices, the strategies of one process, small models."""

import os
import signal

# What a shell without job control starts in the background ignores interrupts, and so does what the tests start then.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest

SINGLE_PROCESS = ("one", "mirrored", "central")
# For what takes long: mirrored, which differs most from Keras alone, is always run.
SINGLE_PROCESS_SLOWLY = [pytest.param(s, marks=() if s == "mirrored" else pytest.mark.slow) for s in SINGLE_PROCESS]


@pytest.fixture(scope="session", autouse=True)
def tf():
    """TensorFlow, its CPU split into four devices before any test touches them, whichever comes first."""
    import tensorflow

    from tf2dist import devices

    devices.make_virtual_cpus(4)
    return tensorflow


@pytest.fixture(params=SINGLE_PROCESS)
def strategy(request, tf):
    """Each strategy of one process; two replicas where it has several."""
    from tf2dist import make_strategy

    return make_strategy(request.param, replicas=None if request.param == "one" else 2)


@pytest.fixture(scope="session")
def digits():
    """The first 200 handwritten digits: images f32[200, 28, 28] in [0, 1], labels i64[200]."""
    from tf2dist.data import Source, load

    (images, labels), _ = load(Source("digits"))
    return (images[:200] / 255.0).astype(np.float32), labels[:200]
