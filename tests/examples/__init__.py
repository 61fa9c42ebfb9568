"""Programs in the architectures of keras.io's examples, and the same programs with nothing changed but the calls.

Each of `programs` is what people write with Keras alone: made-up data of the example's kind, a model, `model.fit(...)`.
Its text is run as it is, by Keras on one device, and again with `tf2dist.fit(model, ...)` in the calls' places. So is
that of each of `upstream`: what threads of Keras and TensorFlow report as failing on a strategy, with made-up data.
"""

from __future__ import annotations

import functools
import pathlib
import re
from typing import Any

import numpy as np

_DIRECTORY = pathlib.Path(__file__).parent
NAMES, UPSTREAM = (
    tuple(sorted(path.stem for path in (_DIRECTORY / kind).glob("[!_]*.py"))) for kind in ("programs", "upstream")
)
_CALLS = re.compile(r"(?<![\w.])model\.(fit|evaluate|predict)\(")
RTOL, ATOL = 5e-4, 5e-5

# Why several replicas cannot have Keras's numbers on one device.
_NORMALIZES = "BatchNormalization normalizes the slice of each replica"
_RANDOM = "each replica draws random numbers of its own"
NOT_EQUAL = {
    **dict.fromkeys(
        (
            "behavior_sequence_transformer", "pointnet", "siamese_contrastive", "tab_transformer", "unet_segmentation",
            "wide_deep_cross",
        ),
        _NORMALIZES,
    ),
    **dict.fromkeys(("variational_autoencoder", "wgan_gp"), _RANDOM),
}  # fmt: skip


def text_of(name: str, *, ours: bool) -> str:
    """The text of a program, as it is or with our calls in the place of Keras's, and nothing else changed."""
    text = (_DIRECTORY / ("upstream" if name in UPSTREAM else "programs") / f"{name}.py").read_text()
    if not ours:
        return text
    changed, count = _CALLS.subn(r"tf2dist.\1(model, ", text)
    assert count
    return f"import tf2dist\n{changed}"


def run(name: str, *, ours: bool) -> dict[str, Any]:
    """What a program has when it has ended: history, weights, evaluation and predictions, as NumPy arrays by name."""
    scope: dict[str, Any] = {"__name__": name}
    exec(compile(text_of(name, ours=ours), f"{name}.py", "exec"), scope)
    return _results(scope)


@functools.cache
def by_keras(name: str) -> dict[str, Any]:
    """What a program has with Keras on one device."""
    return run(name, ours=False)


def _results(scope: dict[str, Any]) -> dict[str, Any]:
    import tensorflow as tf

    found = {f"history {key}": np.asarray(values, np.float64) for key, values in scope["history"].history.items()}
    for number, weight in enumerate(scope["model"].weights):
        # The gradient of a bias that is added to all keys of an attention is 0, but for what rounding leaves of it.
        if "seed_generator" not in weight.path and not weight.path.endswith("key/bias"):
            found[f"weight {number} {weight.shape}"] = np.asarray(weight.numpy())
    for key, value in (scope.get("score") or {}).items():
        found[f"score {key}"] = np.asarray(value, np.float64)
    for number, values in enumerate(tf.nest.flatten(scope.get("predicted", []))):
        found[f"predicted {number}"] = np.asarray(values)
    return found


def differences(ours: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """What is not the same in two results, in words."""
    found = [f"{key} is in one of both alone" for key in ours.keys() ^ expected.keys()]
    for key in expected.keys() & ours.keys():
        try:
            np.testing.assert_allclose(ours[key], expected[key], RTOL, ATOL, err_msg=key)
        except (AssertionError, TypeError) as error:
            found.append(" ".join(str(error).split())[:300])
    return sorted(found)


def check(name: str, ours: dict[str, Any], expected: dict[str, Any], *, several: bool) -> None:
    """Asserts that two results are the same; or, of what several replicas cannot have alike, that it has learned.

    Args:
      several: did several replicas or processes share the batches?
    """
    if not several or name not in NOT_EQUAL:
        assert not (found := differences(ours, expected)), "\n".join(found)
        return
    assert ours.keys() == expected.keys()
    for key, values in ours.items():
        assert values.shape == expected[key].shape, key
        assert np.isfinite(values).all(), key
    if "history loss" in expected:  # opponents have losses of their own, of which none falls for long
        fell, falls = (r["history loss"][0] - r["history loss"][-1] for r in (ours, expected))
        assert fell > 0.3 * falls > 0
