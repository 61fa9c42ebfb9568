"""Losses that are no plain means over examples, cut over replicas that hold unequally many, against one device."""

import functools
import pickle

import pytest

import tf2dist
from tests import loss_cases
from tests.jobs import run_program

QUICK = ("everything", "Dice", "synchronized", "masked mean with sample weight")
# Each kind of loss once; the others of the table are for a look by hand.
ON_TWO = (
    *(*loss_cases.FEW, "own Loss", "Dice", "own compute_loss", "added values of examples"),
    *("ignored class", "trained table", "synchronized, masked", "unreduced", "Circle, weighted", "masks, XLA"),
    *("masked mean with sample weight", "table of two, XLA"),
)
REPLICAS = {"mirrored 2": ("mirrored", 2), "mirrored 3": ("mirrored", 3), "central": ("central", 2)}

by_keras = functools.cache(loss_cases.by_keras)


def is_quick(name, where):
    return name in QUICK and where == "mirrored 2"


@pytest.mark.parametrize(
    ("name", "where"),
    [
        pytest.param(name, where, marks=() if is_quick(name, where) else pytest.mark.slow)
        for where in REPLICAS
        for name in (ON_TWO if where == "mirrored 2" else loss_cases.FEW)
    ],
)
def test_equals_one_device(tf, name, where):
    strategy, replicas = REPLICAS[where]
    ours = loss_cases.by_tf2dist(name, tf2dist.make_strategy(strategy, replicas=replicas))
    loss_cases.check(ours, by_keras(name))


LAYOUTS = {"ps": ["--ps=1", "--workers=2"], "multiworker": ["--workers=2"]}
IN_CLUSTERS = (
    *loss_cases.FEW,
    "weighted masks",
    "ignored class",
    "mean with sample weight",
    "own mean",
    "Dice",
    "trained table",
)


@pytest.fixture(scope="module", params=LAYOUTS)
def strategy(request):
    return request.param


@pytest.fixture(scope="module")
def results(strategy, tmp_path_factory):
    """What a cluster made of the cases, under `ps` by synchronous updates; it ran once."""
    out = tmp_path_factory.mktemp("losses")
    run_program(LAYOUTS[strategy], "slice_losses", strategy, out, *IN_CLUSTERS, limit=480)
    return pickle.loads((out / "results.pickle").read_bytes())


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("name", IN_CLUSTERS)
def test_equals_one_device_in_a_cluster(tf, strategy, results, name):
    ours, refused = results[name], loss_cases.refused(name, strategy)
    if refused:
        assert isinstance(ours, str), "it was not refused"
        assert refused in ours
    else:
        assert not isinstance(ours, str), ours
        loss_cases.check(ours, by_keras(name))
