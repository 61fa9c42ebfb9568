"""Computes statistics in slices, somewhere, and reduces them to one: python -m trainers.mapreduce --strategy=ps.

--job=mean and variance merge counts, means and squared deviations of slices of any sizes; histogram counts in bins;
ensemble trains classifiers apart and lets them answer together. The numbers are random ones in [0, 1), or in a file.
"""

import array
import math

from absl import flags

from tf2dist.data.errors import DataError
from trainers import job
from trainers.flags import UsageError

_JOB = flags.DEFINE_enum("job", "mean", ["mean", "variance", "histogram", "ensemble"], "What to compute.")
_SIZE = flags.DEFINE_integer("size", None, "How many random numbers; 100.", lower_bound=1, upper_bound=2**53)
_FILE = flags.DEFINE_string("file", None, "Numbers instead, separated by commas, white space or lines.")
_SLICES = flags.DEFINE_list(
    "slices", [], "How many slices, or the size of each, as 70,20,10; models of an ensemble. A slice is held in memory."
)
_BINS = flags.DEFINE_integer("bins", 10, "Of a histogram.", lower_bound=1, upper_bound=10**6)
flags.DEFINE_alias("index", "task_index")

_LARGEST = 2**22  # numbers in a slice, if not said otherwise
_MODELS, _MOST_MODELS = 5, 10_000


def prepare(shared):
    """Checks the flags and reads the file, before anything heavy is imported."""
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
        _members()
        return
    _slices(len(read(_FILE.value)) if _FILE.value else _SIZE.value or 100)


def train(run, prepared):
    """Computes what --job says."""
    if _JOB.value == "ensemble":
        from trainers import ensemble

        return {"job": "ensemble"} | ensemble.train(run, _members())

    import numpy as np

    import tf2dist
    from tf2dist import statistics

    numbers = np.array(read(_FILE.value), np.float64) if _FILE.value else None
    size = len(numbers) if numbers is not None else _SIZE.value or 100
    sizes = _slices(size)
    _agree(run, numbers)

    def map_reduce(fn, reduce):
        slices = statistics.of_array(numbers, sizes) if numbers is not None else statistics.random(sizes)
        return tf2dist.map_reduce(fn, slices, reduce, strategy=run.strategy)

    numbers_of = statistics.values(run.shared.seed, random=numbers is None)
    found = map_reduce(lambda slice: statistics.moments(numbers_of(slice)), statistics.merged)
    report = {
        "job": _JOB.value,
        "mean": float(found["mean"]),
        "count": int(found["count"]),
        "slices": len(sizes),
        "variance": float(found["deviation"] / found["count"]),
        "min": float(found["min"]),
        "max": float(found["max"]),
    }
    run.say(f"mean {report['mean']:.15g} of {report['count']:,} numbers in {len(sizes):,} slices")
    if _JOB.value == "variance":
        run.say(f"variance {report['variance']:.15g}, standard deviation {math.sqrt(report['variance']):.15g}")
    if _JOB.value == "histogram":
        edges = np.histogram_bin_edges([report["min"], report["max"]], _BINS.value)
        counts = map_reduce(lambda slice: statistics.histogram(numbers_of(slice), edges), np.add)
        for low, high, number in zip(edges[:-1], edges[1:], counts, strict=True):
            run.say(f"{low:12.6g} to {high:12.6g}: {number:,}")
        report |= {"edges": edges.tolist(), "counts": counts.tolist()}
    return report


def read(path: str) -> array.array:
    """The numbers f64 of a text file.

    Raises:
      DataError: it holds none, or what is no number or not finite; names the line.
    """
    numbers = array.array("d")
    try:
        with open(path, encoding="utf-8") as file:
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


def _slices(size: int) -> list[int]:
    """The sizes of the slices.

    Raises:
      UsageError: they do not make up `size` numbers.
    """
    if not _SLICES.value:
        return _even(size, min(size, max(2, math.ceil(size / _LARGEST))))
    given, sizes = _given()
    if len(sizes) > 1:
        if sum(sizes) != size:
            raise UsageError(f"{given} are {sum(sizes):,} numbers, and there are {size:,}")
        return sizes
    if sizes[0] > size:
        raise UsageError(f"{given} is more than the {size:,} numbers that there are; a slice has at least one")
    return _even(size, sizes[0])


def _members() -> int:
    if not _SLICES.value:
        return _MODELS
    given, sizes = _given()
    if len(sizes) > 1 or sizes[0] > _MOST_MODELS:
        raise UsageError(f"{given} must be one number of models up to {_MOST_MODELS:,} for --job=ensemble")
    return sizes[0]


def _given() -> tuple[str, list[int]]:
    given = f"--slices={','.join(_SLICES.value)}"
    try:
        sizes = [int(text) for text in _SLICES.value]
    except ValueError:
        raise UsageError(f"{given} must be a whole number, or several") from None
    if min(sizes) < 1:
        raise UsageError(f"{given} must be positive: a slice has at least one number")
    return given, sizes


def _even(size: int, slices: int) -> list[int]:
    return [size // slices + (i < size % slices) for i in range(slices)]


def _agree(run, numbers) -> None:
    """Raises a DataError when peers have read different files."""
    import hashlib

    from tf2dist import peers

    digest = hashlib.sha256(b"" if numbers is None else numbers.tobytes()).digest()
    if set(peers.exchange(run.strategy, digest)) != {digest}:
        raise DataError(f"--file={_FILE.value} is not the same for all processes; name one that they share, or copy it")


if __name__ == "__main__":
    job.run(train, prepare)
