"""Keras does in a process that uses tf2dist what it does in any other: patches end with the step that they are for."""

from __future__ import annotations

import ast
import functools
import json
import subprocess
import sys
import types

import pytest

from tests.house.source import ROOT, parsed

PROGRAM = "tests.programs.keras_beside_us"
GROUPS = {
    "options of compile": (
        "masks",  # and clipped gradients, in one model
        "clipnorm",
        "mean_with_sample_weight",
        "embedding_adagrad",
        "global_clipnorm",
        "clipvalue",
        "gradient_accumulation",
        "ema_overwrite",
        "loss_scale",
    ),
    "layers and methods": (
        "weight_decay",
        "synchronized_normalization",
        "layer_losses",
        "loss_of_whole_batch",
        "train_step",
        "train_step_multi_optimizer",
        "bound",
    ),
}


# The program has no parameter servers; that this one leaves nothing is tested in test_workarounds.
ON_SERVERS_ALONE = {"tf2dist.compat.custom_gradients: tensorflow.python.ops.custom_gradient._graph_mode_decorator"}


@functools.cache
def report_of(group):
    """What the program says about the options of a group."""
    command = [sys.executable, "-m", PROGRAM, *GROUPS[group]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=560)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert set(report["trained"]) == set(GROUPS[group])
    return report


@pytest.fixture(params=GROUPS)
def report(request):
    return report_of(request.param)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_importing_us_changes_no_function_of_keras_or_tensorflow(report):
    assert report["functions"] > 5000
    assert report["imported"] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_training_with_us_changes_no_function_of_keras_or_tensorflow(report):
    """But how AutoGraph loads the code that it generates, from `make_strategy` on."""
    assert report["fitted"] == ["tensorflow.python.autograph.pyct.loader.load_source"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_plain_keras_trains_the_same_before_during_and_after(report):
    for option, (before, *others) in ((o, found.values()) for o, found in report["trained"].items()):
        assert before, option
        assert len(others) >= 2
        for other in others:
            assert other, option
            assert other == {name: before[name] for name in other}, option
        assert {name for other in others for name in other} == {*before}, option


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_patch_is_applied_by_an_option():
    never = [set(report_of(group)["never_applied"]) for group in GROUPS]
    assert set.intersection(*never) == ON_SERVERS_ALONE


def test_every_option_is_tried():
    tree = parsed(ROOT / "tests" / "programs" / "keras_beside_us.py")
    models = next(n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "MODELS")
    assert {ast.literal_eval(key) for key in models.keys} == {option for group in GROUPS.values() for option in group}


def test_a_patch_that_no_option_applies_is_seen(monkeypatch):
    from tests.programs.keras_beside_us import observed, patches
    from tf2dist.compat.patching import Patch

    module = types.ModuleType("tf2dist.compat.of_this_test")
    one, other = Patch(types, {"ModuleType": None}), Patch(types, {"MethodType": None})
    vars(module).update(patches=[one], other=other)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    applied = set()
    with observed(applied), other.applied():
        pass
    assert {one, other} <= {*patches().values()}
    assert applied == {other}


def test_a_changed_function_is_seen(monkeypatch, tf):
    from keras.src.losses import loss
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    from tests.programs.keras_beside_us import changed, functions

    before = functions()
    assert changed(before) == []
    monkeypatch.setattr(loss, "reduce_values", lambda *args: None)
    monkeypatch.setattr(BaseOptimizer, "_clip_gradients", lambda *args: None)
    monkeypatch.setattr(tf.GradientTape, "gradient", lambda *args: None)
    found = changed(before)
    assert "keras.src.losses.loss.reduce_values" in found
    assert "tensorflow.python.eager.backprop.GradientTape.gradient" in found
    assert "keras.src.optimizers.base_optimizer.BaseOptimizer._clip_gradients" in found
