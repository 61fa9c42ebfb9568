"""Mean, variance and histogram of numbers that are in slices of any sizes: what to map slices to, how to reduce it.

Counts, means and sums of squared deviations are merged as in T. Chan, G. Golub and R. LeVeque, "Updating Formulae and
a Pairwise Algorithm for Computing Sample Variances" (1979): nothing is lost when the mean is large beside the spread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from tf2dist import threefry


def of_array(numbers: np.ndarray, sizes: Sequence[int]) -> Iterator[np.ndarray]:
    """The slices f64[size] of an array f64[n]."""
    yield from np.split(numbers, np.cumsum(sizes)[:-1])


def random(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Slices of random numbers, which are made where they are used: the first one's number, and how many."""
    first = 0
    for size in sizes:
        yield first, size
        first += size


def values(seed: int, *, random: bool) -> Callable:
    """A function from a slice, as `random` or `of_array` yields it, to its numbers f64[size]."""
    if not random:
        return lambda slice: slice
    return lambda slice: threefry.uniform(seed, slice[0] + tf.range(slice[1]))


def moments(x: tf.Tensor) -> dict[str, tf.Tensor]:
    """Count, mean, sum of squared deviations from it, least and greatest of numbers f64[n].

    Raises:
      tf.errors.InvalidArgumentError: where it runs, a number is NaN or infinite; names the first one's place.
    """
    bad = tf.where(~tf.math.is_finite(x))
    tf.debugging.assert_equal(
        tf.size(bad), 0, tf.strings.format("NaN or infinite at place {}", tf.reshape(bad, [-1])[:1])
    )
    mean = tf.reduce_mean(x)
    return {
        "count": tf.size(x, tf.int64),
        "mean": mean,
        "deviation": tf.reduce_sum(tf.square(x - mean)),
        "min": tf.reduce_min(x),
        "max": tf.reduce_max(x),
    }


def merged(a: dict, b: dict) -> dict:
    """The `moments` of two slices together."""
    count, apart = a["count"] + b["count"], b["mean"] - a["mean"]
    return {
        "count": count,
        "mean": a["mean"] + apart * (b["count"] / count),
        "deviation": a["deviation"] + b["deviation"] + apart * apart * (a["count"] * (b["count"] / count)),
        "min": np.minimum(a["min"], b["min"]),
        "max": np.maximum(a["max"], b["max"]),
    }


def histogram(x: tf.Tensor, edges: np.ndarray) -> tf.Tensor:
    """How many i64[bins] of numbers f64[n] are between neighbouring edges f64[bins + 1]; the last bin has both ends."""
    bins = len(edges) - 1
    places = tf.minimum(tf.searchsorted(tf.constant(edges), x, side="right") - 1, bins - 1)
    return tf.cast(tf.math.bincount(places, minlength=bins, maxlength=bins), tf.int64)
