"""Losses that are no plain means over examples, cut over replicas that hold unequally many, against one device."""

import functools
import pickle

import keras
import numpy as np
import pytest

import tf2dist
from tests import loss_cases
from tests.conftest import sampled
from tests.jobs import run_program

QUICK = ("everything", "Dice", "synchronized", "masked mean with sample weight")
# Each kind of loss once; the others of the table are for a look by hand.
ON_TWO = (
    *(*loss_cases.FEW, "own Loss", "Dice", "own compute_loss", "added values of examples", "added twice"),
    *("ignored class", "trained table", "synchronized, masked", "unreduced", "Circle, weighted", "masks, XLA"),
    *("masked mean with sample weight", "table of two, XLA", "everything, XLA", "one number, a blank slice"),
    "scaled masks, XLA",
)
REPLICAS = {"mirrored 2": ("mirrored", 2), "mirrored 3": ("mirrored", 3), "central": ("central", 2)}

by_keras = functools.cache(loss_cases.by_keras)


TRIED = [
    (name, where)
    for where in REPLICAS
    for name in (ON_TWO if where == "mirrored 2" else loss_cases.FEW if where == "mirrored 3" else QUICK)
]
QUICKLY = [("masked mean with sample weight", "mirrored 2")]
LIKE_OTHERS = [
    *((name, "central") for name in QUICK if name != "Dice"),
    *((name, "mirrored 3") for name in loss_cases.FEW if name != "everything"),
    *((name, "mirrored 2") for name in ("table of two, XLA", "masks, XLA", "Circle, weighted")),
    *((name, "mirrored 2") for name in ("Circle", "own mean, weighted", "added sum", "synchronized")),
    *((name, "mirrored 2") for name in ("own Loss", "ignored class", "scaled masks, XLA")),
]


@pytest.mark.parametrize(
    ("name", "where"), sampled(TRIED, QUICKLY, [t for t in TRIED if t not in QUICKLY and t not in LIKE_OTHERS])
)
def test_equals_one_device(tf, name, where):
    strategy, replicas = REPLICAS[where]
    ours = loss_cases.by_tf2dist(name, tf2dist.make_strategy(strategy, replicas=replicas))
    loss_cases.check(ours, by_keras(name))


LAYOUTS = {
    "ps": (["--ps=1", "--workers=2"], 1),
    "multiworker": (["--workers=2"], 1),
    "multiworker, 2 replicas each": (["--workers=2"], 2),
}
IN_CLUSTERS = (
    *loss_cases.FEW,
    "one number, a blank slice",
    "scaled masks",
    "weighted masks",
    "ignored class",
    "mean with sample weight",
    "own mean",
    "Dice",
    "trained table",
)


@pytest.fixture(scope="module", params=sampled(LAYOUTS, (), ("ps", "multiworker")))
def layout(request):
    return request.param


@pytest.fixture(scope="module")
def strategy(layout):
    return layout.partition(",")[0]


@pytest.fixture(scope="module")
def results(layout, strategy, tmp_path_factory):
    """What a cluster made of the cases, under `ps` by synchronous updates; it ran once."""
    out = tmp_path_factory.mktemp("losses")
    tasks, replicas = LAYOUTS[layout]
    run_program(tasks, "slice_losses", strategy, out, replicas, *IN_CLUSTERS, limit=480)
    return pickle.loads((out / "results.pickle").read_bytes())


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


class _MeasuresItself(keras.layers.Layer):
    """Counts the mean activation of a batch, a scalar, in a metric of its own."""

    def __init__(self):
        super().__init__()
        self.activation = keras.metrics.Mean(name="activation")

    def call(self, x):
        self.activation.update_state(keras.ops.mean(x))
        return x


@pytest.mark.slow
def test_a_mean_of_scalars_counts_batches_and_not_slices(tf):
    """Batches of 5 rows, and one of 1, on two replicas: each batch counts once, as on one device."""
    x = np.random.default_rng(0).normal(size=(11, 4)).astype(np.float32) ** 2
    y = x.sum(1)

    def logs(strategy, fit):
        with strategy.scope():
            keras.utils.set_random_seed(0)
            model = keras.Sequential([keras.Input([4]), _MeasuresItself(), keras.layers.Dense(1)])
            model.compile("sgd", "mse", metrics=[lambda y, p: keras.ops.mean(keras.ops.abs(y - p[:, 0]))])
            return fit(model, x, y, batch_size=5, shuffle=False).history

    ours = logs(tf2dist.make_strategy("mirrored", replicas=2), tf2dist.fit)
    theirs = logs(tf.distribute.get_strategy(), lambda model, *a, **k: model.fit(*a, verbose=0, **k))
    assert ours == {name: pytest.approx(values, rel=1e-5) for name, values in theirs.items()}
