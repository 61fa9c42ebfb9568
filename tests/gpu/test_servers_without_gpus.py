"""Workers have a device that servers lack, and placement is hard: nothing that servers run may ask for it.

Only emulated: a second CPU device of the workers stands for their GPU, also where there are GPUs.
"""

import json

import numpy as np
import pytest

from tests.conftest import sampled
from tests.gpu.conftest import ON_GPU
from tests.jobs import run_program
from tests.programs import far_workers

pytestmark = pytest.mark.timeout(560)
LIMIT = 500.0  # seconds for a job


@pytest.fixture(scope="module", params=sampled((1, 2), (), (2,)), ids="{} servers".format)
def results(request, tmp_path_factory):
    """What came of each way in a job with so many servers, or its error as text; it ran once."""
    if ON_GPU:
        pytest.skip("this is an emulation on CPUs; test_jobs.py has workers with GPUs")
    out = tmp_path_factory.mktemp("far_workers")
    run_program([f"--ps={request.param}", "--workers=1"], "far_workers", out, limit=LIMIT)
    return {"servers": request.param, **json.loads((out / "results.json").read_text())}


def test_servers_lack_the_device_of_steps(results):
    """Or the others show nothing."""
    assert results["steps"] == ["", far_workers.FAR]  # those of local steps are left to TensorFlow
    assert f"/job:ps/replica:0/task:0{far_workers.FAR}" in results["refusal"]


def test_all_that_asks_for_the_device_of_workers_has_a_kernel_for_gpus(tf, results):
    if not tf.test.is_built_with_cuda():
        pytest.skip("this TensorFlow has no kernels for GPUs")
    assert results["far"] > 1000
    assert results["without kernel"] == []


@pytest.mark.parametrize("way", far_workers.WAYS)
def test_trains_as_one_process_does(tf, results, way):
    found = results["ways"][way]
    assert isinstance(found, dict), found
    with tf.device("/cpu:3"):
        expected = far_workers.train(way)
    assert found["updates"] == expected["updates"] == far_workers.EPOCHS * 7
    for name in ("loss", "predicted"):
        np.testing.assert_allclose(found[name], expected[name], rtol=2e-3, atol=2e-4)
    for ours, theirs in zip(found["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-4)


def test_variables_are_on_all_servers(results):
    """What is still alive of the ways before decides where those of one are."""
    servers = {f"/job:ps/replica:0/task:{index}/device:CPU:0" for index in range(results["servers"])}
    assert set().union(*(found["variables"] for found in results["ways"].values())) == servers
