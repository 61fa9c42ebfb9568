"""Which trainings there are: a table of options, a draw from it for each seed, and shrinking to the fewest options.

A flat table, and not generators that are nested as the objects are: so a configuration travels to every process of a
job as JSON, prints in one line, and is shrunk by taking options away.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from typing import Any

Configuration = dict[str, Any]  # the options that are not the simplest

# Of each option the simplest value first. What they mean is in `parts`.
OPTIONS: dict[str, tuple] = {
    "model": (
        "dense", "convolution", "lstm", "gru", "masked_rnn", "embedding", "masked_embedding", "tagger", "attention",
        "two_inputs", "two_inputs_list", "two_towers", "shared_embedding", "shared", "two_outputs",
        "two_outputs_dict", "subclassed", "subclassed_inputs", "nested", "time_distributed", "bidirectional",
        "bidirectional_tagger", "strings", "numbers", "pixels", "two_outputs_steps",
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
    "train_step": (
        None, "tape", "metrics_loop", "own_metrics", "clipping", "sharpness", "two_optimizers", "accumulating",
        "average", "gradient_penalty", "autoencoder", "adversaries",
    ),
    "test_step": (False, True),
    "random": (None, "dropout", "noise", "recurrent_dropout", "augmentation"),
    "regularizer": (None, "l2", "l1_l2"),
    "activity_regularizer": (None, "l2"),
    "add_loss": (None, "mean", "sum"),
    "compute_loss": (None, "scaled", "own_mean", "measured", "distilled"),
    "layer_metric": (False, True),
    "normalization": (None, "batch", "layer", "spectral"),
    "constraint": (None, "max_norm"),
    "frozen": (False, True),
    "dtype": ("float32", "mixed_bfloat16", "mixed_float16"),
    # of the loss and the metrics
    "reduction": ("sum_over_batch_size", "sum", "mean", "mean_with_sample_weight", "none"),
    "smoothing": (0.0, 0.1),
    "second_loss": (None, "mae", "nothing"),
    "loss_weights": (False, True),
    "metrics": (None, "mean", "weighted", "both", "counts", "vector", "own_function", "own_class", "of_one_output"),
    # of the optimizer
    "clip": (None, "clipnorm", "clipvalue", "global_clipnorm"),
    "weight_decay": (False, True),
    "ema": (None, "average", "overwrite"),
    "accumulation": (None, 2, 3),
    "schedule": (None, "exponential", "cosine", "piecewise"),
    "scaling": (None, "factor", "dynamic", "overflow", "several"),
    # of the data
    "data": ("arrays", "dataset", "unknown_length", "static", "generator", "endless", "function"),
    "shuffle": (False, True),
    "sample_weight": (None, "ones", "random", "zeros", "zero_batch", "zero_slice", "common"),
    "class_weight": (False, True),
    "batch": (6, 8, 5, 2, 1),
    "rows": ("even", "partial", "one_over", "short"),
    "blank": (False, True),
    "nan": (False, True),
    "float64": (False, True),
    # of fit
    "epochs": (2, 1, 3),
    "steps_per_epoch": (None, 1, 2, 4),
    "initial_epoch": (0, 1),
    "fits": (1, 2),
    "between": (None, "recompile", "freeze", "rate", "other_batch", "keras"),
    "validation": (None, "arrays", "dataset"),
    "validation_steps": (None, 1),
    "validation_batch_size": (None, 4),
    "validation_freq": (1, 2, "list"),
    "steps_per_execution": (None, 1, 3),
    "scheduler": (False, True),
    "early_stopping": (False, True, "best"),
    "plateau": (False, True),
    "checkpoint": (False, True),
    "batch_hooks": (False, True),
    "stop_at_batch": (False, True),
    "csv": (False, True),
    "afterwards": (None, "evaluate", "predict"),
    "afterwards_batch_size": (None, 4, 7),
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
TOKENS = (
    "lstm", "embedding", "masked_embedding", "tagger", "attention", "two_towers", "shared_embedding", "bidirectional",
    "bidirectional_tagger", "two_outputs_steps",
)  # fmt: skip
NO_FLOATS = (*TOKENS, "strings", "numbers", "pixels")
IMAGES = ("convolution", "pixels")
PER_STEP = ("masked_rnn", "tagger", "bidirectional_tagger", "two_outputs_steps")  # an output for each of a sequence
TWO_OUTPUTS = ("two_outputs", "two_outputs_dict", "two_outputs_steps")
OWN_MODELS = ("autoencoder", "adversaries")  # steps of models without a `call`
_BLANKS = ("lstm", "tagger", "masked_rnn", "bidirectional", "bidirectional_tagger")  # may have rows without a word
# What is the same on one replica only: each replica has random numbers of its own, Keras trains as it does there, and
# what overflows is the gradient of a slice, which begins with a smaller number than that of the whole batch.
ON_ONE_REPLICA: dict[str, set[str] | None] = {"random": None, "between": {"keras"}, "scaling": {"overflow"}}


def target(configuration: Mapping[str, Any]) -> str:
    """What kind of labels the loss takes."""
    loss = configuration.get("loss", OPTIONS["loss"][0])
    return next(kind for kind, losses in TARGETS.items() if loss in losses)


def complete(configuration: Configuration) -> dict[str, Any]:
    """Every option with its value."""
    return {name: configuration.get(name, values[0]) for name, values in OPTIONS.items()}


def draw(seed: int, always: Collection[str] = ()) -> Configuration:
    """The configuration of a seed; the same in every process and version of Python.

    Args:
      always: options that are not to be the simplest.
    """
    chance = random.Random(seed)
    chosen = {}
    for name, values in OPTIONS.items():
        if name in _ALWAYS:
            chosen[name] = chance.choice(values)
        elif chance.random() < _CHANCE or name in always:
            chosen[name] = chance.choice(values[1:])
    return sensible(chosen)


def sensible(configuration: Configuration) -> Configuration:
    """Without the options that mean nothing beside the others, that Keras refuses, or that cannot be compared."""
    c = complete(configuration)

    def simplest(*names: str) -> None:
        for name in names:
            c[name] = OPTIONS[name][0]

    if c["train_step"] in OWN_MODELS:  # two models, which use neither `compile`'s loss nor labels
        simplest("model", "loss", "reduction", "compute_loss", "metrics", "test_step", "validation", "afterwards")
        simplest("checkpoint")  # Keras saves no model that has not been called
        simplest(
            "sample_weight", "class_weight", "layer_metric", "random", "blank", "nan", "between", "activity_regularizer"
        )
    if c["train_step"] == "adversaries":
        simplest("batch_hooks", "scheduler", "plateau")  # they look at a loss, and at an optimizer that it has not
    if c["train_step"] == "gradient_penalty" and c["model"] not in ("dense", "shared", "nested"):
        simplest("model")
    if c["train_step"] == "accumulating" and c["model"].startswith("subclassed"):
        simplest("model")  # it keeps a sum for each weight, and there are none yet
    if c["train_step"] in ("own_metrics", "average"):  # they compute the loss themselves
        simplest("compute_loss", "loss", "reduction", "sample_weight", "class_weight", "test_step")
    if c["train_step"] == "own_metrics":
        simplest("metrics", "layer_metric", "add_loss")
    if c["train_step"] in ("own_metrics", "average", "metrics_loop") and c["model"] in TWO_OUTPUTS:
        simplest("model")
    if c["train_step"] == "average" and c["model"] in PER_STEP:
        simplest("model")
    if c["train_step"] == "metrics_loop":
        simplest("layer_metric")
    if c["model"] == "strings":  # Keras takes them from a dataset alone
        c["data"] = "dataset" if c["data"] == "arrays" else c["data"]
        c["validation"] = c["validation"] and "dataset"
    two = c["model"] in TWO_OUTPUTS
    if c["compute_loss"] in ("own_mean", "distilled"):  # they use no loss function
        simplest("loss", "reduction", "class_weight", "sample_weight")
    if c["compute_loss"] in ("own_mean", "measured", "distilled") and two:
        simplest("compute_loss")
    if c["compute_loss"] == "measured" and c["train_step"] == "metrics_loop":
        simplest("compute_loss")
    if (c["train_step"] or c["test_step"]) and c["optimizer"] == "schedule_free":
        simplest("optimizer")
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
        simplest("loss_weights", "second_loss")
    if kind == "classes" and c["second_loss"] == "mae":
        simplest("second_loss")
    if c["second_loss"] == "nothing":
        simplest("loss_weights", "reduction")
    if c["metrics"] == "of_one_output" and not two:
        c["metrics"] = "mean"
    if c["sample_weight"] == "common" and (
        c["model"] not in ("two_outputs", "two_outputs_dict") or c["data"] != "arrays"
    ):
        c["sample_weight"] = "random"
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
        simplest("ema", "schedule", "scheduler", "scaling", "plateau", "between")
        if c["model"].startswith("subclassed"):
            simplest("model")  # Keras builds this optimizer wrongly while it traces
    if c["scaling"] == "several":
        simplest("scheduler", "plateau")  # the rates belong to the optimizers inside
    if c["model"] in NO_FLOATS:
        simplest("float64")
    if kind == "classes":
        simplest("nan")
    if c["model"] not in _BLANKS:
        simplest("blank")
    if c["nan"]:
        simplest("metrics", "checkpoint", "early_stopping")  # Keras leaves open what is better than NaN
        simplest("layer_metric")  # fused with a multiplication, TensorFlow's ReLU makes 0 of NaN
    wanted = {"recurrent_dropout": c["model"] in ("lstm", "gru"), "augmentation": c["model"] in IMAGES}
    if not wanted.get(c["random"], True):
        c["random"] = "dropout"
    if c["dtype"] != "float32":
        simplest("activity_regularizer")  # Keras does not add a loss of 16 bits to one of 32
    if c["normalization"] == "spectral" and c["model"] in PER_STEP:
        simplest("normalization")
    if c["schedule"]:
        simplest("scheduler", "plateau")
    if c["data"] == "function":  # each replica takes a whole batch of its own
        simplest("rows", "batch", "shuffle")
    if c["data"] == "static" and c["rows"] == "short":
        simplest("rows")
    if c["shuffle"] and c["data"] in ("arrays", "generator"):
        c["rows"] = "short"  # one batch: of several each would have other rows than Keras's
        simplest("random")  # drawn for a row's place in the batch, and Keras's rows have other places
    if c["train_step"] == "accumulating" and c["rows"] == "short":
        simplest("rows", "shuffle")  # Keras builds an optimizer at its first update, for which one batch is too little
    if c["accumulation"] or c["scaling"] == "overflow":  # epochs without an update have the same loss but for rounding
        simplest("checkpoint", *(["early_stopping"] if c["early_stopping"] == "best" else []))
    if c["train_step"] == "gradient_penalty" and c["scaling"] == "overflow":
        simplest("scaling")  # within a gradient's gradient rounding decides what overflows
    if c["optimizer"] == "lion" and c["dtype"] == "mixed_bfloat16":
        simplest("dtype")  # it takes the gradient's sign, which rounding decides
    batches = steps_of_a_pass(c)
    if c["data"] in ("endless", "function"):
        c["steps_per_epoch"] = c["steps_per_epoch"] or 2
    elif c["steps_per_epoch"] and (c["data"] == "unknown_length" or batches % c["steps_per_epoch"]):
        simplest("steps_per_epoch")  # Keras makes an epoch shorter where data ends within it
    if c["steps_per_epoch"] is not None:
        simplest("initial_epoch", "fits")  # where the data goes on is another question, which the docs answer
    if c["between"] and c["steps_per_epoch"] is None:
        c["fits"] = 2
    if c["fits"] == 1:
        simplest("between")
    if c["between"] == "rate" and (c["schedule"] or c["scaling"] == "several"):
        simplest("between")
    if c["between"] == "other_batch" and c["data"] != "arrays":
        simplest("between")
    if c["train_step"] in ("accumulating", "two_optimizers") and c["between"] in ("recompile", "freeze"):
        simplest("between")  # it holds what belongs to the weights and to `compile`
    if c["afterwards"] is None:
        simplest("afterwards_batch_size")
    if c["initial_epoch"] >= c["epochs"]:
        simplest("initial_epoch")
    if c["validation"] is None:
        simplest("validation_steps", "validation_freq")
    if c["validation"] != "arrays":
        simplest("validation_batch_size")
    if c["loss"] == "hinge":  # it looks whether all labels of what it is given are 0 or 1
        simplest("nan")
    if c["nan"]:
        c["steps_per_execution"] = 1  # as Keras
    elif c["batch_hooks"] or c["stop_at_batch"]:
        simplest("steps_per_execution")  # they ask for one step by themselves
    return {name: c[name] for name, values in OPTIONS.items() if c[name] != values[0]}


def rows(c: Mapping[str, Any]) -> int:
    """How many examples there are."""
    batch = c["batch"]
    return {"even": 3 * batch, "partial": 2 * batch + (batch + 1) // 2, "one_over": 2 * batch + 1}.get(
        c["rows"], max(1, batch - 1)
    )


def steps_of_a_pass(c: Mapping[str, Any]) -> int:
    """Batches of all examples; of a size that does not change only those that are full."""
    return rows(c) // c["batch"] if c["data"] == "static" else -(-rows(c) // c["batch"])


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
