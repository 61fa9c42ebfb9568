"""Models with steps of their own on parameter servers: one worker comes to Keras's numbers, several lose no count."""

import functools
import pickle

import numpy as np
import pytest

from tests.conftest import sampled
from tests.custom_step_cases import BATCH, CASES, WITHOUT_OTHER_REPLICAS, batches
from tests.jobs import run_program
from tests.programs import __name__ as PROGRAMS

pytestmark = pytest.mark.timeout(400)
# Others have what is particular about these; they are tried when all are asked for, in a job of their own.
ALL = CASES | WITHOUT_OTHER_REPLICAS
SOME = (
    *WITHOUT_OTHER_REPLICAS,
    "vae",
    "dcgan",
    "siamese",
    "other names",
    "own clipping",
    "several outputs",
    "functions",
    "words",
)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """results(name): what one worker has come to with a model."""
    directory = tmp_path_factory.mktemp("custom_steps")

    @functools.cache
    def trained(some):
        out = directory / f"{some}.pickle"
        names = [name for name in ALL if (name in SOME) == some]
        run_program(["--ps=2", "--workers=1"], "custom_steps", out, *names, limit=380)
        return pickle.loads(out.read_bytes())

    return lambda name: trained(name in SOME)[name]


@pytest.mark.parametrize("name", sampled(ALL, (), SOME))
def test_equals_keras(tf, results, name):
    found = results(name)
    assert not isinstance(found, str), found
    make, rows = ALL[name]
    model, dataset = make(), batches(rows)
    expected = model.fit(dataset, epochs=2, verbose=0).history
    weights, history, evaluated = found
    for ours, theirs in zip(weights, model.trainable_variables, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)
    assert history.keys() == expected.keys()
    for log, values in expected.items():
        np.testing.assert_allclose(history[log], values, rtol=5e-4, atol=1e-5, err_msg=log)
    if evaluated:
        assert evaluated["loss"] == pytest.approx(model.evaluate(dataset, verbose=0), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kills", sampled([False, True], (), [True]))
def test_several_workers_lose_no_count(by_hand, tmp_path, kills):
    """Of steps, of updates of two optimizers, and of what metrics count, but for the execution of a worker that died.

    The step that it was in the middle of is made again, which the optimizers may have counted in part.
    """
    epochs, steps, batch = 4, 150, BATCH
    job = by_hand(f"{PROGRAMS}.custom_steps", str(tmp_path / "result"))
    if kills:
        job.until("result.under_way")
        job.processes["worker 1"].kill()
    status, error = job.ends("chief 0")
    assert status == 0, error
    found = pickle.loads((tmp_path / "result").read_bytes())
    history, (critic, generator), (seen, left), all_changed, times = found["counted"]
    lost = int(kills)
    assert 2 * epochs * steps <= critic <= 2 * (epochs * steps + lost)
    assert epochs * steps <= generator <= epochs * steps + lost
    assert batch * epochs * steps <= seen <= batch * (epochs * steps + lost)
    assert epochs * steps <= -left <= epochs * steps + lost
    assert all_changed
    assert times.min() == epochs
    assert times.sum() <= batch * (epochs * steps + lost)
    exact = [count == batch * steps for count in history["examples"]]
    assert sum(exact) >= epochs - lost, history["examples"]
    assert all(0 < count <= batch * steps for count in history["examples"])
    together, by_copies, averaging = found["refused"]
    for why, reason in ((together, 'update="sync"'), (by_copies, "local_steps=4")):
        assert "compute_metrics, whose logs are no metrics, so that train_step runs as it is: such a step" in why
        assert f"applies its gradients itself, and {reason}" in why
    assert "OwnUpdate has a step of its own, and SGD keeps" in averaging
