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
_OF_WSL = "/usr/lib/wsl/lib/nvidia-smi"  # not on the path of every shell there
_PATIENCE = 20.0  # seconds for nvidia-smi, which may have to load the driver
_hanging: set[str] = set()  # programs that have not answered in that time, and are not asked again by this process


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
    if "" in names:
        raise UsageError(f"{VISIBLE}={text} has an empty name in it, a comma too many, where CUDA would end the list")
    cards = [_card(name, there) for name in names]
    if None in cards:
        found = f"{len(there)}, numbers 0 to {len(there) - 1}" if there[1:] else "1, number 0"
        wrong = names[cards.index(None)]
        several = wrong.startswith("GPU-") and [uuid for uuid in there if uuid.startswith(wrong)]
        why = f"which several begin with: {', '.join(several)}" if several else "which this machine lacks: it has"
        raise UsageError(f"{VISIBLE}={text} names GPU {wrong!r}, {why}{'' if several else ' ' + found}")
    if twice := [name for name, card in zip(names, cards, strict=True) if cards.count(card) > 1]:
        as_other = f" and {twice[1]!r}, which is the same," if twice[1] != twice[0] else " twice,"
        raise UsageError(f"{VISIBLE}={text} names GPU {twice[0]!r}{as_other} and CUDA would show none")
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
    as_nvidia_smi = environ.get(ORDER) == AS_NVIDIA_SMI or (VISIBLE not in environ and ORDER not in environ)
    numbered = as_nvidia_smi or len({total for _, _, total, _ in rows}) < 2
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
    return _ask(*arguments)[0]


def driver_failure() -> str:
    """Returns why nvidia-smi, which is there, tells of no GPU, in a few words; empty if it tells, or finds none."""
    said, why = _ask("--list-gpus")
    return why if said is None else ""


def _ask(*arguments: str) -> tuple[str | None, str]:
    """What nvidia-smi prints, or None; and then why, if it is there."""
    program = shutil.which("nvidia-smi") or (_OF_WSL if os.access(_OF_WSL, os.X_OK) else None)
    if program is None:
        return None, ""
    if program in _hanging:
        return None, f"nvidia-smi does not answer within {_PATIENCE:g} s"
    try:
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, errors="replace", timeout=_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        _hanging.add(program)
        return None, f"nvidia-smi does not answer within {_PATIENCE:g} s"
    except OSError as error:
        return None, f"nvidia-smi cannot be run: {(error.strerror or str(error)).lower()}"
    if not done.returncode:
        return done.stdout, ""
    said = (done.stdout.strip() or done.stderr.strip() or f"status {done.returncode}").splitlines()[0]
    return None, "" if "no devices were found" in said.lower() else f"nvidia-smi fails: {said[:200]}"


def _may_name(name: str) -> bool:
    return name.isdecimal() or name.startswith(("GPU-", "MIG-"))


def _card(name: str, there: tuple[str, ...]) -> str | None:
    """The GPU, or part of one (MIG), that a number or the beginning of a UUID means; None if that is not exactly one.

    By its number, or as it is named where UUIDs are not known.
    """
    number = whole_number(name)
    if number is not None:
        return str(number) if number < len(there) else None
    if not name.startswith(("GPU-", "MIG-")) or not there:
        return None
    if "" in there:
        return name
    if name.startswith("GPU-"):
        fitting = [str(place) for place, uuid in enumerate(there) if uuid.startswith(name)]
    elif old := re.fullmatch(r"MIG-(GPU-[0-9a-fA-F-]+)/\d+/\d+", name):  # drivers before 470
        fitting = [name for uuid in there if uuid.startswith(old[1])]
    else:
        fitting = [uuid for uuid in parts_of_gpus() if uuid.startswith(name)]
    return fitting[0] if len(fitting) == 1 else None


def parts_of_gpus() -> tuple[str, ...]:
    """Returns the UUID of each part (MIG) into which this machine's GPUs are divided."""
    return tuple(re.findall(r"^ +MIG .*\(UUID: (MIG-[^)]*)\)", nvidia_smi("--list-gpus") or "", re.MULTILINE))
