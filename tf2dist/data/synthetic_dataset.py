"""Synthetic images of ten classes that any network can learn, for tests and benchmarks."""

# pyright: strict

from typing import Any

import numpy as np

Images = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]  # and labels


def load(train: int = 10_000, test: int = 2_000, seed: int = 0) -> tuple[Images, Images]:
    """Makes images that are one of ten fixed random patterns under strong noise.

    Args:
        train, test: how many images; classes alternate, so that all are equally frequent.
        seed: the same seed gives the same images, in every process and release.

    Returns:
        (images u8[n, 28, 28] in 0..255, labels i64[n]) twice: train, test.
    """
    random = np.random.RandomState(seed)  # NumPy promises that its stream never changes
    patterns = random.randint(64, 192, (10, 28, 28), np.int16)

    def draw(n: int) -> Images:
        labels = np.arange(n, dtype=np.int64) % 10
        noise = random.randint(-64, 64, (n, 28, 28), np.int16)
        return (patterns[labels] + noise).astype(np.uint8), labels  # 0 <= 64 - 64, 191 + 63 <= 255

    return draw(train), draw(test)
