"""Times the product of a matrix with its transpose on a device: python -m trainers.matmul gpu 1500.

A is random, of 1500 x 1500 numbers in [0, 1). Timed apart: A from NumPy to the device, the product and the sum of all
that is in it, and the product from the device to NumPy; medians, after a first time that does not count. The sum must
be NumPy's. GFLOP/s are 2 n^3 operations a second. The product is symmetric, so half of it is computed and the other
half mirrors it, as in NumPy's A @ A.T; --full computes both. Sweeps: --sizes=1500,3000,4500. Several devices, each with
some rows of the product: --split.
"""

import os
import re
import statistics
import time

from absl import flags

from tf2dist.errors import UsageError
from tf2dist.runtime import placement_log
from tf2dist.system import files, output_files
from tf2dist.system.atomic_files import replacing
from trainers.common import flag_requirements, main

_DEVICE = flags.DEFINE_string("device", None, "cpu, gpu, gpu:1, ...; the CPU and every GPU if not given.")
_SIZES = flags.DEFINE_list("sizes", ["1500"], "Rows and columns of A.")
_DTYPE = flags.DEFINE_enum("dtype", "float32", ["float16", "bfloat16", "float32", "float64"], "Of A and the product.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Times each is timed.", lower_bound=1)
_SPLIT = flags.DEFINE_boolean(
    "split", False, "Spread the rows of the product over all devices, or all of --device's kind; --replicas makes "
    "virtual ones of a CPU."
)  # fmt: skip
_FULL = flags.DEFINE_boolean("full", False, "Compute both halves of the symmetric product, as --split does.")
_NUMPY = flags.DEFINE_boolean("numpy", False, "Time NumPy's product as well; float32 and float64.")
_CHART = flags.DEFINE_string("chart", None, "File for a picture: .png, .svg or .pdf.")

_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_SMALLEST_CUT = 350  # rows; cutting a smaller product costs more than it saves
_TOLERANCE = {"float16": 2e-2, "bfloat16": 2e-2, "float32": 1e-4, "float64": 1e-9}  # of the sum, relative


def prepare(shared):
    """Checks the flags, before TensorFlow is imported."""
    if shared.strategy in ("ps", "multiworker"):
        raise UsageError(f"--strategy={shared.strategy} is of several processes, and matmul runs in one")
    if shared.mixed_precision:
        raise UsageError("--mixed_precision is for models; --dtype=bfloat16 is what a product takes")
    if _SPLIT.value and shared.xla:
        raise UsageError("--xla compiles what is on one device, and --split uses several")
    if _NUMPY.value and _DTYPE.value not in ("float32", "float64"):
        raise UsageError(f"--numpy has no fast product in {_DTYPE.value}; float32 and float64 have one")
    if _DEVICE.value is not None and not re.fullmatch(r"/?(cpu|gpu)(:\d+)?", _DEVICE.value.lower()):
        raise UsageError(f"--device={_DEVICE.value} is no device of this machine; one is cpu, gpu or gpu:1")
    if _SPLIT.value and _DEVICE.value and ":" in _DEVICE.value:
        raise UsageError(f"--split spreads over several devices, and --device={_DEVICE.value} is one; say cpu or gpu")
    for size in _sizes():
        needed = 4 * size * size * _BYTES[_DTYPE.value]
        if needed > (there := os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")):
            raise UsageError(f"size {size} needs {needed / 2**30:.0f} GiB, and this machine has {there / 2**30:.0f}")
    if _CHART.value:
        if not _CHART.value.endswith((".png", ".svg", ".pdf")):
            raise UsageError(f"--chart={_CHART.value} must end in .png, .svg or .pdf")
        flag_requirements.check_installed(f"--chart={_CHART.value}", "matplotlib")
        output_files.check_writable(f"--chart={_CHART.value}", _CHART.value)


def train(run, prepared):
    """Times every size on each device, or on all devices together (--split)."""
    device_groups = _device_groups(run.shared.soft_placement)
    if _SPLIT.value and min(_sizes()) < len(device_groups[0]):
        raise UsageError(f"size {min(_sizes())} has fewer rows than there are devices, {len(device_groups[0])}")
    runs = []
    for size in _sizes():
        matrix = _random_matrix(size, run.shared.seed)
        for devices in device_groups:
            runs.append(_time_product(matrix, devices, compiled=run.shared.xla))
        if _NUMPY.value:
            runs.append(_time_numpy(matrix))
    heading = ("device", "size", "dtype", "GFLOP/s", "to device ms", "compute ms", "to host ms", "result")
    run.say(placement_log.table(heading, [_table_row(one) for one in runs]))
    if _CHART.value:
        _draw_chart(_CHART.value, runs)
    return {"dtype": _DTYPE.value, "repeats": _REPEATS.value, "runs": runs}


def _sizes() -> list[int]:
    wrong = [text for text in _SIZES.value if not (text.strip().isdecimal() and int(text) > 0)]
    if wrong or not _SIZES.value:
        raise UsageError(f"size {wrong[0] if wrong else ''!r} is no positive whole number; sizes are as 1500,3000")
    return [int(text) for text in _SIZES.value]


def _device_groups(soft_placement: bool) -> list[list[str]]:
    """Returns the groups of devices to time; each group computes one product together.

    Raises:
      UsageError: there is no such device.
    """
    import tensorflow as tf

    available = [placement_log.short(d.name) for kind in ("CPU", "GPU") for d in tf.config.list_logical_devices(kind)]
    asked = f"/{_DEVICE.value.lower().strip('/')}" if _DEVICE.value else ""
    if _SPLIT.value:
        kind = asked or ("/gpu" if any("gpu" in name for name in available) else "/cpu")
        found = [[name for name in available if name.startswith(kind)]]
    elif not asked:
        found = [[name] for name in available if name == "/cpu:0" or "gpu" in name]
    else:
        asked = asked if ":" in asked else f"{asked}:0"
        found = [[asked]] if asked in available or soft_placement else [[]]
    if not found[0]:
        raise UsageError(f"there is no {(asked or 'device').strip('/')} here; the devices are {', '.join(available)}")
    return found


def _random_matrix(size: int, seed: int):
    """Returns A, [size, size] in [0, 1), of --dtype."""
    import ml_dtypes
    import numpy as np

    dtype = ml_dtypes.bfloat16 if _DTYPE.value == "bfloat16" else np.dtype(_DTYPE.value)
    return np.random.default_rng(seed).random((size, size), np.float32).astype(dtype)


def _time_product(matrix, devices: list[str], *, compiled: bool) -> dict:
    """Times A by its transpose on one device, or spread over several by rows; returns a run of the report."""
    import numpy as np
    import tensorflow as tf

    size, count = len(matrix), len(devices)
    cuts = [size * i // count for i in range(count + 1)]

    @tf.function(jit_compile=compiled)
    def multiply(copies):
        """Takes a copy of A on each device; returns blocks of the product, and the sum of each device's blocks."""
        blocks, sums = [], []
        for device, copy, low, high in zip(devices, copies, cuts, cuts[1:], strict=False):
            with tf.device(device):
                whole = _FULL.value or count > 1
                device_blocks, total = (_block_product if whole else _symmetric_product)(
                    copy[low:high] if count > 1 else copy, copy
                )
                blocks += device_blocks
                sums.append(total)
        return blocks, sums

    def to_device():
        copies = []
        for device in devices:
            with tf.device("/cpu:0"):
                host = tf.constant(matrix)
            with tf.device(device):
                copies.append(tf.identity(host))
        for copy in copies:
            copy[0, 0].numpy()  # waits for the device
        return copies

    to, compute, back = [], [], []
    for _ in range(1 + _REPEATS.value):
        began = time.perf_counter()
        copies = to_device()
        there = time.perf_counter()
        rows, sums = multiply(copies)
        result = float(np.sum([total.numpy() for total in sums], dtype=np.float64))  # waits for the devices
        done = time.perf_counter()
        for part in rows:
            part.numpy()
        fetched = time.perf_counter()
        for times, seconds in ((to, there - began), (compute, done - there), (back, fetched - done)):
            times.append(seconds)
        del copies, rows
    _check_result(matrix, result)
    name = ", ".join(devices) if count > 1 else placement_log.short(sums[0].device)
    return _run_report(name, size, result, *(statistics.median(times[1:]) for times in (compute, to, back)))


def _block_product(rows, matrix):
    """Multiplies rows [m, n] by the transpose of a matrix [k, n]; returns one block [m, k], and its sum."""
    import tensorflow as tf

    block = tf.matmul(rows, matrix, transpose_b=True)
    return [block], tf.reduce_sum(block if _BYTES[_DTYPE.value] > 2 else tf.cast(block, tf.float32))


def _symmetric_product(matrix, _):
    """Multiplies a matrix by its transpose; returns the blocks on and below the diagonal, and the sum of all blocks."""
    rows = matrix.shape[0]
    if rows < _SMALLEST_CUT:
        return _block_product(matrix, matrix)
    upper, lower = matrix[: rows // 2], matrix[rows // 2 :]
    (first, a), (second, b) = _symmetric_product(upper, upper), _symmetric_product(lower, lower)
    corner, c = _block_product(lower, upper)
    return corner + first + second, 2 * c + a + b


def _time_numpy(matrix) -> dict:
    """Times NumPy, which computes half of a product of the same matrix; --full makes a copy to prevent that."""
    import numpy as np

    transpose, compute = np.ascontiguousarray(matrix.T) if _FULL.value else matrix.T, []
    for _ in range(1 + _REPEATS.value):
        began = time.perf_counter()
        result = float((matrix @ transpose).sum())
        compute.append(time.perf_counter() - began)
    return _run_report("numpy", len(matrix), result, statistics.median(compute[1:]), 0.0, 0.0)


def _run_report(device: str, size: int, result: float, compute: float, to_device: float, to_host: float) -> dict:
    return {
        "device": device,
        "size": size,
        "gflops": 2 * size**3 / compute / 1e9,
        "to_device_seconds": to_device,
        "compute_seconds": compute,
        "to_host_seconds": to_host,
        "result": result,
    }


def _check_result(matrix, result: float) -> None:
    """Raises ArithmeticError unless the sum is that of the squares of A's column sums, by NumPy in float64."""
    import numpy as np

    right = float(np.square(matrix.astype(np.float64).sum(0)).sum())
    if not abs(result - right) <= _TOLERANCE[_DTYPE.value] * right:
        raise ArithmeticError(f"the sum of the product is {result:g}, and NumPy says {right:g}: the device is wrong")


def _table_row(one: dict) -> tuple[str, ...]:
    times = (f"{1000 * one[f'{part}_seconds']:.2f}" for part in ("to_device", "compute", "to_host"))
    return one["device"], str(one["size"]), _DTYPE.value, f"{one['gflops']:.1f}", *times, f"{one['result']:.6g}"


def _draw_chart(path: str, runs: list[dict]) -> None:
    """Draws GFLOP/s and seconds of each device over the size."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    figure, (speed, times) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for device in dict.fromkeys(one["device"] for one in runs):
        mine = [one for one in runs if one["device"] == device]
        sizes = [one["size"] for one in mine]
        speed.plot(sizes, [one["gflops"] for one in mine], marker="o", label=device)
        for part, style in (("to_device", ":"), ("compute", "-"), ("to_host", "--")):
            seconds = [one[f"{part}_seconds"] for one in mine]
            if any(seconds):
                times.plot(sizes, seconds, style, marker=".", label=f"{device} {part.replace('_', ' ')}")
    speed.set(xlabel="size", ylabel="GFLOP/s", title=f"A Aᵀ, {_DTYPE.value}", ylim=(0, None))
    times.set(xlabel="size", ylabel="seconds", yscale="log")
    for axes in (speed, times):
        axes.legend(fontsize="small")
        axes.grid(alpha=0.3)
    with replacing(files.target(path)) as (part,):
        figure.savefig(part, format=path.rpartition(".")[2])
    plt.close(figure)


if __name__ == "__main__":
    main.run(train, prepare, has_strategy=False, positional=("device", "sizes"))
