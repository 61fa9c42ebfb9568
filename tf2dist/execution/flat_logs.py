"""The logs of a step: names with numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf2dist.compat.model import flat_results


def as_logs(results: Mapping[str, Any]) -> dict[str, Any]:
    """Results as callbacks get them: a float for each scalar, an array for anything else."""
    values = {name: np.asarray(tf.convert_to_tensor(value)) for name, value in flat_results(results).items()}
    return {name: float(value) if value.ndim == 0 else value for name, value in values.items()}
