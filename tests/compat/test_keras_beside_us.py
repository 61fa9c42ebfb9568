"""Keras does in a process that uses tf2dist what it does in any other: patches end with the step that they are for."""

from __future__ import annotations

import ast
import json
import subprocess
import sys

import pytest

from tests.house.source import ROOT, parsed

PROGRAM = "tests.programs.keras_beside_us"
OPTIONS = (
    "masks",  # and clipped gradients, in one model
    "clipnorm",
    "mean_with_sample_weight",
    "embedding_adagrad",
    "global_clipnorm",
    "clipvalue",
    "gradient_accumulation",
    "ema_overwrite",
    "loss_scale",
)


@pytest.fixture(scope="module")
def report():
    """What the program says about all options."""
    command = [sys.executable, "-m", PROGRAM, *OPTIONS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=480)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert set(report["trained"]) == set(OPTIONS)
    return report


@pytest.mark.slow
def test_importing_us_changes_no_function_of_keras(report):
    assert report["functions"] > 5000
    assert report["imported"] == []


@pytest.mark.slow
def test_training_with_us_changes_no_function_of_keras(report):
    assert report["fitted"] == []


@pytest.mark.slow
def test_plain_keras_trains_the_same_before_during_and_after(report):
    for option, found in report["trained"].items():
        assert found["before"]["one"], option
        assert found["during"] == found["before"], option
        assert found["after"] == found["before"], option


def test_every_option_is_tried():
    tree = parsed(ROOT / "tests" / "programs" / "keras_beside_us.py")
    models = next(n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "MODELS")
    assert {ast.literal_eval(key) for key in models.keys} == {*OPTIONS}


def test_a_changed_function_is_seen(monkeypatch):
    from keras.src.losses import loss
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    from tests.programs.keras_beside_us import changed, functions

    before = functions()
    assert changed(before) == []
    monkeypatch.setattr(loss, "reduce_values", lambda *args: None)
    monkeypatch.setattr(BaseOptimizer, "_clip_gradients", lambda *args: None)
    found = changed(before)
    assert "keras.src.losses.loss.reduce_values" in found
    assert "keras.src.optimizers.base_optimizer.BaseOptimizer._clip_gradients" in found
