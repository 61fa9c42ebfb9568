"""Random points and those in the quarter circle: one core beside NumPy on one core, and one worker beside two."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import time

from benchmarks.rounds import in_turn, table

_SAMPLES, _NUMPY, _CHUNK = 2**30, 2**26, 2**16  # of a measurement; of NumPy's; in an array that fits the cache
_CLUSTER = 10**10
_SPEED = "samples/s, in millions"


def run(rounds: int) -> dict:
    """Measures; returns the figures, in millions of samples a second, and the ratios."""
    core = in_turn({"threefry.inside": _ours, "numpy.random.Generator": _numpy}, rounds)
    workers = {f"{n} worker{'s' * (n > 1)}": functools.partial(_trainer, n) for n in (2, 1)}
    cluster = in_turn(workers, rounds)
    return {
        "core": {"msamples_per_second": core, "ours_over": table("one core", _SPEED, core, "threefry.inside")},
        "workers": {
            "msamples_per_second": cluster,
            "two_over": table(f"strategy ps, {_CLUSTER:.0e} samples", _SPEED, cluster, "2 workers"),
        },
    }


def _ours():
    from tf2dist.runtime import tensorflow_import

    tf = tensorflow_import.import_tensorflow()
    from trainers.common import threefry

    def measure() -> float:
        began = time.perf_counter()
        threefry.inside(*(tf.constant(v, tf.int64) for v in (1, 0, _SAMPLES))).numpy()
        return _SAMPLES / (time.perf_counter() - began) / 1e6

    return measure


def _numpy():
    import numpy as np

    generator = np.random.default_rng(1)

    def measure() -> float:
        began, inside = time.perf_counter(), 0
        for _ in range(_NUMPY // _CHUNK):
            x, y = generator.random((2, _CHUNK), dtype=np.float32)
            inside += np.count_nonzero(x * x + y * y < 1)
        return _NUMPY / (time.perf_counter() - began) / 1e6

    return measure


def _trainer(workers: int):
    """The trainer on a local cluster; what it reports leaves out how long it took to start and to compile."""

    def measure() -> float:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "report.json")
            command = [
                sys.executable, "-m", "trainers.pi", "--strategy=ps", f"--workers={workers}", f"--samples={_CLUSTER}",
                f"--report={path}",
            ]  # fmt: skip
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            with open(path) as file:
                return json.load(file)["samples_per_second"] / 1e6

    return measure
