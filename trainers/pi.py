"""Estimates pi by random points in a square: python -m trainers.pi --strategy=ps --workers=2 --samples=1e10.

Point number i of a seed is the same wherever it is made, so the count is the same for any strategy and any number of
workers and devices, also when some of them die. Each worker or device uses one core: --strategy=mirrored --replicas=8.
One with a GPU counts on a core of its host, since the loop is made for registers (`trainers.common.threefry.inside`).
"""

import math
import time

from absl import flags

from tf2dist.errors import UsageError
from tf2dist.system import output_files
from trainers.common import flag_requirements, main

_MAX_SAMPLES = 10**15
_SAMPLES = flags.DEFINE_string("samples", None, "Random points in all, as 1e10; 1e9 if not given.")
_NUMSAMPLES = flags.DEFINE_string("numsamples", None, "Random points for each worker, or for each device without any.")
_CHART = flags.DEFINE_string("chart", None, "File (.png) for the estimate and its error over the samples.")
flags.DEFINE_alias("index", "task_index")

_MIN_SHARDS, _MAX_SHARDS = 16, 256  # targets; sizes below come first
# Samples of a shard: 2**28 take 200 ms, 2**24 take 12 ms (smaller shards cost speed), 2**10 take 1 us.
_LARGEST_SHARD, _EFFICIENT_SHARD, _SMALLEST_SHARD = 2**28, 2**24, 2**10


def prepare(shared):
    """Checks the flags, before TensorFlow is imported."""
    if _SAMPLES.value and _NUMSAMPLES.value:
        raise UsageError(
            f"--samples={_SAMPLES.value} (in all) and --numsamples={_NUMSAMPLES.value} (each) both say how many; "
            "give one"
        )
    _whole_number(_SAMPLES)
    _whole_number(_NUMSAMPLES)
    if shared.logdir:
        raise UsageError(f"--logdir={shared.logdir} is for what is trained; pi has nothing to go on from")
    if shared.mixed_precision:
        raise UsageError("--mixed_precision is for floating-point numbers, and pi counts")
    if _CHART.value and shared.leads:
        _check_chart(_CHART.value)


def train(run, prepared):
    """Counts the points inside the quarter circle, with `tf2dist.map_reduce`."""
    import numpy as np
    import tensorflow as tf

    import tf2dist
    from tf2dist.runtime import devices
    from trainers.common import threefry
    from trainers.pi_progress import ProgressMeter

    seed, strategy = run.shared.seed, run.strategy
    tasks = strategy.num_replicas_in_sync
    if run.shared.strategy == "ps":
        tasks = run.shared.cluster.count("worker")
    each = _whole_number(_NUMSAMPLES)
    samples = each * tasks if each else _whole_number(_SAMPLES) or 10**9
    size = _shard_size(samples, tasks)

    accelerators = devices.on_accelerators(strategy)

    def inside(shard):
        with tf.device("/cpu:0" if accelerators else None):
            return threefry.inside(tf.constant(seed, tf.int64), *shard)[None]

    def counts(shards, progress=None):
        return tf2dist.map_reduce(
            inside, shards, lambda a, b: np.concatenate([a, b]), strategy=strategy, progress=progress
        )

    work = f"{tasks} at work, on the CPU" if accelerators else f"{tasks} at work"
    run.say(f"{samples:,} samples, seed {seed}, strategy {run.shared.strategy} ({run.shared.layout}), {work}")
    counts([(number, 1) for number in range(tasks)])  # each compiles what it will run
    progress = ProgressMeter(run.say, samples, "samples")
    began = time.perf_counter()
    found = counts(
        ((first, min(size, samples - first)) for first in range(0, samples, size)),
        lambda done: progress(min(done * size, samples)),
    )
    seconds = time.perf_counter() - began
    progress.close()

    total = int(found.sum())
    estimate, error = _estimate(total, samples)
    run.say(
        f"pi is {estimate:.10f}, standard error {error:.2g}: {(estimate - math.pi) / (error or 1):+.2f} of them off"
    )
    run.say(f"{total:,} of {samples:,} inside; {seconds:.2f} s, {samples / seconds:.3g} samples/s")
    if _CHART.value and run.leads:
        _draw(_CHART.value, found, size, samples)
    return {
        "estimate": estimate,
        "standard_error": error,
        "samples": samples,
        "inside": total,
        "samples_per_second": samples / seconds,
        "seconds": seconds,
    }


def _shard_size(samples: int, tasks: int) -> int:
    """Returns the samples of a shard; the result does not depend on it."""
    size_of_few, size_of_many = (math.ceil(samples / shards) for shards in (max(_MIN_SHARDS, 4 * tasks), _MAX_SHARDS))
    return min(
        _LARGEST_SHARD,
        max(_EFFICIENT_SHARD, size_of_many),
        max(_SMALLEST_SHARD, size_of_few),
        math.ceil(samples / tasks),
    )


def _whole_number(flag) -> int | None:
    """Returns the number in the text of a flag, as 1000 or 1e12; None for an unset flag. Raises UsageError."""
    if flag.value is None:
        return None
    try:
        number = float(flag.value)
        if "e" not in flag.value.lower():
            number = int(flag.value)
        if number == int(number) and 1 <= number <= _MAX_SAMPLES:
            return int(number)
    except (ValueError, OverflowError):
        pass
    raise UsageError(f"--{flag.name}={flag.value} must be a whole number from 1 to {_MAX_SAMPLES:.0e}, as 100 or 1e10")


def _estimate(inside: int, samples: int) -> tuple[float, float]:
    """Returns the estimate of pi, and its standard error."""
    part = inside / samples
    return 4 * part, 4 * math.sqrt(part * (1 - part) / samples)


def _check_chart(path: str) -> None:
    if not path.endswith(".png"):
        raise UsageError(f"--chart={path} must end in .png")
    flag_requirements.check_installed(f"--chart={path}", "matplotlib")
    output_files.check_writable(f"--chart={path}", path)


def _draw(path: str, counts, size: int, samples: int) -> None:
    """Draws the estimate after each shard, with its standard error."""
    import numpy as np
    from matplotlib.figure import Figure

    from tf2dist.system import files
    from tf2dist.system.atomic_files import replacing

    after = np.minimum(size * np.arange(1, len(counts) + 1), samples)
    estimates, errors = np.array([_estimate(*point) for point in zip(np.cumsum(counts), after, strict=True)]).T
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="samples", ylabel="estimate of π", xscale="log")
    axes.axhline(math.pi, color="grey", linewidth=1)
    axes.errorbar(after, estimates, errors, fmt=".", markersize=3, linewidth=1)
    with replacing(files.target(path)) as (part,):
        figure.savefig(part, format="png", dpi=120)


if __name__ == "__main__":
    main.run(train, prepare)
