"""Metric sums of an epoch, added up on the host."""

import types

import numpy as np
import pytest

from tf2dist.training.metric_sums import MetricSums


@pytest.fixture
def sums():
    """Sums of a loss, and of a metric with a state of two numbers, as float32 in a graph."""
    step = types.SimpleNamespace(
        zero_sums=lambda: [np.zeros((), np.float32), np.zeros(2, np.float32)],
        add_sums=lambda sums, more: [a + b for a, b in zip(sums, more, strict=True)],
        reset=lambda: None,
    )
    return MetricSums(step)


def test_counts_stay_exact(sums):
    """Where float32 has no room for one more."""
    for n in (2**24, 1, 1, 1):
        sums.add([np.float32(n), np.full(2, n, np.float32)])
    assert sums.values[0] == 2**24 + 3
    assert sums.values[1].tolist() == [2**24 + 3] * 2


def test_small_numbers_are_added_to_large_ones(sums):
    for value in (1e6, *[0.01] * 1000):
        sums.add([np.float32(value), np.zeros(2, np.float32)])
    assert sums.values[0] == pytest.approx(1e6 + 10, rel=1e-9)


def test_a_loss_that_is_not_a_number_is_seen(sums):
    assert not sums.loss_is_nan
    sums.add([np.float32("nan"), np.zeros(2, np.float32)])
    assert sums.loss_is_nan


def test_goes_on_with_the_sums_of_an_earlier_job(sums):
    assert sums.take_up([np.float32(2), np.ones(2)])
    assert sums.values[0] == 2
    assert not sums.take_up([np.float32(2), np.ones(3)])  # of another metric
    assert sums.values[0] == 2
