"""Data that Python yields in clusters of several processes: the numbers of Keras, one clear error, killed workers."""

import functools
import itertools
import json

import numpy as np
import pytest

import tf2dist
from tests.conftest import sampled
from tests.input.python_kinds import BROKEN, KINDS, STEPS, Rows, batches, composite, shuffled
from tests.jobs import run_program
from tests.models import OPTIMIZERS, classifier, weights

# One asynchronous worker makes the updates in the order of the batches.
JOBS = {
    "multiworker": (["--workers=2"], "multiworker", "sync"),
    "ps, synchronous": (["--ps=1", "--workers=2"], "ps", "sync"),
    "ps, one worker": (["--ps=1", "--workers=1"], "ps", "async"),
    "ps": (["--ps=1", "--workers=2"], "ps", "async"),
}
pytestmark = pytest.mark.timeout(400)


# Each kind is tried by the tests marked slow in one job at least, and in every job by all tests together.
SOME_KINDS = {
    "multiworker": ("PyDataset with processes", "generator", "ragged"),
    "ps, synchronous": ("PyDataset", "PyDataset that changes", "from_generator"),
    "ps, one worker": ("PyDataset with threads", "PyDataset without end", "numpy_function"),
    "ps": ("iterable", "DataLoader", "sparse"),
}
COMPOSITE = ("ragged", "sparse")
ALL_KINDS = (*KINDS, "from_generator", "numpy_function", *COMPOSITE)


def in_jobs(kinds):
    """Parameters: each job with each of these kinds."""
    some = [(job, kind) for job, tried in SOME_KINDS.items() for kind in tried if kind in kinds]
    return sampled(list(itertools.product(JOBS, kinds)), (), some)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """results(job, kind): what the job wrote of this kind. It runs once for some kinds, and once for the others."""
    directory = tmp_path_factory.mktemp("python_data")

    @functools.cache
    def run(job, kinds):
        out = directory / f"{job}, {kinds[0]}.json"
        layout, *arguments = JOBS[job]
        run_program(layout, "python_data", *arguments, out, *kinds, limit=380)
        return json.loads(out.read_text())

    def result(job, kind):
        some = kind in SOME_KINDS[job]
        found = run(job, tuple(k for k in ALL_KINDS if (k in SOME_KINDS[job]) == some))
        return (found[kind], found[f"{kind}, yielded"]) if kind in COMPOSITE else found[kind]

    return result


@pytest.fixture(scope="module")
def expected(tf):
    """Of Keras, by whether the batches are in another order after each epoch."""

    def trained(reorder):
        model, rows = classifier(OPTIMIZERS["sgd"]()), Rows(reorder)
        history = model.fit(rows, epochs=3, shuffle=False, validation_data=batches()[1], verbose=0).history
        return weights(model), history, rows.calls

    return {reorder: trained(reorder) for reorder in (False, True)}


@pytest.mark.parametrize(("job", "kind"), in_jobs(ALL_KINDS[:-2]))
def test_as_keras(results, expected, job, kind):
    found = results(job, kind)
    theirs, history, calls = expected["changes" in kind or "with " in kind]
    assert found["updates"] == 3 * STEPS
    assert found["calls"] == (calls if kind.startswith("PyDataset") else None)
    assert np.shape(found["predicted"]) == (103, 3)
    np.testing.assert_allclose(found["predicted"], found["outputs"], rtol=1e-4, atol=1e-5)
    if job == "ps":
        assert np.all(np.diff(found["history"]["loss"]) < 0)
        return
    for a, b in zip(found["weights"], theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
    for log, values in history.items():
        np.testing.assert_allclose(found["history"][log], values, rtol=2e-4, err_msg=log)


@pytest.mark.parametrize(("job", "kind"), in_jobs(COMPOSITE))
def test_ragged_and_sparse_tensors(results, tf, job, kind):
    dataset, compiled = composite(kind)
    model = compiled()
    losses = model.fit(dataset, epochs=2, verbose=0).history["loss"]
    for trained, logged in results(job, kind):
        if job == "ps":  # two workers' updates overlap as they come; a model that is not trained has a higher loss
            assert logged[1] < losses[0]
            continue
        np.testing.assert_allclose(logged, losses, rtol=2e-4)
        for a, b in zip(trained, weights(model), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    "job", sampled(["multiworker", "ps, synchronous", "ps, one worker"], (), ["ps, synchronous", "ps, one worker"])
)
def test_calls_one_after_the_other_go_on_in_a_shuffled_dataset(tf, tmp_path, job):
    """Each reads its own pass and no more, or a later one would have an order that no call has seen."""
    out, (layout, *arguments) = tmp_path / "out.json", JOBS[job]
    run_program(layout, "python_data", *arguments, out, "shuffled")
    found, passes = json.loads(out.read_text())["shuffled"]
    dataset, expected = shuffled()
    model = classifier(OPTIMIZERS["sgd"]())
    for _ in range(3):
        tf2dist.fit(model, dataset, epochs=1, steps_per_epoch=STEPS)
    assert passes == expected == [STEPS] * 3
    for a, b in zip(found, weights(model), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


# What is raised in the process that reads, and what that process does not see, each where many wait for it and where
# one does.
SOME_ERRORS = (
    ("multiworker", "ends early"), ("ps, synchronous", "blocks"), ("ps", "another shape"), ("ps", "dies"),
)  # fmt: skip
ERRORS = itertools.product(
    ("multiworker", "ps, synchronous", "ps"), ("ends early", "raises", "another shape", "blocks", "dies")
)


@pytest.mark.parametrize(("job", "wrong"), sampled(list(ERRORS), (), SOME_ERRORS))
def test_one_clear_error(launched, monkeypatch, job, wrong):
    """The job ends with the error as its coordinator or its peers have raised it, and nothing is left of it."""
    monkeypatch.setenv("TF2DIST_BATCH_TIMEOUT", "3")
    layout, *arguments = JOBS[job]
    under_way = launched(layout, "tests.programs.broken_data", *arguments, wrong)
    status, said = under_way.ends("launcher")
    assert status == 1, said
    assert BROKEN[wrong][2] in said
    assert under_way.left() == []


@pytest.mark.slow
@pytest.mark.parametrize("where", ["fork", "send"])
def test_processes_that_hang(launched, monkeypatch, where):
    """They cannot be asked to end, and Python would wait for them, or for the rest of a batch, when it exits."""
    monkeypatch.setenv("TF2DIST_BATCH_TIMEOUT", "3")
    under_way = launched(None, "tests.programs.stuck_py_dataset_workers", where)
    status, said = under_way.ends("launcher")
    assert status == 1, said
    assert "of the Sends has not come in 3 s" in said
    assert under_way.left() == []


@pytest.mark.parametrize("update", sampled(("async", "sync"), (), ("async",)))
def test_a_worker_is_killed(by_hand, tmp_path, update):
    """As many updates as were asked for; what an asynchronous worker had got another gets, and no batch is missing."""
    job = by_hand("tests.programs.served_data", str(tmp_path), update)
    job.until("under_way")
    job.processes["worker 1"].kill()
    status, error = job.ends("chief 0")
    assert status == 0, error
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["updates"], result["epochs"]) == (12 * 20, 12)
    assert result["yielded"] == 12 * 20
