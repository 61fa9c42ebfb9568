"""Made-up images of ten classes, which any network can learn: for tests and for speed."""

import numpy as np


def load(train: int = 10_000, test: int = 2_000, seed: int = 0):
    """Ten fixed random patterns, each image one of them under strong noise.

    Args:
        train, test: how many images; classes take turns, so that each has its share.
        seed: the same seed gives the same images, in every process and release.

    Returns:
        (images u8[n, 28, 28] in 0..255, labels i64[n]) twice: train, test.
    """
    random = np.random.RandomState(seed)  # NumPy promises that its stream never changes
    patterns = random.randint(64, 192, (10, 28, 28), np.int16)

    def draw(n):
        labels = np.arange(n, dtype=np.int64) % 10
        noise = random.randint(-64, 64, (n, 28, 28), np.int16)
        return (patterns[labels] + noise).astype(np.uint8), labels  # 0 <= 64 - 64, 191 + 63 <= 255

    return draw(train), draw(test)
