"""Slices and bins that cannot be, or that are too many to be held."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from tf2dist.data.errors import DataError
from trainers.mapreduce_slices import EvenSizes


@pytest.mark.parametrize(("size", "slices"), [(1, 1), (10, 3), (9, 3), (100, 99)])
def test_sizes_are_even_and_add_up(size, slices):
    sizes = EvenSizes(size, slices)
    assert (len(sizes), sum(sizes)) == (slices, size)
    assert list(sizes) == sorted(sizes, reverse=True) == sizes[:]
    assert sizes[0] - sizes[-1] in (0, 1)
    assert sizes[1:] == list(sizes)[1:]
    with pytest.raises(IndexError):
        sizes[slices]


@pytest.mark.parametrize("arguments", [["--size=9007199254740992"], ["--size=1000000000000", "--slices=500000000000"]])
def test_billions_of_slices_take_no_memory(arguments, tmp_path):
    program = """
        import resource, sys
        from absl import flags
        from trainers import mapreduce

        flags.FLAGS(sys.argv)
        resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
        sizes = mapreduce._slice_sizes(flags.FLAGS.size)
        print(len(sizes), sizes[-1])
    """
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout in ("2147483648 4194304\n", "500000000000 2\n"), done


def test_edges_are_numpys_and_too_many_are_refused(tf):
    from trainers.mapreduce_statistics import bin_edges

    for low, high, bins in ((0.25, 0.75, 7), (3.0, 3.0, 2), (-1e300, 1e300, 5)):
        assert bin_edges(low, high, bins).tolist() == np.histogram([low, high], bins)[1].tolist()
    for low, high in ((1.0, np.nextafter(1.0, 2.0)), (-1.7e308, 1.7e308)):
        with pytest.raises(DataError, match=r"--bins=10 cannot be made of numbers from .*; give fewer bins, or scale"):
            bin_edges(float(low), float(high), 10)
