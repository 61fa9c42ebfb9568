"""The logs of a step: names with numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf


def flat_results(results: Mapping[str, Any]) -> dict[str, Any]:
    """Results by name without dictionaries inside, as Keras sorts and flattens them: a metric may have several."""
    flat = {}
    for name, value in sorted(results.items(), key=lambda item: str(item[0])):
        flat |= flat_results(value) if isinstance(value, Mapping) else {name: value}
    return flat


def as_logs(results: Mapping[str, Any]) -> dict[str, Any]:
    """Results as callbacks get them: a float for each scalar, an array for anything else."""
    values = {name: np.asarray(tf.convert_to_tensor(value)) for name, value in flat_results(results).items()}
    return {name: float(value) if value.ndim == 0 else value for name, value in values.items()}
