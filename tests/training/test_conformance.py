"""Every model of the zoo on every strategy of one process, against Keras's own `fit` on one device."""

import subprocess
import sys

import keras
import pytest

from tests import zoo
from tests.conftest import SINGLE_PROCESS

# One of each kind: metrics, own steps, optimizers, gradients, losses. The whole table takes ten minutes.
QUICK = ("measured", "clipped")
# Models like others here, and models that clusters try (`test_conformance_jobs`) or random trainings have many of.
LIKE_OTHERS = (
    "selu", "autoencoder", "hinge", "gru", "heads", "dropout", "transformer", "tagger", "text", "two_tower",
    "overridden_step", "sample_weights", "averaged", "batch_normalization", "class_weights",
    "lstm", "mlp", "tabular", "frozen", "own_loss", "weighted_mean", "unreduced", "clipped_each", "summed",
    "segmentation", "weighted_heads", "subclassed", "constrained", "averaged_often", "bfloat16",
)  # fmt: skip


def when(name, strategy):
    if strategy == "mirrored":
        return () if name == "clipped" else pytest.mark.exhaustive if name in LIKE_OTHERS else pytest.mark.slow
    return pytest.mark.slow if name in QUICK else pytest.mark.exhaustive


# Two mirrored replicas are where most can go wrong; central differs from them only in where variables are, and one
# device takes the same way with less in it.
@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        pytest.param(name, strategy, marks=when(name, strategy))
        for strategy in SINGLE_PROCESS
        for name in (QUICK if strategy == "central" else zoo.CASES)
    ],
)
def test_equals_keras(tf, name, strategy):
    expected = zoo.CASES[name].expected(strategy)
    if isinstance(expected, zoo.Refused):
        with pytest.raises(ValueError, match=expected.match):
            zoo.here(name, strategy)
    else:
        _, ours = zoo.here(name, strategy)
        zoo.check(name, ours, expected)


def classes(module, base):
    """The public classes of a module of Keras that derive from `base`, by name."""
    found = {name: getattr(module, name) for name in dir(module)}
    return {n: c for n, c in found.items() if isinstance(c, type) and issubclass(c, base) and c is not base}


@pytest.mark.exhaustive
def test_the_zoo_has_every_optimizer_and_metric(tf):
    """A new one in Keras belongs into the zoo, or the table no longer says what it seems to say."""
    used = set().union(*map(zoo.parts, zoo.CASES))
    known = classes(keras.optimizers, keras.optimizers.Optimizer) | classes(keras.metrics, keras.metrics.Metric)
    known.pop("MeanMetricWrapper")  # a base of others, which they are used through
    assert {name for name, c in known.items() if c not in used} == set()


UPSTREAM = """
import tensorflow as tf
from tf2dist.runtime import devices
devices.make_virtual_cpus(2)
import keras
from tests.models import classifier, data
for steps in (1, 20):
    with tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]).scope():
        model = classifier(keras.optimizers.SGD(0.1))
        model.compile("sgd", model.loss, steps_per_execution=steps)
    model.fit(tf.data.Dataset.from_tensor_slices(data()).batch(16), verbose=0)
    print("updates with", steps, "steps a call:", model.optimizer.iterations.numpy(), flush=True)
"""


@pytest.mark.slow
def test_upstream_mirrored_does_not_train_many_steps_a_call(tf):
    """Fails when Keras's own `steps_per_execution` works on several replicas.

    In a process of its own, since it may take its process with it; and one step a call first, which works, so that
    it does fail by the steps.
    """
    done = subprocess.run([sys.executable, "-c", UPSTREAM], capture_output=True, text=True, timeout=120)
    assert done.stdout == "updates with 1 steps a call: 7\n", done.stderr
    assert done.returncode != 0


@pytest.mark.slow
def test_upstream_optimizer_built_while_tracing_is_another(tf):
    """Fails when Keras's ScheduleFreeAdamW gives the same numbers whoever builds it; then the zoo need not build it."""
    case = zoo.CASES["schedule_free"]

    def loss(built):
        model = case.model()
        optimizer = keras.optimizers.ScheduleFreeAdamW(0.02, warmup_steps=2)
        model.compile(optimizer, "mse")
        if built:
            optimizer.build(model.trainable_variables)
        return model.fit(case.batches(), verbose=0).history["loss"]

    assert loss(built=True) != pytest.approx(loss(built=False), rel=0.01)
