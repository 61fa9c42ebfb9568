"""The GPUs of this machine, found without TensorFlow and without CUDA, and which of them a process may use.

CUDA numbers them from 0; a process sees those in its `CUDA_VISIBLE_DEVICES`, or all. CUDA leaves out what a list names
wrongly, and all that comes after it, without a word; here that is an error.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from tf2dist.errors import UsageError
from tf2dist.system.whole_numbers import whole_number

VISIBLE = "CUDA_VISIBLE_DEVICES"
NONE = "-1"  # as VISIBLE: no GPU
ORDER, AS_NVIDIA_SMI = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"  # or CUDA's own numbers begin with the fastest GPU
_PATIENCE = 20.0  # seconds for nvidia-smi, which may have to load the driver


@dataclass(frozen=True)
class Memory:
    """The memory of a GPU, in MiB: all of it, and what no process has taken."""

    total: int
    free: int


def visible(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Returns the GPUs that a process with this environment may use, as VISIBLE names them; none without GPUs.

    Raises:
      UsageError: VISIBLE names one that is not there, or one twice.
    """
    text = environ.get(VISIBLE)
    if text is None:
        return tuple(map(str, range(len(identifiers()))))
    names = [name.strip() for name in text.split(",")]
    there = identifiers()
    # A number below 0 ends CUDA's list. A platform may say "NoDevFiles", and an image that is used everywhere "0".
    names = names[: next((place for place, name in enumerate(names) if re.fullmatch(r"-\d+", name)), None)]
    if names in ([], [""], ["NoDevFiles"]) or not there:
        return ()
    wrong = [name for name in names if not _is_one_of(name, there)]
    if wrong:
        found = f"{len(there)}, 0 to {len(there) - 1}" if there[1:] else "0"
        raise UsageError(f"{VISIBLE}={text} names GPU {wrong[0]!r}, which this machine lacks: it has {found}")
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"{VISIBLE}={text} names GPU {twice[0]!r} twice, and CUDA would show none")
    return tuple(names)


def asked_for(environ: Mapping[str, str]) -> str:
    """Returns the value of VISIBLE if it names a GPU, there or not; else an empty string."""
    text = environ.get(VISIBLE, "")
    return text if _may_name(text.split(",")[0].strip()) else ""


def identifiers() -> tuple[str, ...]:
    """Returns the UUID of each GPU of this machine, in CUDA's order of numbers; "" where it is not known."""
    said = nvidia_smi("--list-gpus")
    if said is not None:
        return tuple(re.findall(r"^GPU \d+:.*\(UUID: ([^)]*)\)", said, re.MULTILINE))
    return ("",) * len(glob.glob("/proc/driver/nvidia/gpus/*") or glob.glob("/dev/nvidia[0-9]*"))


def memory(names: tuple[str, ...], environ: Mapping[str, str] = os.environ) -> dict[str, Memory]:
    """Returns the memory of these GPUs by name, as in VISIBLE; without those of which nvidia-smi does not tell it.

    It counts them in its own order: where they differ, and CUDA counts in another one, a number says nothing.
    """
    said = nvidia_smi("--query-gpu=index,uuid,memory.total,memory.free", "--format=csv,noheader,nounits") or ""
    rows = re.findall(r"^(\d+), *([^,]+), *(\d{1,9}), *(\d{1,9})$", said, re.MULTILINE)
    numbered = (
        len({total for _, _, total, _ in rows}) < 2 or VISIBLE not in environ or environ.get(ORDER) == AS_NVIDIA_SMI
    )
    found: dict[str, Memory] = {}
    for index, uuid, total, free in rows:
        it = Memory(int(total), int(free))
        found |= {n: it for n in names if (n == index if n.isdecimal() else n and uuid.startswith(n))}
    return found if numbered else {name: it for name, it in found.items() if not name.isdecimal()}


def driver_is_open() -> bool:
    """Returns whether this process has initialized CUDA, or anything else that holds NVIDIA's driver open.

    Under Windows (WSL 2) the driver is that of all graphics cards, /dev/dxg.
    """
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # one is that of the listing
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith(("/dev/nvidia", "/dev/dxg")):
                return True
    return False


def nvidia_smi(*arguments: str) -> str | None:
    """Returns what `nvidia-smi` prints with these arguments; None if there is none, or it fails."""
    if not (program := shutil.which("nvidia-smi")):
        return None
    try:
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, errors="replace", timeout=_PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout


def _may_name(name: str) -> bool:
    return name.isdecimal() or name.startswith(("GPU-", "MIG-"))


def _is_one_of(name: str, there: tuple[str, ...]) -> bool:
    """Is this the number of one of these GPUs, or the UUID of one or of a part of one (MIG), or its beginning?"""
    if name.isdecimal():
        number = whole_number(name)
        return number is not None and number < len(there)
    if name.startswith("GPU-"):
        return "" in there or any(uuid.startswith(name) for uuid in there)
    return name.startswith("MIG-") and bool(there)
