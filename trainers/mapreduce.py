"""Computes statistics of slices on workers and reduces them to one: python -m trainers.mapreduce --strategy=ps.

--job=mean and variance merge counts, means and squared deviations of slices of any sizes; histogram counts in bins;
ensemble trains classifiers apart and lets them answer together. The numbers are random ones in [0, 1), or in a file.
"""

import array
import math
from collections.abc import Sequence

from absl import flags

from tf2dist.data.errors import DataError
from tf2dist.errors import UsageError
from tf2dist.system import files
from trainers.common import main
from trainers.mapreduce_slices import EvenSizes

_JOB = flags.DEFINE_enum("job", "mean", ["mean", "variance", "histogram", "ensemble"], "What to compute.")
_SIZE = flags.DEFINE_integer("size", None, "How many random numbers; 100.", lower_bound=1, upper_bound=2**53)
_FILE = flags.DEFINE_string("file", None, "Numbers instead, separated by commas, white space or lines.")
_SLICES = flags.DEFINE_list(
    "slices", [], "How many slices, or the size of each, as 70,20,10; models of an ensemble. A slice is held in memory."
)
_BINS = flags.DEFINE_integer("bins", 10, "Of a histogram.", lower_bound=1, upper_bound=10**6)
flags.DEFINE_alias("index", "task_index")

_MAX_SLICE = 2**22  # numbers in a slice, without --slices
_DEFAULT_MODELS, _MAX_MODELS = 5, 10_000  # of an ensemble


def prepare(shared):
    """Checks the flags and reads the file, before TensorFlow is imported."""
    if shared.logdir:
        raise UsageError(
            f"--logdir={shared.logdir} is for what is trained step by step; there is nothing to go on from"
        )
    if shared.xla or shared.mixed_precision:
        raise UsageError(
            f"--{'xla' if shared.xla else 'mixed_precision'} is not for float64, in which this is computed"
        )
    if _FILE.value and _SIZE.value:
        raise UsageError(f"--file={_FILE.value} and --size={_SIZE.value} both say which numbers; give one")
    if _JOB.value == "ensemble":
        if _FILE.value or _SIZE.value:
            raise UsageError("--job=ensemble learns handwritten digits; --file and --size are for the other jobs")
        _ensemble_size()
        return
    _slice_sizes(len(read_numbers(_FILE.value)) if _FILE.value else _SIZE.value or 100)


def train(run, prepared):
    """Runs the --job with `tf2dist.map_reduce`."""
    if _JOB.value == "ensemble":
        from trainers import mapreduce_ensemble

        return {"job": "ensemble"} | mapreduce_ensemble.fit_and_combine(run, _ensemble_size())

    import numpy as np

    import tf2dist
    from trainers import mapreduce_statistics as statistics

    numbers = np.array(read_numbers(_FILE.value), np.float64) if _FILE.value else None
    size = len(numbers) if numbers is not None else _SIZE.value or 100
    sizes = _slice_sizes(size)
    _check_same_numbers(run, numbers)

    def map_reduce(fn, reduce):
        slices = statistics.array_slices(numbers, sizes) if numbers is not None else statistics.random_slices(sizes)
        return tf2dist.map_reduce(fn, slices, reduce, strategy=run.strategy)

    read_slice = statistics.reader(run.shared.seed, random=numbers is None)
    found = map_reduce(lambda slice: statistics.moments(read_slice(slice)), statistics.merge_moments)
    report = {
        "job": _JOB.value,
        "mean": float(found["mean"]),
        "count": int(found["count"]),
        "slices": len(sizes),
        "variance": float(found["squared_deviations"] / found["count"]),
        "min": float(found["min"]),
        "max": float(found["max"]),
    }
    run.say(f"mean {report['mean']:.15g} of {report['count']:,} numbers in {len(sizes):,} slices")
    if _JOB.value == "variance":
        run.say(f"variance {report['variance']:.15g}, standard deviation {math.sqrt(report['variance']):.15g}")
    if _JOB.value == "histogram":
        edges = statistics.bin_edges(report["min"], report["max"], _BINS.value)
        counts = map_reduce(lambda slice: statistics.histogram(read_slice(slice), edges), np.add)
        for low, high, number in zip(edges[:-1], edges[1:], counts, strict=True):
            run.say(f"{low:12.6g} to {high:12.6g}: {number:,}")
        report |= {"edges": edges.tolist(), "counts": counts.tolist()}
    return report


def read_numbers(path: str) -> array.array:
    """Returns the numbers f64 of a text file, at a path or a URL.

    Raises:
      DataError: it holds no numbers, or something that is no finite number; names the line.
    """
    files.check(f"--file={path}", path)
    numbers = array.array("d")
    try:
        with files.open_text(path) as file:
            for count, line in enumerate(file, 1):
                for text in line.replace(",", " ").split():
                    try:
                        number = float(text)
                    except ValueError:
                        raise DataError(f"{path}, line {count}: {text[:40]!r} is no number") from None
                    if not math.isfinite(number):
                        raise DataError(f"{path}, line {count}: {text} is not finite; there is no mean with it")
                    numbers.append(number)
    except OSError as error:
        raise DataError(f"--file={path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no text: {error}") from None
    if not numbers:
        raise DataError(f"{path} holds no numbers")
    return numbers


def _slice_sizes(size: int) -> Sequence[int]:
    """Returns the sizes of the slices.

    Args:
      size: how many numbers there are.

    Raises:
      UsageError: --slices does not add up to `size`.
    """
    if not _SLICES.value:
        return EvenSizes(size, min(size, max(2, math.ceil(size / _MAX_SLICE))))
    given, sizes = _parse_slices()
    if len(sizes) > 1:
        if sum(sizes) != size:
            raise UsageError(f"{given} are {sum(sizes):,} numbers, and there are {size:,}")
        return sizes
    if sizes[0] > size:
        raise UsageError(f"{given} is more than the {size:,} numbers that there are; a slice has at least one")
    return EvenSizes(size, sizes[0])


def _ensemble_size() -> int:
    """Returns the number of models in the ensemble. Raises UsageError."""
    if not _SLICES.value:
        return _DEFAULT_MODELS
    given, sizes = _parse_slices()
    if len(sizes) > 1 or sizes[0] > _MAX_MODELS:
        raise UsageError(f"{given} must be one number of models up to {_MAX_MODELS:,} for --job=ensemble")
    return sizes[0]


def _parse_slices() -> tuple[str, list[int]]:
    given = f"--slices={','.join(_SLICES.value)}"
    try:
        sizes = [int(text) for text in _SLICES.value]
    except ValueError:
        raise UsageError(f"{given} must be a whole number, or several") from None
    if min(sizes) < 1:
        raise UsageError(f"{given} must be positive: a slice has at least one number")
    return given, sizes


def _check_same_numbers(run, numbers) -> None:
    """Raises DataError when peers have read different files."""
    import hashlib

    from tf2dist.runtime import collectives

    digest = hashlib.sha256(b"" if numbers is None else numbers.tobytes()).digest()
    if set(collectives.all_gather(run.strategy, digest)) != {digest}:
        raise DataError(f"--file={_FILE.value} is not the same for all processes; name one that they share, or copy it")


if __name__ == "__main__":
    main.run(train, prepare)
