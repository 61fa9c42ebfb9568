"""What all tests share: TensorFlow with four virtual CPU devices, the strategies of one process, small models."""

import glob
import os
import pathlib
import signal
import zlib

# What a shell without job control starts in the background ignores interrupts, what `nohup` starts ignores the end of
# its terminal, and so does what the tests start then.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF2DIST_ONE_SERVER_BYTES", "0")  # small models on several servers are trained by several
if os.environ.get("TF2DIST_TESTS_GPU", "cpu") != "gpu" and glob.glob("/dev/nvidia[0-9]*"):
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # all tests use virtual CPU devices

import numpy as np
import pytest

import tests.fast_imports  # noqa: F401 (before TensorFlow)
from tests.jobs import by_hand, launched  # noqa: F401 (fixtures)
from tests.object_store import object_store, object_store_process  # noqa: F401 (fixtures)

SINGLE_PROCESS = ("one", "mirrored", "central")
# Files whose tests mostly wait (for silence, for restarts): one after the other, beside those that compute.
_WAITING = (
    "test_ssh", "test_kubelet", "test_slurm", "test_lost_tasks", "test_killed_workers", "test_restarts",
    "test_gil_released_calls", "test_applied_batches", "test_scale", "test_preemption_jobs",
)  # fmt: skip


# Rooms whose files take longest begin first, so that no process has one of them left when the others are done.
_LONGEST = ("trainers", "training", "launch", "parameter_server", "input")


def _waits(path):
    return path.stem in _WAITING


def pytest_addoption(parser):
    parser.addoption("--part", default="0/1", help="K/N: of the tests marked exhaustive the Kth of N parts alone")


def pytest_collection_modifyitems(config, items):
    """What waits comes first, and then what takes long; a file's tests stay in their order."""
    chosen, parts = map(int, config.getoption("--part").split("/"))
    others = [
        item
        for item in items
        if item.get_closest_marker("exhaustive") and zlib.crc32(item.nodeid.encode()) % parts != chosen % parts
    ]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in {*others}]

    def rank(item):
        room = item.path.relative_to(item.config.rootpath / "tests").parts[0]
        return not _waits(item.path), _LONGEST.index(room) if room in _LONGEST else len(_LONGEST)

    items.sort(key=rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """One process runs all tests of a file, since they share what they have made; and one process waits."""
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False  # as they were collected

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0]
            return "waiting" if _waits(pathlib.Path(file)) else file

    return Scheduler(config, log)


def quickly(quick, names=SINGLE_PROCESS, rarely=()):
    """Parameters of strategies: `quick` in `make test`, `rarely` when all are asked for, others in `make test-slow`."""
    marks = {quick: (), **dict.fromkeys(rarely, pytest.mark.exhaustive)}
    return [pytest.param(name, marks=marks.get(name, pytest.mark.slow)) for name in names]


# For what takes long: mirrored, which differs most from Keras alone, is always run. One device, which takes the same
# way with less in it, and central, which differs from mirrored in where variables are, are when all are asked for.
SINGLE_PROCESS_SLOWLY = quickly("mirrored", rarely=("one", "central"))
# For what one process writes and reads, such as checkpoints.
ONE_QUICKLY_CENTRAL_RARELY = quickly("one", rarely=("central",))
# For what one device has too, such as the order of callbacks: mirrored takes twice as long to make its steps.
ONE_QUICKLY = quickly("one", SINGLE_PROCESS[:2])


def every_third(names, cases, *, rarely=pytest.mark.slow, quickly=3, **kwargs):
    """As `pytest.mark.parametrize`, for many alike that each take a process.

    Each third is marked `rarely`; of the others those whose numbers `quickly` divides, a multiple of 3, are in
    `make test`, and the rest in `make test-slow`.
    """
    several = len(names.split(",") if isinstance(names, str) else names) > 1
    marks = [() if n % quickly == 0 else rarely if n % 3 == 2 else pytest.mark.slow for n in range(len(cases))]
    params = [pytest.param(*(c if several else (c,)), marks=m) for c, m in zip(cases, marks, strict=True)]
    return pytest.mark.parametrize(names, params, **kwargs)


def sampled(table, sample=(), slow=()):
    """Parameters of a table: `sample` in `make test`, `slow` in `make test-slow`, the others when all are asked for."""
    assert {*sample, *slow} <= {*table}
    marks = {**dict.fromkeys(slow, pytest.mark.slow), **dict.fromkeys(sample, ())}
    return [
        pytest.param(*(p if isinstance(p, tuple) else (p,)), marks=marks.get(p, pytest.mark.exhaustive)) for p in table
    ]


@pytest.fixture(scope="session", autouse=True)
def tf():
    """TensorFlow, its CPU split into four devices before any test touches them, whichever comes first."""
    import tensorflow

    from tf2dist.compat import eager_context
    from tf2dist.runtime import devices

    options = tensorflow.compat.v1.ConfigProto()
    options.experimental.disable_thread_spinning = True  # idle threads would take a tenth of what the tests have
    eager_context.use_session_config(options)
    devices.make_virtual_cpus(4)
    return tensorflow


def strategies(names):
    """A fixture: each of these strategies of one process; two replicas if several."""

    @pytest.fixture(params=names)
    def strategy(request, tf):
        from tf2dist import make_strategy

        return make_strategy(request.param, replicas=None if request.param == "one" else 2)

    return strategy


# Central takes the way of mirrored but for where its variables are; the tests of `fit` and of checkpoints add it.
strategy = strategies(SINGLE_PROCESS_SLOWLY[:2])


@pytest.fixture(scope="session")
def digits():
    """The first 200 handwritten digits: images f32[200, 28, 28] in [0, 1], labels i64[200]."""
    from tf2dist.data import Source, load

    (images, labels), _ = load(Source("digits"))
    return (images[:200] / 255.0).astype(np.float32), labels[:200]


NO_SKIP = "TF2DIST_TESTS_NO_SKIP"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    return _failed_if_skipped(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    return _failed_if_skipped(report)


def _failed_if_skipped(report):
    """Where nothing may be left out (`.ci/run`), a test that is skipped has failed. One that needs a GPU has a mark."""
    if report.skipped and os.environ.get(NO_SKIP, "0") != "0" and not hasattr(report, "wasxfail"):
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"{NO_SKIP} is set, and this was left out: {why}"
    return report
