"""NVIDIA's driver and libraries as this Python would load them, and the GPUs that the driver tells of.

Finds them without TensorFlow and without CUDA: libraries are asked for their version, which touches no device.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tf2dist.system import gpus

# By library: the wheel of `tensorflow[and-cuda]`, the file, and the function that tells the version.
_LIBRARIES = {
    "cuda": ("nvidia-cuda-runtime-cu12", "libcudart.so.12", "cudaRuntimeGetVersion"),
    "cudnn": ("nvidia-cudnn-cu12", "libcudnn.so.9", "cudnnGetVersion"),
    "nccl": ("nvidia-nccl-cu12", "libnccl.so.2", "ncclGetVersion"),
}
# What else TensorFlow loads before it uses any GPU (`TryDlopenCUDALibraries`): name, wheel and files.
_BESIDE = (
    ("cuBLAS", "nvidia-cublas-cu12", ("libcublas.so.12", "libcublasLt.so.12")),
    ("cuFFT", "nvidia-cufft-cu12", ("libcufft.so.11",)),
    ("cuSOLVER", "nvidia-cusolver-cu12", ("libcusolver.so.11",)),
    ("cuSPARSE", "nvidia-cusparse-cu12", ("libcusparse.so.12",)),
)
# By CUDA's major version; within one, drivers fit all (Linux): "CUDA Compatibility", "Minor Version Compatibility".
_OLDEST_DRIVER = {12: "525.60.13", 13: "580.65.06"}
_FIELDS = "index,uuid,memory.total,memory.free,driver_version,name"


@dataclass(frozen=True)
class Gpu:
    """A GPU that the driver tells of; memory in MiB. Drivers before 510 tell no compute capability: it is empty."""

    index: str
    uuid: str
    memory: int
    free: int
    compute_capability: str
    name: str


@dataclass(frozen=True)
class Driver:
    """What NVIDIA's driver says.

    Attributes:
      version: as "550.54.14"; empty if it does not answer.
      gpus: those it tells of.
      links: how pairs of GPUs are connected, as {"GPU0-GPU1": "NV18"}.
      peer_access: whether they read each other's memory, as {"GPU0-GPU1": "OK"}; else why not, in nvidia-smi's letters.
    """

    version: str = ""
    gpus: tuple[Gpu, ...] = ()
    links: dict[str, str] = field(default_factory=dict[str, str])
    peer_access: dict[str, str] = field(default_factory=dict[str, str])


def ask_driver() -> Driver:
    """Asks the driver through nvidia-smi."""
    rows = _rows()
    capabilities = _capabilities() if rows else {}
    found = tuple(
        Gpu(index, uuid, _number(total), _number(free), capabilities.get(index, ""), name)
        for index, uuid, total, free, _, name in rows
    )
    version = rows[0][4] if rows else ""
    if len(found) < 2:
        return Driver(version, found)
    links, peers = (_pairs(gpus.nvidia_smi("topo", *which) or "") for which in (["-m"], ["-p2p", "r"]))
    return Driver(version, found, links, peers)


def driver_too_old(version: str, cuda: str) -> str:
    """Returns what is wrong with a driver of this version for this version of CUDA, in a few words; empty if nothing.

    Nothing is said of a version that is not known.
    """
    oldest = _OLDEST_DRIVER.get(next(iter(version_numbers(cuda)), 0), "")
    if not version or version_numbers(version) >= version_numbers(oldest):
        return ""
    return f"the driver is {version}, and CUDA {cuda} needs {oldest} or later"


def wanted_versions() -> dict[str, str]:
    """Returns the oldest version of each library with which TensorFlow was tried, as its wheel says without an import.

    By the names of `library_versions`; empty if TensorFlow was installed in another way.
    """
    needs = _needs()
    found = {
        name: re.search(rf"^{wheel}\b.*?>=([\d.]+)", needs, re.MULTILINE) for name, (wheel, *_) in _LIBRARIES.items()
    }
    return {name: match[1] for name, match in found.items() if match}


def library_versions(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the version of "cuda" (its runtime), "cudnn" and "nccl"; empty for one that is not there.

    TensorFlow's libraries look in `LD_LIBRARY_PATH`, then beside TensorFlow, where the wheels of `tensorflow[and-cuda]`
    put theirs, and then where the system's loader does.
    """
    return {name: _version(environ, *library) for name, library in _LIBRARIES.items()}


def libraries_missing(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Returns the names of CUDA's other libraries without which TensorFlow uses no GPU, and which are not there.

    Without a word from TensorFlow. None is named if TensorFlow was installed in another way than by its wheel.
    """
    needs = _needs()
    return [
        name
        for name, wheel, files in _BESIDE
        if wheel in needs and not all(_is_there(environ, wheel, file) for file in files)
    ]


def fits(name: str, wanted: str, found: str) -> bool:
    """Is a library that is `found` one for which TensorFlow was built?

    CUDA's runtime wants the same major version, cuDNN and NCCL also no older minor one (cuDNN: `cuda_dnn.cc`, "needs to
    have matching major version and equal or higher minor version").
    """
    parts = 1 if name == "cuda" else 2
    ours, theirs = version_numbers(wanted)[:parts], version_numbers(found)[:parts]
    return is_loaded(wanted, found) and ours <= theirs


def is_loaded(wanted: str, found: str) -> bool:
    """Does TensorFlow load the library that is `found`? It asks for a file with the major version in its name.

    Of an older minor version cuDNN is refused when it is first used, long after GPUs were found.
    """
    return version_numbers(wanted)[:1] == version_numbers(found)[:1]


def why_unusable() -> str:
    """Returns why TensorFlow, which is not imported for it, can load no CUDA here, in a few words; empty if it can."""
    wanted, found = wanted_versions(), library_versions()
    for name, label in (("cuda", "CUDA's runtime"), ("cudnn", "cuDNN")):
        if name not in wanted:
            continue  # TensorFlow was installed in another way, which says nothing
        version = _minor(wanted[name])
        if not found[name]:
            return f"{label} {version} is not found"
        if not is_loaded(wanted[name], found[name]):
            return f"{label} {version} is wanted, and {found[name]} is found"
    if missing := libraries_missing():
        return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not found"
    if "cuda" in wanted and (rows := _rows()):
        return driver_too_old(rows[0][4], _minor(wanted["cuda"]))
    return ""


def what_will_fail(*, with_nccl: bool = False) -> str:
    """Returns what will end with an error on GPUs that TensorFlow can use, in a few words; empty if nothing will.

    cuDNN is asked for its version by the first operation that needs it: a convolution, and perhaps what XLA compiles.

    Args:
      with_nccl: whether NCCL adds up gradients, which TensorFlow loads when it is first used.
    """
    wanted, found, failing = wanted_versions(), library_versions(), list[str]()
    if "cudnn" in wanted and found["cudnn"] and not fits("cudnn", wanted["cudnn"], found["cudnn"]):
        what = _wanted_and_found("cuDNN", wanted["cudnn"], found["cudnn"])
        failing.append(f"{what}: convolutions will fail, and so may XLA")
    if with_nccl and "nccl" in wanted and not fits("nccl", wanted["nccl"], found["nccl"]):
        what = _wanted_and_found("NCCL", wanted["nccl"], found["nccl"])
        may = is_loaded(wanted["nccl"], found["nccl"])  # a file of another major version has another name
        failing.append(f"{what}: GPUs {'may' if may else 'will'} fail to add up gradients")
    return "; ".join(failing)


def cards_in_slots() -> list[str]:
    """Returns the PCI addresses of NVIDIA's graphics cards in this machine, with a driver or without."""
    found: list[str] = []
    for directory in glob.glob("/sys/bus/pci/devices/*"):
        with contextlib.suppress(OSError), open(f"{directory}/vendor") as vendor, open(f"{directory}/class") as kind:
            if vendor.read().strip() == "0x10de" and kind.read().startswith("0x03"):
                found.append(directory.rpartition("/")[2])
    return sorted(found)


def version_numbers(text: str) -> tuple[int, ...]:
    """Returns "12.5.1" as (12, 5, 1)."""
    return tuple(int(number) for number in re.findall(r"\d+", text))


def _minor(version: str) -> str:
    """Returns "9.3.0.75" as "9.3"."""
    return ".".join(version.split(".")[:2])


def _wanted_and_found(label: str, wanted: str, found: str) -> str:
    return f"{label} {_minor(wanted)} is {f'wanted, and {found} is found' if found else 'not found'}"


def _needs() -> str:
    """What TensorFlow's wheel asks for, a line each; empty if it was installed in another way."""
    try:
        return "\n".join(importlib.metadata.requires("tensorflow") or ())
    except importlib.metadata.PackageNotFoundError:
        return ""


def _rows() -> list[list[str]]:
    """What nvidia-smi says of each GPU, in the order of _FIELDS."""
    said = gpus.nvidia_smi(f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits") or ""
    return [[cell.strip() for cell in line.split(",", 5)] for line in said.splitlines() if line.count(",") >= 5]


def _capabilities() -> dict[str, str]:
    """The compute capability of each GPU by its index; asked for alone, because drivers before 510 refuse all then."""
    said = gpus.nvidia_smi("--query-gpu=index,compute_cap", "--format=csv,noheader,nounits") or ""
    return dict(re.findall(r"^(\d+), *([\d.]+)$", said, re.MULTILINE))


def _pairs(table: str) -> dict[str, str]:
    """What a table of `nvidia-smi topo` says of each pair of GPUs; not of network cards."""
    rows = [
        re.split(r"\s+", re.sub("\x1b\\[[0-9;]*m", "", line).strip()) for line in table.splitlines() if line.strip()
    ]
    names = [name for name in (rows[0] if rows else []) if re.fullmatch(r"GPU\d+", name)]
    found: dict[str, str] = {}
    for row in rows[1:]:
        for other, link in zip(names, row[1:], strict=False):
            if row[0] in names and names.index(row[0]) < names.index(other):
                found[f"{row[0]}-{other}"] = link
    return found


def _version(environ: Mapping[str, str], wheel: str, file: str, function: str) -> str:
    """The version of the library that TensorFlow would load; empty if there is none."""
    if path := _in_search_path(environ, file):
        return _told(path, function)
    return _wheel_version(wheel) or _told(_beside_tensorflow(file) or file, function)


def _is_there(environ: Mapping[str, str], wheel: str, file: str) -> bool:
    """Would TensorFlow find this library?"""
    if _in_search_path(environ, file) or _wheel_version(wheel) or _beside_tensorflow(file):
        return True
    with contextlib.suppress(OSError):
        return bool(ctypes.CDLL(file))
    return False


def _in_search_path(environ: Mapping[str, str], file: str) -> str:
    """Where `LD_LIBRARY_PATH` has this file; empty if nowhere."""
    directories = filter(None, environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))
    return next((path for path in (os.path.join(d, file) for d in directories) if os.path.exists(path)), "")


def _wheel_version(wheel: str) -> str:
    """The version of a wheel that is installed; empty if it is not."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(wheel)
    return ""


def _beside_tensorflow(file: str) -> str:
    """Where this file is beside TensorFlow, as its wheels put it there; empty if it is not."""
    package = importlib.util.find_spec("tensorflow")
    for place in (package and package.submodule_search_locations) or ():
        for path in glob.glob(os.path.join(glob.escape(os.path.dirname(place)), "nvidia", "*", "lib", file)):
            return path
    return ""


def _told(file: str, function: str) -> str:
    """The version that a library itself tells; empty if it cannot be loaded."""
    try:
        ask = getattr(ctypes.CDLL(file), function)
    except (OSError, AttributeError):
        return ""
    if function == "cudnnGetVersion":
        ask.restype = ctypes.c_size_t
        number = int(ask())  # 90300 is 9.3.0
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    number = ctypes.c_int()
    if ask(ctypes.byref(number)):
        return ""
    if function == "ncclGetVersion":  # 22707 is 2.27.7
        return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"
    return f"{number.value // 1000}.{number.value % 1000 // 10}"  # 12050 is 12.5


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
