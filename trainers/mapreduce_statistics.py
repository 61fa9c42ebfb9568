"""Mean, variance and histogram of numbers in slices of any sizes: the functions for `tf2dist.map_reduce`.

Counts, means and sums of squared deviations are merged as in: T. Chan, G. Golub and R. LeVeque, "Updating Formulae and
a Pairwise Algorithm for Computing Sample Variances" (1979), which stays accurate when the mean is large beside the
spread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from tf2dist.data.errors import DataError
from trainers.common import threefry


def array_slices(numbers: np.ndarray, sizes: Sequence[int]) -> Iterator[np.ndarray]:
    """Yields the slices f64[size] of an array f64[n]."""
    yield from np.split(numbers, np.cumsum(sizes)[:-1])


def random_slices(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields slices of random numbers as (index of the first one, how many): workers make the numbers themselves."""
    first = 0
    for size in sizes:
        yield first, size
        first += size


def reader(seed: int, *, random: bool) -> Callable:
    """Returns a function from a slice, as `random_slices` or `array_slices` yields it, to its numbers f64[size]."""
    if not random:
        return lambda slice: slice
    return lambda slice: threefry.uniform(seed, slice[0] + tf.range(slice[1]))


def moments(x: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns count, mean, sum of squared deviations from it, minimum and maximum of numbers f64[n].

    Raises:
      tf.errors.InvalidArgumentError: when it runs and a number is NaN or infinite; names the first one's index.
    """
    bad = tf.where(~tf.math.is_finite(x))
    tf.debugging.assert_equal(
        tf.size(bad), 0, tf.strings.format("NaN or infinite at place {}", tf.reshape(bad, [-1])[:1])
    )
    mean = tf.reduce_mean(x)
    return {
        "count": tf.size(x, tf.int64),
        "mean": mean,
        "squared_deviations": tf.reduce_sum(tf.square(x - mean)),
        "min": tf.reduce_min(x),
        "max": tf.reduce_max(x),
    }


def merge_moments(a: dict, b: dict) -> dict:
    """Returns the `moments` of two slices together."""
    count, difference = a["count"] + b["count"], b["mean"] - a["mean"]
    return {
        "count": count,
        "mean": a["mean"] + difference * (b["count"] / count),
        "squared_deviations": a["squared_deviations"]
        + b["squared_deviations"]
        + difference * difference * (a["count"] * (b["count"] / count)),
        "min": np.minimum(a["min"], b["min"]),
        "max": np.maximum(a["max"], b["max"]),
    }


def bin_edges(low: float, high: float, bins: int) -> np.ndarray:
    """Returns the edges f64[bins + 1] of equal bins, as NumPy chooses them.

    Raises:
      DataError: there are not so many numbers between `low` and `high`, or the difference of the two is none.
    """
    try:
        with np.errstate(over="raise", invalid="raise"):
            return np.histogram_bin_edges(np.array([low, high]), bins)
    except (ValueError, FloatingPointError):
        raise DataError(
            f"--bins={bins} cannot be made of numbers from {low!r} to {high!r}: float64 has too few between them, or "
            "no number for their difference; give fewer bins, or scale the numbers"
        ) from None


def histogram(x: tf.Tensor, edges: np.ndarray) -> tf.Tensor:
    """Counts i64[bins] the numbers f64[n] between neighbouring edges f64[bins + 1]; the last bin includes both ends."""
    bins = len(edges) - 1
    places = tf.minimum(tf.searchsorted(tf.constant(edges), x, side="right") - 1, bins - 1)
    return tf.cast(tf.math.bincount(places, minlength=bins, maxlength=bins), tf.int64)
