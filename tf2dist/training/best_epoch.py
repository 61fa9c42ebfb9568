"""Which epoch is the best, by a value in its logs."""

# pyright: strict

from __future__ import annotations

import math

from tf2dist.errors import UsageError

_LESS = {
    *("loss", "error", "mse", "mae", "rmse", "mape", "msle", "perplexity", "entropy", "crossentropy", "divergence"),
    *("hinge", "poisson"),
}
_MORE = {
    *("acc", "accuracy", "auc", "precision", "recall", "f1", "fbeta", "iou", "r2", "similarity", "sensitivity"),
    "specificity",
}


class BestEpoch:
    """What is better than the best so far.

    Args:
      metric: the name of the value, such as "val_loss".
      mode: "min" or "max"; "auto" goes by the name.

    Raises:
      ValueError: another mode, or a name that does not tell.
    """

    def __init__(self, metric: str, mode: str = "auto") -> None:
        if mode not in ("auto", "min", "max"):
            raise UsageError(f"mode must be 'auto', 'min' or 'max', found {mode!r}")
        self.metric, self.mode = metric, mode
        self.value = math.nan
        if mode != "auto":
            return
        words = {*metric.lower().replace("io_u", "iou").split("_")}
        less, more = bool(words & _LESS), bool(words & _MORE)
        if less == more:
            raise UsageError(f"{metric!r} does not say whether less or more is better: give mode='min' or mode='max'")
        self.mode = "min" if less else "max"

    def is_improved_by(self, value: float) -> bool:
        """Is this value better than the best so far? NaN never is."""
        if math.isnan(value) or math.isnan(self.value):
            return not math.isnan(value)
        return value < self.value if self.mode == "min" else value > self.value
