"""What differs between versions of TensorFlow and Keras."""

import logging
import pathlib
import tomllib

import keras
import pytest
import tensorflow as tf

from tests import matrix
from tf2dist.compat import versions

PROJECT = tomllib.loads((pathlib.Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


@pytest.fixture
def warned(caplog):
    """warned(): what was said of the versions."""
    versions.warn_if_untried.cache_clear()
    caplog.set_level(logging.WARNING, logger="tf2dist")

    def said():
        versions.warn_if_untried()
        versions.warn_if_untried()
        return caplog.messages

    yield said
    versions.warn_if_untried.cache_clear()


def test_the_versions_that_all_tests_run_on_are_tried(warned):
    assert warned() == []


@pytest.mark.parametrize(("module", "package"), [(tf, "TensorFlow"), (keras, "Keras")])
@pytest.mark.parametrize("found", ["9.0.0", "9.1.0-dev20260101"])
def test_newer_ones_are_said_once(monkeypatch, warned, module, package, found):
    monkeypatch.setattr(module, "__version__", found)
    (message,) = warned()
    newest = "{}.{}".format(*versions.NEWEST[package])
    assert message.startswith(f"tf2dist was tried with {package} up to {newest}, and this is {found}")


def test_every_optimizer_with_an_apply_of_its_own():
    found = {c for name in dir(keras.optimizers) if isinstance(c := getattr(keras.optimizers, name), type)}
    own = {c for c in found if "apply" in vars(c)}
    assert own == set(versions.optimizers_with_own_apply()) & found
    assert {"MultiOptimizer", "LossScaleOptimizer"} <= {c.__name__ for c in own}


@pytest.mark.parametrize(("package", "place"), [("tensorflow", 0), ("keras", 1)])
def test_the_oldest_that_is_tried_is_the_oldest_that_is_admitted(package, place):
    oldest = min(tuple(map(int, pair[place].split(".")[:2])) for pair in matrix.PAIRS)
    (admitted,) = [d for d in PROJECT["dependencies"] if d.startswith(f"{package}>=")]
    assert admitted == "{}>={}.{}".format(package, *oldest)
