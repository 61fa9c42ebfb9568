"""Whether a `keras.callbacks.TensorBoard` profiles, of which there is no public name."""

from __future__ import annotations

import keras


def profiles_batches(callback: keras.callbacks.TensorBoard) -> bool:
    """Was it given a `profile_batch`? It counts the batches by its hooks."""
    return callback._should_trace
