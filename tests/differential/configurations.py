"""Which trainings there are: a table of options, a draw from it for each seed, and shrinking to the fewest options.

A flat table, and not generators that are nested as the objects are: so a configuration travels to every process of a
job as JSON, prints in one line, and is shrunk by taking options away.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

Configuration = dict[str, Any]  # the options that are not the simplest

# Of each option the simplest value first. What they mean is in `parts`.
OPTIONS: dict[str, tuple] = {
    "model": (
        "dense", "convolution", "lstm", "gru", "masked_rnn", "embedding", "masked_embedding", "tagger", "attention",
        "two_inputs", "two_inputs_list", "two_towers", "shared_embedding", "shared", "two_outputs",
        "two_outputs_dict", "subclassed", "subclassed_inputs",
    ),
    "loss": (
        "mse", "mae", "huber", "log_cosh", "cosine", "poisson", "own", "own_scalar", "own_class", "own_class_scalar",
        "sparse", "sparse_ignoring", "categorical", "categorical_focal", "kl", "categorical_hinge", "dice", "tversky",
        "binary", "binary_focal", "hinge",
    ),
    "optimizer": (
        "sgd", "momentum", "nesterov", "adam", "amsgrad", "adamw", "adamax", "adadelta", "adagrad", "rmsprop",
        "centered_rmsprop", "nadam", "ftrl", "lion", "lamb", "adafactor", "muon", "schedule_free",
    ),
    # of the model
    "regularizer": (None, "l2", "l1_l2"),
    "activity_regularizer": (None, "l2"),
    "add_loss": (None, "mean", "sum"),
    "compute_loss": (None, "scaled", "own_mean", "measured"),
    "layer_metric": (False, True),
    "normalization": (None, "batch", "layer", "spectral"),
    "constraint": (None, "max_norm"),
    "frozen": (False, True),
    "dtype": ("float32", "mixed_bfloat16", "mixed_float16"),
    # of the loss and the metrics
    "reduction": ("sum_over_batch_size", "sum", "mean", "mean_with_sample_weight", "none"),
    "smoothing": (0.0, 0.1),
    "loss_weights": (False, True),
    "metrics": (None, "mean", "weighted", "both", "counts", "vector", "own_function", "own_class"),
    # of the optimizer
    "clip": (None, "clipnorm", "clipvalue", "global_clipnorm"),
    "weight_decay": (False, True),
    "ema": (None, "average", "overwrite"),
    "accumulation": (None, 2, 3),
    "schedule": (None, "exponential", "cosine", "piecewise"),
    "scaling": (None, "factor", "dynamic", "several"),
    # of the data
    "data": ("arrays", "dataset", "unknown_length", "endless", "function"),
    "sample_weight": (None, "ones", "random", "zeros", "zero_batch"),
    "class_weight": (False, True),
    "batch": (6, 8, 5, 2, 1),
    "rows": ("even", "partial", "one_over", "short"),
    "float64": (False, True),
    # of fit
    "epochs": (2, 1, 3),
    "steps_per_epoch": (None, 1, 2, 4),
    "initial_epoch": (0, 1),
    "fits": (1, 2),
    "validation": (None, "arrays", "dataset"),
    "validation_steps": (None, 1),
    "validation_batch_size": (None, 4),
    "validation_freq": (1, 2),
    "steps_per_execution": (None, 1, 3),
    "scheduler": (False, True),
    "early_stopping": (False, True),
    "batch_hooks": (False, True),
    "stop_at_batch": (False, True),
    "csv": (False, True),
    "afterwards": (None, "evaluate", "predict"),
}  # fmt: skip
_ALWAYS = ("model", "loss", "optimizer")  # drawn from all values; of the others one in five is not the simplest
_CHANCE = 0.2

TARGETS = {
    "regression": OPTIONS["loss"][:10],
    "classes": ("sparse", "sparse_ignoring"),
    "one_hot": ("categorical", "categorical_focal", "kl", "categorical_hinge", "dice", "tversky"),
    "binary": ("binary", "binary_focal", "hinge"),
}
_SMOOTHED = ("categorical", "categorical_focal", "binary", "binary_focal")
_PLAIN_FUNCTIONS = ("own", "own_scalar")  # compiled as they are: without a reduction
TOKENS = ("lstm", "embedding", "masked_embedding", "tagger", "attention", "two_towers", "shared_embedding")
PER_STEP = ("masked_rnn", "tagger")  # an output for each step of a sequence
TWO_OUTPUTS = ("two_outputs", "two_outputs_dict")


def target(configuration: Mapping[str, Any]) -> str:
    """What kind of labels the loss takes."""
    loss = configuration.get("loss", OPTIONS["loss"][0])
    return next(kind for kind, losses in TARGETS.items() if loss in losses)


def complete(configuration: Configuration) -> dict[str, Any]:
    """Every option with its value."""
    return {name: configuration.get(name, values[0]) for name, values in OPTIONS.items()}


def draw(seed: int) -> Configuration:
    """The configuration of a seed; the same in every process and version of Python."""
    chance = random.Random(seed)
    chosen = {}
    for name, values in OPTIONS.items():
        if name in _ALWAYS:
            chosen[name] = chance.choice(values)
        elif chance.random() < _CHANCE:
            chosen[name] = chance.choice(values[1:])
    return sensible(chosen)


def sensible(configuration: Configuration) -> Configuration:
    """Without the options that mean nothing beside the others, that Keras refuses, or that cannot be compared."""
    c = complete(configuration)

    def simplest(*names: str) -> None:
        for name in names:
            c[name] = OPTIONS[name][0]

    two = c["model"] in TWO_OUTPUTS
    if c["compute_loss"] == "own_mean":  # it uses no loss function
        simplest("loss", "reduction", "class_weight", "sample_weight")
    if c["compute_loss"] in ("own_mean", "measured") and two:
        simplest("compute_loss")
    kind = target(c)
    if c["model"] in PER_STEP and c["loss"] in ("dice", "tversky"):  # a mask for each step, and no loss for one
        simplest("loss")
        kind = target(c)
    if c["loss"] not in _SMOOTHED:
        simplest("smoothing")
    if c["loss"] in _PLAIN_FUNCTIONS:
        simplest("reduction")
    if c["loss"] in ("own_scalar", "own_class_scalar", "dice", "tversky"):  # one number cannot be weighted by example
        simplest("sample_weight", "class_weight")
    if not two:
        simplest("loss_weights")
    if c["reduction"] == "none" and (two or c["regularizer"] or c["activity_regularizer"] or c["add_loss"]):
        simplest("reduction")  # Keras does not add a loss for each example to one number
    if kind == "regression" or two or c["model"] in PER_STEP:
        simplest("class_weight")
    if c["class_weight"]:
        simplest("sample_weight")  # Keras takes one of them
    if c["metrics"] == "counts" and kind not in ("binary", "one_hot"):
        c["metrics"] = "mean"
    if c["metrics"] == "vector" and (kind != "one_hot" or c["model"] in PER_STEP):
        c["metrics"] = "mean"
    if c["optimizer"] == "schedule_free":
        simplest("ema", "schedule", "scheduler", "scaling")
        if c["model"].startswith("subclassed"):
            simplest("model")  # Keras builds this optimizer wrongly while it traces
    if c["scaling"] == "several":
        simplest("scheduler")  # the rates belong to the optimizers inside
    if c["model"] in TOKENS:
        simplest("float64")
    if c["dtype"] != "float32":
        simplest("activity_regularizer")  # Keras does not add a loss of 16 bits to one of 32
    if c["normalization"] == "spectral" and c["model"] in PER_STEP:
        simplest("normalization")
    if c["schedule"]:
        simplest("scheduler")
    if c["data"] == "function":  # each replica takes a whole batch of its own
        simplest("rows", "batch")
    batches = steps_of_a_pass(c)
    if c["data"] in ("endless", "function"):
        c["steps_per_epoch"] = c["steps_per_epoch"] or 2
    elif c["steps_per_epoch"] and (c["data"] == "unknown_length" or batches % c["steps_per_epoch"]):
        simplest("steps_per_epoch")  # Keras makes an epoch shorter where data ends within it
    if c["steps_per_epoch"] is not None:
        simplest("initial_epoch", "fits")  # where the data goes on is another question, which the docs answer
    if c["initial_epoch"] >= c["epochs"]:
        simplest("initial_epoch")
    if c["validation"] is None:
        simplest("validation_steps", "validation_freq")
    if c["validation"] != "arrays":
        simplest("validation_batch_size")
    if c["batch_hooks"] or c["stop_at_batch"]:
        c["steps_per_execution"] = 1  # as Keras
    return {name: c[name] for name, values in OPTIONS.items() if c[name] != values[0]}


def rows(c: Mapping[str, Any]) -> int:
    """How many examples there are."""
    batch = c["batch"]
    return {"even": 3 * batch, "partial": 2 * batch + (batch + 1) // 2, "one_over": 2 * batch + 1}.get(
        c["rows"], max(1, batch - 1)
    )


def steps_of_a_pass(c: Mapping[str, Any]) -> int:
    """Batches of all examples."""
    return -(-rows(c) // c["batch"])


def shrink(configuration: Configuration, fails: Callable[[Configuration], bool]) -> Configuration:
    """The fewest options with which it still fails: none of them can be taken away.

    Takes away half of the options, then quarters, ..., then one after the other, until nothing more can go (delta
    debugging, Zeller and Hildebrandt 2002).
    """
    size = max(1, len(configuration) // 2)
    while configuration:
        smaller = _without_some(configuration, size, fails)
        if smaller is not None:
            configuration = smaller
            size = max(1, min(size, len(configuration) // 2))
        elif size == 1:
            break
        else:
            size //= 2
    return configuration


def _without_some(
    configuration: Configuration, size: int, fails: Callable[[Configuration], bool]
) -> Configuration | None:
    names = list(reversed(configuration))  # what is further down in the table matters less often
    for first in range(0, len(names), size):
        gone = names[first : first + size]
        candidate = sensible({name: value for name, value in configuration.items() if name not in gone})
        if len(candidate) < len(configuration) and fails(candidate):
            return candidate
    return None
