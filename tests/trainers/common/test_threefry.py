"""The generator: its authors' known answers, every slicing alike, and what theory says of random points."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import every_third

SAMPLES = 2**20


@pytest.fixture(scope="module")
def threefry(tf):
    from trainers.common import threefry

    return threefry


def points(threefry, tf, seed, first, count):
    """x and y, u64[count]."""
    return [w.numpy().astype(np.uint64) for w in threefry.points(seed, first + tf.range(count, dtype=tf.int64))]


def inside(threefry, tf, seed, first, count):
    return int(threefry.inside(*(tf.constant(v, tf.int64) for v in (seed, first, count))))


@pytest.mark.parametrize(
    ("rounds", "counter", "key", "expected"),
    [  # tests/kat_vectors of the authors' Random123
        (13, (0, 0), (0, 0), (0x9D1C5EC6, 0x8BD50731)),
        (13, (0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0xFD36D048, 0x2D17272C)),
        (13, (0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xBA3E4725, 0xF27D669E)),
        (20, (0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        (20, (0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        (20, (0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_known_answers(tf, threefry, rounds, counter, key, expected):
    counter, key = (tf.constant(pair, tf.uint32) for pair in (counter, key))
    words = threefry.threefry(threefry.key_schedule(tf.unstack(key), rounds), tf.unstack(counter), rounds)
    assert tuple(int(word) for word in words) == expected


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    first=st.one_of(st.integers(0, 5000), st.integers(2**32 - 3000, 2**32), st.integers(2**40, 2**40 + 3000)),
    count=st.integers(0, 5000),
    seed=st.integers(0, 2**32 - 1),
)
def test_what_is_inside_is_counted_exactly(tf, threefry, first, count, seed):
    x, y = (word.astype(object) for word in points(threefry, tf, seed, first, count))
    assert inside(threefry, tf, seed, first, count) == int((x * x + y * y < 2**64).sum())


@pytest.mark.slow
def test_estimates_of_200_seeds_are_spread_as_theory_says(tf, threefry):
    quarter = math.pi / 4
    found = np.array([inside(threefry, tf, seed, 0, SAMPLES) for seed in range(200)])
    z = (found - SAMPLES * quarter) / math.sqrt(SAMPLES * quarter * (1 - quarter))
    assert abs(z.mean()) * math.sqrt(200) < 3.3
    assert abs((z**2).sum() - 200) / math.sqrt(2 * 200) < 3.3
    assert len(set(found)) > 150


PAIRS = {
    "x and y": lambda x, y: (x >> 26, y >> 26),
    "their low bits": lambda x, y: (x & 63, y & 63),
    "their middle bits": lambda x, y: (x >> 13 & 63, y >> 13 & 63),
    "a point and the next": lambda x, y: (x[:-1] >> 26, x[1:] >> 26),
    "a point and the next's other side": lambda x, y: (y[:-1] >> 26, x[1:] >> 26),
    "points 1024 apart": lambda x, y: (x[:-1024] >> 26, x[1024:] >> 26),
    "high bits and low": lambda x, y: (x >> 26, x & 63),
}


@pytest.mark.parametrize("pair", PAIRS)
@every_third("seed", [2**32 - 1, 0, 1])
def test_squares_of_a_grid_hold_as_many_points(tf, threefry, pair, seed):
    a, b = PAIRS[pair](*points(threefry, tf, seed, 2**33, SAMPLES))
    counts = np.bincount((a * 64 + b).astype(np.int64), minlength=4096)
    expected = len(a) / 4096
    square = ((counts - expected) ** 2 / expected).sum()
    assert abs(square - 4095) / math.sqrt(2 * 4095) < 4


def test_seeds_have_nothing_to_do_with_each_other(tf, threefry):
    (x, _), (other, _) = (points(threefry, tf, seed, 0, SAMPLES) for seed in (7, 8))
    counts = np.bincount(((x >> 26) * 64 + (other >> 26)).astype(np.int64), minlength=4096)
    square = ((counts - SAMPLES / 4096) ** 2 / (SAMPLES / 4096)).sum()
    assert abs(square - 4095) / math.sqrt(2 * 4095) < 4


@pytest.mark.parametrize("shift", [24, 12, 0])
def test_no_lattice(tf, threefry, shift):
    """A lattice is a peak in the spectrum; of random points every wave has a power distributed as exp(-power)."""
    x, y = points(threefry, tf, 3, 0, SAMPLES)
    grid = np.bincount(((x >> shift & 255) * 256 + (y >> shift & 255)).astype(np.int64), minlength=65536)
    power = np.abs(np.fft.fft2(grid.reshape(256, 256) - SAMPLES / 65536)) ** 2 / SAMPLES
    assert power.max() < math.log(65536) + 9
    assert abs(power.mean() - 1) < 0.03


def test_a_lattice_would_be_seen():
    """The two tests before find the points of a linear congruential generator whose lattice is famous (RANDU)."""
    state, words = np.uint64(1), []
    for _ in range(3 * 2**16):
        state = state * np.uint64(65539) & np.uint64(2**31 - 1)
        words.append(int(state))
    x, y, z = np.array(words).reshape(-1, 3).T / 2**31
    phase = np.exp(2j * np.pi * (9 * x - 6 * y + z))
    assert abs(phase.sum()) ** 2 / len(x) > 1000


def test_uniform_numbers(tf, threefry):
    x = threefry.uniform(5, tf.range(SAMPLES, dtype=tf.int64)).numpy()
    assert (x.dtype, x.min() >= 0, x.max() < 1) == (np.float64, True, True)
    assert abs(x.mean() - 0.5) * math.sqrt(12 * SAMPLES) < 3.3
    counts = np.bincount((x * 1024).astype(np.int64), minlength=1024)
    square = ((counts - 1024) ** 2 / 1024).sum()
    assert abs(square - 1023) / math.sqrt(2 * 1023) < 3.5
    assert np.array_equal(x[100:200], threefry.uniform(5, 100 + tf.range(100, dtype=tf.int64)).numpy())
    assert (np.modf(x * 2**53)[0] == 0).all()
    assert len(np.unique(x)) > SAMPLES - 5
