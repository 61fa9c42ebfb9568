"""Decides which GPUs each task of a host sees, and what it may take of their memory, so that all of them can start.

On several hosts each decides for its own tasks; `agreed` sees to it that the workers have the same number of GPUs.

TensorFlow takes all memory of all GPUs that it sees, and NCCL wants a GPU for each process.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tf2dist.errors import UsageError
from tf2dist.launch.cluster_layout import Layout
from tf2dist.system import cuda_libraries, gpus
from tf2dist.system.environment_variables import GPU_MEMORY, GPUS_GIVEN, GPUS_SHARED_BY, count

_DOCTOR = "python -m tf2dist.doctor says what mends it"
_ALLOW_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"  # TensorFlow takes memory as it needs it
# Of a worker before its first number: CUDA's own, and what TensorFlow leaves alone (`MinSystemMemory`: 225 MiB, or more
# where more than 2 GiB are free).
_LEAST_MIB = 500


@dataclass(frozen=True)
class GpuSharing:
    """What each task's environment says about GPUs.

    Attributes:
      variables: by the task's name; nothing where there is no GPU.
      note: what the user should know, in a line; empty if nothing.
      per_worker: GPUs that each worker uses; None where no worker is.
      shared_by: how many workers use one GPU.
    """

    variables: dict[str, dict[str, str]]
    note: str = ""
    per_worker: int | None = 0
    shared_by: int = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the backends that divide GPUs."""
    group = parser.add_argument_group("the GPUs of a host")
    group.add_argument(
        "--gpus_per_worker",
        type=int,
        metavar="N",
        help="(default: one under parameter servers, else equal parts; shared where there are fewer; 0: none)",
    )
    group.add_argument(
        "--gpu_memory", type=int, metavar="MIB", help="that a worker takes of a GPU (default: as it needs)"
    )


def check_options(each: int | None, memory_mib: int | None) -> None:
    """Raises UsageError if `each` GPUs a worker, or this memory, can be had nowhere."""
    if each is not None and each < 0:
        raise UsageError(f"--gpus_per_worker={each} must be 0 or more")
    if memory_mib is not None and memory_mib < 1:
        raise UsageError(f"--gpu_memory={memory_mib} must be 1 or more, in MiB")


def share_gpus(
    layout: Layout,
    environ: dict[str, str],
    *,
    host: str | None = None,
    each: int | None = None,
    memory_mib: int | None = None,
) -> GpuSharing:
    """Divides the GPUs of this host, those of CUDA_VISIBLE_DEVICES if it is set, among its tasks that compute.

    All get the same number, because tf.distribute wants that: one under parameter servers, else as many as there are
    for each. With fewer GPUs than workers several use one, and take its memory as they need it. Parameter servers, the
    coordinator and an evaluator see none.

    Args:
      layout: the tasks of the job.
      environ: what the tasks inherit.
      host: this one's name in the layout; None if all tasks run here.
      each: GPUs of each worker; None to leave it to this function, 0 for none.
      memory_mib: that a process may take of each of its GPUs; None for what it needs.

    Raises:
      UsageError: GPUs or memory are asked for that are not there.
    """
    check_options(each, memory_mib)
    limit = f"--gpu_memory={memory_mib}" if memory_mib else f"{GPU_MEMORY}={environ.get(GPU_MEMORY)}"
    names = gpus.visible(environ)
    tasks = [place.task for place in layout.placed if host in (None, place.host)]
    workers = [task for task in tasks if layout.computes(task.job)]
    if each and each * len(workers) > len(names):
        hidden = gpus.VISIBLE in environ and not names
        mends = "without --gpus_per_worker they share" if names else _DOCTOR
        raise UsageError(
            f"{_count(len(workers), 'worker')} with {_count(each, 'GPU')} each need {each * len(workers)}, and there "
            f"{'is' if len(names) == 1 else 'are'} {_of(names)}"
            f"{f' ({gpus.VISIBLE}={environ[gpus.VISIBLE]})' if hidden else _failure(names)}; {mends}"
        )
    none = 0 if workers else None
    if memory_mib and workers and (not names or each == 0):
        why = "--gpus_per_worker=0 gives workers none" if each == 0 else f"there are none{_failure(names)}"
        raise UsageError(f"--gpu_memory={memory_mib} is for GPUs, and {why}")
    if memory_mib is None:
        memory_mib = _memory_in(environ)
    if not names:
        asked = gpus.asked_for(environ)
        note = ""
        if asked:
            note = f"no GPU is used: {gpus.VISIBLE}={asked} names one, and none is found{_failure(names)}; {_DOCTOR}"
        elif gpus.VISIBLE not in environ and (why := gpus.driver_failure()):
            note = f"no GPU is used: {why}; {_DOCTOR}"
        return GpuSharing({str(task): {} for task in tasks}, note, none)
    unusable = cuda_libraries.why_unusable()
    if each and each > 1 and any(name.startswith("MIG-") for name in names):
        raise UsageError(f"--gpus_per_worker={each}: CUDA shows a process one part of a GPU (MIG), and no more")
    if unusable and each:
        raise UsageError(f"--gpus_per_worker={each}: TensorFlow cannot use GPUs here: {unusable}; {_DOCTOR}")
    per_worker = _parts(layout, names, len(workers)) if each is None else each
    parts = {
        task: [names[(number * per_worker + i) % len(names)] for i in range(per_worker)]
        for number, task in enumerate(workers)
    }
    used = [name for part in parts.values() for name in part]
    parts_of_cards = [name for name in used if name.startswith("MIG-")]  # perhaps of one, which NCCL refuses too
    shared_by = max([1, len(parts_of_cards), *(used.count(name) for name in used)])
    if memory_mib or not unusable:
        _check_growth(used, memory_mib, environ)
        _check_memory(gpus.memory(names, environ), used, memory_mib, limit)
    variables = {str(task): _variables(parts.get(task, []), shared_by, memory_mib, environ) for task in tasks}
    for task in workers if each else ():
        variables[str(task)][GPUS_GIVEN] = str(each)
    if unusable and each is None:
        return GpuSharing(variables, f"no GPU is used: {unusable}; {_DOCTOR}", none)
    note = _note(names, used, len(workers), memory_mib) if each is None and workers else ""
    # Workers of other hosts may share a GPU, and all do without NCCL then; servers add up gradients by themselves.
    together = per_worker * sum(layout.computes(place.task.job) for place in layout.placed)
    with_nccl = shared_by == 1 and together > 1 and not layout.count("ps")
    if used and (failing := cuda_libraries.what_will_fail(with_nccl=with_nccl)):
        note = "; ".join(filter(None, [note, failing, _DOCTOR]))
    return GpuSharing(variables, note, per_worker if workers else None, shared_by)


def agreed(sharing: Mapping[str, GpuSharing]) -> dict[str, dict[str, str]]:
    """Returns the variables of the tasks of all hosts, given what each host has decided for its own.

    All workers must have the same number of GPUs, and know of it where only those of another host share one: they
    choose together how they add up gradients.

    Raises:
      UsageError: the workers of one host have more GPUs than those of another.
    """
    numbers = {host: found.per_worker for host, found in sharing.items() if found.per_worker is not None}
    least, most = (choose(numbers, key=lambda host: numbers[host] or 0, default="") for choose in (min, max))
    if numbers and numbers[least] != numbers[most]:
        raise UsageError(
            f"a worker on {most} has {_count(numbers[most] or 0, 'GPU')} and one on {least} has {numbers[least]}, and "
            f"all must have as many: say --gpus_per_worker={numbers[least]}"
        )
    shared_by = max((found.shared_by for found in sharing.values()), default=1)
    variables = {task: dict(found) for host in sharing.values() for task, found in host.variables.items()}
    for found in variables.values():
        if shared_by > 1 and found.get(gpus.VISIBLE, gpus.NONE) != gpus.NONE:
            found[GPUS_SHARED_BY] = str(shared_by)
    return variables


def _parts(layout: Layout, names: tuple[str, ...], workers: int) -> int:
    """How many GPUs each worker gets by itself: one under parameter servers, whose workers are to have one device.

    And one part of a GPU (MIG): CUDA shows a process no more.
    """
    alone = layout.count("ps") or any(name.startswith("MIG-") for name in names)
    return 1 if alone else max(1, len(names) // max(1, workers))


def _failure(names: tuple[str, ...]) -> str:
    """Why no GPU is found, in parentheses, where nvidia-smi says it."""
    why = "" if names else gpus.driver_failure()
    return f" ({why})" if why else ""


def _memory_in(environ: dict[str, str]) -> int | None:
    try:
        return count(GPU_MEMORY, environ)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _variables(part: Sequence[str], shared_by: int, memory_mib: int | None, environ: dict[str, str]) -> dict[str, str]:
    if not part:
        return {gpus.VISIBLE: gpus.NONE}
    found = {gpus.VISIBLE: ",".join(part)}
    if memory_mib:
        found[GPU_MEMORY] = str(memory_mib)
    elif _ALLOW_GROWTH not in environ:
        found[_ALLOW_GROWTH] = "true"
    if gpus.VISIBLE not in environ and gpus.ORDER not in environ:
        found[gpus.ORDER] = gpus.AS_NVIDIA_SMI
    if shared_by > 1 or GPUS_SHARED_BY in environ:
        found[GPUS_SHARED_BY] = str(shared_by)
    return found


def _check_growth(used: list[str], memory_mib: int | None, environ: dict[str, str]) -> None:
    """Raises UsageError if the user wants each of several processes on a GPU to take all of its memory."""
    shared = [name for name in used if used.count(name) > 1]
    if shared and not memory_mib and environ.get(_ALLOW_GROWTH) == "false":
        raise UsageError(
            f"{_ALLOW_GROWTH}=false has each of {_count(used.count(shared[0]), 'worker')} take all memory of GPU "
            f"{shared[0]}: `unset {_ALLOW_GROWTH}`, or say --gpu_memory"
        )


def _check_memory(memory: dict[str, gpus.Memory], used: list[str], memory_mib: int | None, limit: str) -> None:
    """Raises UsageError if the processes on a GPU are to take more memory than it has, or has free.

    Args:
      memory: of each GPU of which it is known.
      used: the GPU of each worker, several times if several use it.
      memory_mib: the limit of a worker on each of its GPUs; None without.
      limit: what has set it.
    """
    for name in used:
        if name not in memory:
            continue
        there, workers = memory[name], _count(used.count(name), "worker")
        wanted = used.count(name) * (memory_mib or _LEAST_MIB)
        if memory_mib and wanted > there.total:
            raise UsageError(f"{limit} for {workers} takes {wanted} MiB of GPU {name}, which has {there.total}")
        if wanted > there.free:
            what = f"{limit} for {workers} takes" if memory_mib else f"{workers} must have"
            raise UsageError(
                f"{what} {wanted} MiB of GPU {name}, which has {there.free} of {there.total} free: `nvidia-smi` says "
                f"who has the others, and {gpus.VISIBLE} may name other GPUs, or none"
            )


def _note(names: tuple[str, ...], used: list[str], workers: int, memory_mib: int | None) -> str:
    if len({*used}) < len(used):
        each = f"each takes up to {memory_mib} MiB" if memory_mib else "each takes the memory that it needs"
        return f"{_count(workers, 'worker')} share {_of(names)}; {each}"
    if idle := [name for name in names if name not in used]:
        there = f"{_count(workers, 'worker')} use{'s' * (workers == 1)} {_count(len(used), 'GPU')} of {len(names)}"
        left = f"GPU{'s' * (len(idle) > 1)} {', '.join(idle)} {'is' if len(idle) == 1 else 'are'} left over"
        return f"{there}, and {left}; see --workers and --gpus_per_worker"
    return ""


def _of(names: tuple[str, ...]) -> str:
    return _count(len(names), "GPU") + (f" ({', '.join(names)})" if names else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
