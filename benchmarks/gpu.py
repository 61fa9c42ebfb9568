"""`tf2dist.fit` on one GPU beside Keras's own fit on TensorFlow, JAX and torch; Life and matmul beside CuPy.

Like is compared with like: what XLA compiles with what it compiles (JAX always does), and what it does not with what it
does not (torch). Left to itself Keras would have XLA compile for a GPU, but not inside of a tf.distribute strategy. The
products of matrices are compared with TF32 on both sides, and without it on both.

Ends with a row for the table in docs/gpu.md. With TF2DIST_TESTS_GPU=cpu everything is tiny and runs on the CPU, and the
figures say no more than that it runs.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

from benchmarks.rounds import in_turn, table
from tf2dist.errors import UsageError
from tf2dist.system import cuda_libraries, gpus

_TINY = os.environ.get("TF2DIST_TESTS_GPU") == "cpu"
_OURS = "tf2dist.fit, steps chosen"
_KERAS = "keras fit on tensorflow, 1 step"
_WAYS = {"XLA": True, "no XLA": False}  # jit_compile
_PRECISIONS = ("TF32", "float32", "bfloat16")  # of products; CuPy has no bfloat16
_PER_EXECUTION = 50  # of the contestants whose steps are fixed
_LIFE_SIDE, _LIFE_GENERATIONS = (128, 20) if _TINY else (16384, 2000)
_PRODUCT = 128 if _TINY else 8192  # rows of the matrix
_WORK = 1 if _TINY else 30  # operations of the input pipeline on each batch


@dataclass(frozen=True)
class _Peak:
    """What a card can do at most, from NVIDIA's data sheets, without sparsity.

    Attributes:
      float32: TFLOP/s without tensor cores.
      tf32: of dense products by tensor cores; None for a card without TF32.
      bfloat16: the same; None for a card without it.
      memory: GB/s.
      lanes: of float32 in each multiprocessor, 64 or 128.
    """

    float32: float
    tf32: float | None
    bfloat16: float | None
    memory: float
    lanes: int = 128

    @property
    def bits(self) -> float:
        """10^12 operations a second on words of 32 bits.

        Each multiprocessor makes 64 in a cycle (CUDA C++ Programming Guide, "Arithmetic Instructions"), and two
        operations of float32, a multiplication and an addition, in each lane.
        """
        return self.float32 * 64 / (2 * self.lanes)


# By words of the names that drivers give; the first one fits, so what has more words comes first.
_PEAKS = {
    "H200 NVL": _Peak(60.0, 417.5, 835.5, 4800), "H200": _Peak(66.9, 494.7, 989.4, 4800),
    "H100 PCIE": _Peak(51.2, 378.0, 756.0, 2000), "H100 NVL": _Peak(60.0, 417.5, 835.5, 3938),
    "H100 HBM3": _Peak(66.9, 494.7, 989.4, 3350),
    "A100 80GB PCIE": _Peak(19.5, 156.0, 312.0, 1935, 64), "A100 80GB": _Peak(19.5, 156.0, 312.0, 2039, 64),
    "A100 40GB": _Peak(19.5, 156.0, 312.0, 1555, 64),
    "L40S": _Peak(91.6, 183.0, 362.0, 864), "L4": _Peak(30.3, 60.0, 121.0, 300), "A10": _Peak(31.2, 62.5, 125.0, 600),
    "V100": _Peak(15.7, None, None, 900, 64), "T4": _Peak(8.1, None, None, 320, 64),
    "RTX 4090": _Peak(82.6, 82.6, 165.2, 1008), "RTX 3090": _Peak(35.6, 35.6, 71.0, 936),
}  # fmt: skip
# Programs that end with status 0 if the package finds a GPU.
_FINDS_GPU = {
    "tensorflow": "import tensorflow as tf; sys.exit(not tf.config.list_physical_devices('GPU'))",
    "jax": "import jax; sys.exit(jax.default_backend() != 'gpu')",
    "torch": "import torch; sys.exit(not torch.cuda.is_available())",
    "cupy": "import cupy; sys.exit(not cupy.cuda.runtime.getDeviceCount())",
}
_GATES = ("BitwiseAnd", "BitwiseOr", "BitwiseXor", "Invert", "LeftShift", "RightShift")
_WORD_BYTES = 8  # of 64 cells of the packed board


@dataclass(frozen=True)
class _Case:
    """A model and how long it is trained in one measurement."""

    batch: int
    steps: int
    fixed: int = _PER_EXECUTION

    @property
    def rows(self) -> int:
        """Examples of a pass."""
        return self.batch * self.steps


_CASES = (
    {"mlp": _Case(8, 6, 3), "resnet": _Case(2, 2, 2), "transformer": _Case(2, 2, 2)}
    if _TINY
    else {"mlp": _Case(100, 5000), "resnet": _Case(128, 100), "transformer": _Case(32, 100)}
)


def run(rounds: int) -> dict:
    """Measures; returns the figures, the ratios and the machine.

    Raises:
      UsageError: there is no GPU, or TF2DIST_TESTS_GPU says something else than cpu or gpu.
    """
    if (asked := os.environ.get("TF2DIST_TESTS_GPU", "gpu")) not in ("cpu", "gpu"):
        raise UsageError(f"TF2DIST_TESTS_GPU={asked} must be cpu or gpu")
    if not _TINY and not gpus.visible():
        raise UsageError("there is no GPU here; TF2DIST_TESTS_GPU=cpu tries the programs on the CPU")
    if _TINY:
        os.environ[gpus.VISIBLE] = gpus.NONE
    # Each contestant has a process, and all of them share the card.
    os.environ |= {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    os.environ.setdefault(gpus.ORDER, gpus.AS_NVIDIA_SMI)  # whose first card is the one that is named
    if not _TINY and not _finds_gpu("tensorflow"):
        raise UsageError("nvidia-smi shows a GPU, and TensorFlow finds none: python -m tf2dist.doctor says why")
    for name in ("jax", "torch", "cupy"):
        if not importlib.util.find_spec(name):
            print(f"{name}: not installed, and left out")
        elif not _can_compete(name):
            print(f"{name}: finds no GPU, and is left out")
    report: dict = {"machine": _machine(), "fit": {}}
    for name, case in _CASES.items():
        report["fit"][name] = {}
        for way, compiled in _WAYS.items():
            figures = in_turn(_fits(name, case, compiled), rounds)
            ratios = table(f"fit: {name}, batch {case.batch}, {way}", "examples/s", figures, _OURS)
            report["fit"][name][way] = {"examples_per_second": figures, "chosen_over": ratios}
    report["input"] = _overlap(rounds)
    report["life"] = _against_cupy(rounds, "Game of Life", "cells/s, in millions", "packed", _life, _life_on_cupy)
    report["matmul"] = {}
    peak = _peak(report["machine"]["gpu"])
    for precision in _PRECISIONS:
        ours, theirs = (functools.partial(product, precision) for product in (_product, _product_on_cupy))
        theirs = None if precision == "bfloat16" else theirs
        found = _against_cupy(rounds, f"A times its transpose, {precision}", "GFLOP/s", "matmul", ours, theirs)
        report["matmul"][precision] = found
        if peak and (most := _most(peak, precision)):
            found["of_peak"] = statistics.median(found["figures"]["matmul"]) / most / 1000
            print(f"  matmul reaches {100 * found['of_peak']:.0f} % of the card's {most:g} TFLOP/s")
    if peak:
        gates = _gates_of_life()
        bounds = report["life"]["bounds"] = _bounds_of_life(peak, gates)
        best = statistics.median(report["life"]["figures"]["packed"])
        for name, bound in bounds.items():
            print(f"Life reaches {100 * best / bound:.0f} % of the {bound:,.0f} million cells/s that its {name} allows")
        print(
            f"  (by computing: {gates} operations on a word of 64 cells, each two of 32 bits, unless LOP3 makes two in"
        )
        print("  one; by memory: a word read and written once a generation, unless the board fits the card's cache)")
    print("\nthe row of this machine in docs/gpu.md:\n" + row(report))
    return report


@functools.cache
def _can_compete(package: str) -> bool:
    """Is a package installed, and does it find the GPU?"""
    return importlib.util.find_spec(package) is not None and (_TINY or _finds_gpu(package))


def _finds_gpu(package: str) -> bool:
    """Does a package find a GPU? It is asked in a process of its own, which leaves this one without CUDA."""
    asked = subprocess.run(
        [sys.executable, "-c", f"import sys\n{_FINDS_GPU[package]}"], check=False, capture_output=True
    )
    return asked.returncode == 0


def row(report: dict) -> str:
    """Returns the row of docs/gpu.md's table for a report of `run`."""
    machine, fits = report["machine"], report["fit"]
    cells = [machine["gpu"], machine["driver"], machine["tensorflow"]]
    for name in _CASES:
        ways = []
        for way, found in fits[name].items():
            ratios = found["chosen_over"].items()
            others = [f"{label.split(' on ')[1]} {ratio:.2f}" for label, ratio in ratios if " on " in label]
            ways.append(f"{way}: {', '.join(others)}")
        cells.append("; ".join(ways))
    cells.append(f"{100 * report['input']['overlap']:.0f} %")
    cells.append(f"{statistics.median(report['life']['figures']['packed']):,.0f}")
    products = (statistics.median(report["matmul"][name]["figures"]["matmul"]) for name in _PRECISIONS)
    cells.append(", ".join(f"{name} {speed:,.0f}" for name, speed in zip(_PRECISIONS, products, strict=True)))
    return f"| {' | '.join(cells)} |"


def _machine() -> dict:
    driver, names = cuda_libraries.ask_driver(), gpus.visible()
    used = [gpu.name for gpu in driver.gpus if names and (gpu.index == names[0] or gpu.uuid.startswith(names[0]))]
    return {
        "gpu": used[0] if used else names[0] if names else "no GPU",  # a part of a card has a UUID of its own
        "gpus": len(driver.gpus),
        "driver": driver.version or "none",
        "tensorflow": importlib.metadata.version("tensorflow"),
        "libraries": cuda_libraries.library_versions(),
        "cores": os.cpu_count(),
    }


def _peak(name: str) -> _Peak | None:
    words = set(name.upper().replace("-", " ").split())
    if "MIG" in words:  # a part of the card
        return None
    return next((peak for card, peak in _PEAKS.items() if set(card.split()) <= words), None)


def _most(peak: _Peak, precision: str) -> float | None:
    """TFLOP/s of products in this precision, one of _PRECISIONS; None if a card's data sheet has none.

    A card without TF32 multiplies in float32 instead.
    """
    return {"TF32": peak.tf32 or peak.float32, "float32": peak.float32, "bfloat16": peak.bfloat16}[precision]


def _bounds_of_life(peak: _Peak, gates: int) -> dict[str, float]:
    """How many million cells a second the card's computing, and its memory, allow, with so many gates a word."""
    computing = peak.bits * 1e6 / (2 * gates) * 64
    return {"computing": computing, "memory": peak.memory * 1e3 / (2 * _WORD_BYTES) * 64}


def _gates_of_life() -> int:
    """How many bitwise operations a generation makes of each word of 64 cells."""
    from tf2dist.runtime import tensorflow_import

    tf = tensorflow_import.import_tensorflow()
    from trainers.life import rule_diagram
    from trainers.life.engines import packed_strip
    from trainers.life.rule import LIFE

    row, words = 4, tf.TensorSpec([64], tf.uint64)
    step = tf.function(lambda strip: packed_strip.next_generation(strip, row, rule_diagram.compile_rule(LIFE)))
    operations = step.get_concrete_function(words).graph.get_operations()
    return sum(operation.type in _GATES for operation in operations)


def _fits(name: str, case: _Case, compiled: bool) -> dict:
    """The contestants that train a model, by name: those that XLA compiles, or those that it does not."""
    fit = functools.partial(_fit, name, case, compiled)
    contestants = {_OURS: functools.partial(fit, None, "tf2dist")}
    if not _TINY or name == "mlp":
        contestants[_KERAS] = functools.partial(fit, 1, "tensorflow")
        fixed = case.fixed
        contestants[f"tf2dist.fit, {fixed} steps"] = functools.partial(fit, fixed, "tf2dist")
        contestants[f"keras fit on tensorflow, {fixed} steps"] = functools.partial(fit, fixed, "tensorflow")
    backend = "jax" if compiled else "torch"  # JAX without XLA computes one operation at a time; torch has another
    if _can_compete(backend):
        contestants[f"keras fit on {backend}, 1 step"] = functools.partial(fit, 1, backend)
    return contestants


def _fit(name: str, case: _Case, compiled: bool, per_execution: int | None, backend: str):
    """Makes model and data in this process; returns the function that measures a pass."""
    os.environ["KERAS_BACKEND"] = "tensorflow" if backend == "tf2dist" else backend
    if backend in ("tf2dist", "tensorflow"):
        from tf2dist.runtime import tensorflow_import

        tensorflow_import.import_tensorflow()
    import keras

    keras.utils.set_random_seed(1)
    make, x, y = _MODELS[name](case.rows)
    if backend == "tf2dist":
        import tf2dist

        with tf2dist.make_strategy("one").scope():
            model = make()
            model.compile("adam", _loss(), jit_compile=compiled)
        fit = functools.partial(tf2dist.fit, model, steps_per_execution=per_execution)
    else:
        model = make()
        model.compile("adam", _loss(), steps_per_execution=per_execution, jit_compile=compiled)
        fit = model.fit
    return _rate(functools.partial(fit, x, y, batch_size=case.batch, verbose=0), case.rows)


def _rate(function, amount: float):
    def measure() -> float:
        began = time.perf_counter()
        function()
        return amount / (time.perf_counter() - began)

    return measure


def _loss():
    import keras

    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _mlp(rows: int):
    import keras

    layers = keras.layers
    x, y = _random([rows, 784], rows)
    return lambda: keras.Sequential([keras.Input((784,)), layers.Dense(100, "relu"), layers.Dense(10)]), x, y


def _resnet(rows: int):
    """ResNet of 3 stages for 32x32 images: 20 layers of weights, or 5 for a trial."""
    import keras

    layers, blocks, side = keras.layers, 1 if _TINY else 3, 8 if _TINY else 32
    x, y = _random([rows, side, side, 3], rows)

    def block(z, filters, stride):
        shortcut = z if stride == 1 else layers.Conv2D(filters, 1, strides=stride, use_bias=False)(z)
        for number, step in ((0, stride), (1, 1)):
            z = layers.Conv2D(filters, 3, strides=step, padding="same", use_bias=False)(z)
            z = layers.BatchNormalization()(z)
            z = layers.Activation("relu")(z) if number == 0 else z
        return layers.Activation("relu")(layers.Add()([z, shortcut]))

    def make():
        inputs = keras.Input((side, side, 3))
        z = layers.Conv2D(16, 3, padding="same", use_bias=False)(inputs)
        for filters in (16,) if _TINY else (16, 32, 64):
            for number in range(blocks):
                z = block(z, filters, 2 if number == 0 and filters > 16 else 1)
        return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(z)))

    return make, x, y


def _transformer(rows: int):
    """An encoder over words that predicts the next one: 6 layers of width 512 on 256 words, less for a trial."""
    import keras
    import numpy as np

    layers = keras.layers
    depth, width, length, words = (1, 16, 8, 50) if _TINY else (6, 512, 256, 10_000)
    random = np.random.default_rng(0)
    x = random.integers(0, words, [rows, length], np.int32)

    def make():
        inputs = keras.Input((length,), dtype="int32")
        z = layers.Embedding(words, width)(inputs)
        for _ in range(depth):
            attended = layers.MultiHeadAttention(max(1, width // 64), min(width, 64))(z, z, use_causal_mask=True)
            z = layers.LayerNormalization()(layers.Add()([z, attended]))
            inner = layers.Dense(width)(layers.Dense(4 * width, "gelu")(z))
            z = layers.LayerNormalization()(layers.Add()([z, inner]))
        return keras.Model(inputs, layers.Dense(words)(z))

    return make, x, np.roll(x, -1, axis=1)


_MODELS = {"mlp": _mlp, "resnet": _resnet, "transformer": _transformer}


def _random(shape, rows: int):
    import numpy as np

    random = np.random.default_rng(0)
    return random.normal(size=shape).astype(np.float32), random.integers(0, 10, rows)


def _overlap(rounds: int) -> dict:
    """How much of the time that batches take to make is hidden behind the steps, or of theirs behind batches."""
    names = {"batches alone": "batches", "steps alone": "steps", "both": "both"}
    figures = in_turn({name: functools.partial(_input, part) for name, part in names.items()}, rounds)
    table("input: batches that take time to make", "examples/s", figures, "both")
    seconds = {name: 1 / statistics.median(rates) for name, rates in figures.items()}
    both, batches, steps = (seconds[name] for name in ("both", "batches alone", "steps alone"))
    overlap = max(0.0, min(1.0, (batches + steps - both) / min(batches, steps)))
    print(f"  of the shorter of the two {100 * overlap:.0f} % is hidden behind the longer")
    return {"examples_per_second": figures, "overlap": overlap}


def _input(part: str):
    """Measures making batches, training on batches that are there, or both."""
    from tf2dist.runtime import tensorflow_import

    tf = tensorflow_import.import_tensorflow()
    import tf2dist

    case = _CASES["resnet"]
    make, x, y = _resnet(case.rows)

    def costly(images, labels):
        for _ in range(_WORK):
            images = tf.sin(images) + images
        return images, labels

    batches = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(case.batch).take(case.steps)
    if part != "steps":
        batches = batches.map(costly, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    if part == "batches":

        def read() -> None:
            for batch in batches:
                del batch

        return _rate(read, case.rows)
    with tf2dist.make_strategy("one").scope():
        model = make()
        model.compile("adam", _loss(), jit_compile=False)
    return _rate(lambda: tf2dist.fit(model, batches, verbose=0), case.rows)


def _against_cupy(rounds: int, title: str, unit: str, name: str, ours, theirs) -> dict:
    contestants = {name: ours}
    if theirs and _can_compete("cupy"):
        contestants["CuPy"] = theirs
    figures = in_turn(contestants, rounds)
    return {"figures": figures, "ours_over": table(title, unit, figures, name)}


def _life():
    from benchmarks import life

    return life.engine_contestant("packed", _LIFE_SIDE, _LIFE_GENERATIONS)


def _life_on_cupy():
    """Neighbours added up with rolled arrays of a byte a cell."""
    import cupy  # pyright: ignore[reportMissingImports]

    board = (cupy.random.random((_LIFE_SIDE, _LIFE_SIDE)) < 0.5).astype(cupy.uint8)
    generations = max(1, _LIFE_GENERATIONS // 100)

    @cupy.fuse()
    def rule(cell, around):
        return ((around == 3) | ((cell == 1) & (around == 2))).astype(cupy.uint8)

    def measure() -> float:
        began, now = time.perf_counter(), board
        for _ in range(generations):
            rows = now + cupy.roll(now, 1, 0) + cupy.roll(now, -1, 0)
            now = rule(now, rows + cupy.roll(rows, 1, 1) + cupy.roll(rows, -1, 1) - now)
        cupy.cuda.Device().synchronize()
        return _LIFE_SIDE**2 * generations / (time.perf_counter() - began) / 1e6

    return measure


def _set_precision(precision: str) -> None:
    """Has TensorFlow and CuPy multiply float32 in TF32, or not; before either is loaded.

    TensorFlow takes TF32 by itself, CuPy if it is asked to; NVIDIA's libraries leave it out whoever asks.
    """
    os.environ["CUPY_TF32"] = "1" if precision == "TF32" else "0"
    os.environ.pop("NVIDIA_TF32_OVERRIDE", None)
    if precision != "TF32":
        os.environ["NVIDIA_TF32_OVERRIDE"] = "0"


def _product(precision: str):
    """The trainer's own program, which computes all of the product."""
    _set_precision(precision)

    def measure() -> float:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "report.json")
            device = "cpu" if _TINY else "gpu"
            dtype = "bfloat16" if precision == "bfloat16" else "float32"
            arguments = [device, str(_PRODUCT), f"--dtype={dtype}", "--full", "--repeats=5", f"--report={path}"]
            subprocess.run([sys.executable, "-m", "trainers.matmul", *arguments], check=True, stdout=subprocess.DEVNULL)
            with open(path) as file:
                return json.load(file)["runs"][0]["gflops"]

    return measure


def _product_on_cupy(precision: str):
    _set_precision(precision)
    import cupy  # pyright: ignore[reportMissingImports]

    matrix = cupy.random.random((_PRODUCT, _PRODUCT), dtype=cupy.float32)

    def measure() -> float:
        began = time.perf_counter()
        (matrix @ matrix.T).sum()
        cupy.cuda.Device().synchronize()
        return 2 * _PRODUCT**3 / (time.perf_counter() - began) / 1e9

    return measure
