"""The files of checkpoints: written whole or not at all, listed and read.

`directory/checkpoint-1200/` holds `model.weights.h5` (model and optimizer, as `keras.Model.load_weights` reads it), or
the files of `checkpoint_shards`, and `state.json`, with what these leave out; `directory/status.json` is described in
`status_file`. One that was found to be damaged is kept as `directory/damaged-checkpoint-1200/`, where nothing reads it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Callable, Sequence

import h5py
import keras
import numpy as np
import tensorflow as tf

from tf2dist.compat.model import seed_states
from tf2dist.errors import CheckpointError
from tf2dist.system.atomic_files import flush, flush_directory
from tf2dist.training.checkpoint_compatibility import check_shapes
from tf2dist.training.checkpoint_shards import check_shards, read_shards
from tf2dist.training.checkpoint_snapshot import Snapshot, stored_variables
from tf2dist.training.checkpoint_state import PlaceInEpoch, SavedProgress
from tf2dist.training.status_file import STATUS_FILE

_NAME = re.compile(r"checkpoint-(\d+)")
_REPLACED = re.compile(r"\.(checkpoint-\d+)\.replaced")
_MAY_BE_READ_LATER = {errno.EACCES, errno.EPERM, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR}
_HDF5_BYTES = 8192  # that it adds to each variable, at most
_WEIGHTS, STATE_FILE = "model.weights.h5", "state.json"


class DamagedError(Exception):
    """A checkpoint cannot be read; the message says why."""


class UnwrittenError(CheckpointError, OSError):
    """A checkpoint cannot be written, since the disk is full, say; nothing of it is left."""


def list_checkpoints(directory: str) -> list[str]:
    """The paths of the checkpoints in a directory, oldest first."""
    names = os.listdir(directory) if os.path.isdir(directory) else []
    found = sorted((int(match[1]), name) for name in names if (match := _NAME.fullmatch(name)))
    return [os.path.join(directory, name) for _, name in found]


def written_at(path: str) -> tuple[int, int] | None:
    """Identifies one version of a checkpoint: another one after it was replaced; None if it does not exist."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def step_of(path: str) -> int:
    """The global step of a checkpoint of `list_checkpoints`."""
    return int(os.path.basename(path).rpartition("-")[2])


def write_checkpoint(snapshot: Snapshot, directory: str, *, sharded: bool = False) -> str:
    """Writes a checkpoint and returns its path. Readers see all of it or nothing.

    May be called in any thread, but only in one at a time.

    Args:
      snapshot: what to write.
      directory: of the checkpoints.
      sharded: is each task to write its variables?

    Raises:
      UnwrittenError: the disk is full, say; nothing is left, and a checkpoint of the same step stays.
      tf.errors.OpError: a server that has variables is lost; the same.
    """
    name = f"checkpoint-{snapshot.progress.global_step}"
    path = os.path.join(directory, name)
    unfinished = os.path.join(directory, f".{name}.{secrets.token_hex(4)}.part")
    try:
        os.makedirs(directory, exist_ok=True)
        os.mkdir(unfinished)
        _write_files(snapshot, unfinished, sharded)
        _put_in_place(unfinished, path)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        why = os.strerror(error.errno) if error.errno else " ".join(str(error).split())
        raise UnwrittenError(f"{path} cannot be written: {why}; the checkpoints before it are kept") from None
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return path


def _write_files(snapshot: Snapshot, directory: str, sharded: bool) -> None:
    progress = snapshot.progress
    state = {
        "global_step": progress.global_step,
        "steps_per_epoch": progress.steps_per_epoch,
        "metric_sums": [np.asarray(t).tolist() for t in progress.metric_sums],
        "ends_epoch": progress.place.ends,
        "begins_epoch": progress.place.begins,
        "stops": progress.place.stops,
        "seed_states": snapshot.seed_states,
        "shapes": snapshot.shapes,
        "logs": progress.logs,
    }
    if sharded:
        state["shards"] = snapshot.save_shards(directory)
    else:
        weights = os.path.join(directory, _WEIGHTS)
        _check_room(snapshot.sizes, directory)
        snapshot.save_weights(weights)
        state["weights_sha256"] = _sha256(weights)
    with open(os.path.join(directory, STATE_FILE), "w") as file:
        json.dump(state, file)
    for name in os.listdir(directory):
        flush(os.path.join(directory, name))
    flush_directory(directory)


def _check_room(sizes: Sequence[int], directory: str) -> None:
    """Raises OSError where variables of these sizes cannot fit: HDF5 may end the process when a disk is full."""
    needed = sum(sizes) + _HDF5_BYTES * (len(sizes) + 8)
    try:
        found = os.statvfs(directory)
    except OSError:
        return  # some file systems cannot say
    free = found.f_bavail if os.geteuid() else found.f_bfree
    if found.f_blocks and free * found.f_frsize < needed:  # some do not know their size
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _put_in_place(unfinished: str, path: str) -> None:
    """Renames a finished checkpoint; one of the same step is there until the new one is."""
    folder, name = os.path.split(path)
    replaced = os.path.join(folder, f".{name}.replaced")
    if os.path.isdir(path):  # weights that have changed since, as by averages; or damaged
        shutil.rmtree(replaced, ignore_errors=True)
        os.rename(path, replaced)
    try:
        os.rename(unfinished, path)
    except BaseException:
        if os.path.isdir(replaced) and not os.path.isdir(path):
            os.rename(replaced, path)
        raise
    flush_directory(folder)
    shutil.rmtree(replaced, ignore_errors=True)


def read_checkpoint(model: keras.Model, path: str) -> SavedProgress:
    """Reads a checkpoint into a built model and its optimizer.

    Raises:
      DamagedError: its files are incomplete or have changed; the model is as it was.
      CheckpointError: it is of another model, or cannot be read now.
    """
    weights = os.path.join(path, _WEIGHTS)
    try:
        with open(os.path.join(path, STATE_FILE)) as file:
            state = json.load(file)
        step = state["global_step"] if "global_step" in state else state["position"]  # as it was called at first
        sums = state["metric_sums"] if "metric_sums" in state else state["totals"]
        sums = [np.asarray(t, np.float64) for t in sums]
        # Older ones have none of these.
        place = PlaceInEpoch(*[bool(state.get(name)) for name in ("ends_epoch", "begins_epoch", "stops")])
        progress = SavedProgress(int(step), sums, state.get("steps_per_epoch"), place)
        if progress.global_step < 0 or not (progress.steps_per_epoch is None or progress.steps_per_epoch > 0):
            raise ValueError(f"step {progress.global_step} with {progress.steps_per_epoch} steps an epoch")
        shapes = state["shapes"]
        shards = state.get("shards")
        if shards is None and state.get("weights_sha256", found := _sha256(weights)) != found:  # older ones have none
            raise DamagedError(f"{_WEIGHTS} is not what was written")
        check_shapes(model, shapes, path)
        if shards is not None:
            check_shards(shards, len(stored_variables(model)))
            read_shards(stored_variables(model), shards, path, assign=False)
        seeds = [np.asarray(s, np.int64) for s in state.get("seed_states", ())]  # older ones have none
        if any(v.shape != s.shape for v, s in zip(seed_states(model), seeds, strict=False)):
            raise ValueError("states of random numbers have other shapes")
        if shards is None and "weights_sha256" not in state:
            with h5py.File(weights):
                pass  # one that was cut off cannot be opened
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedError(f"{type(error).__name__}: {error}") from None
    except (tf.errors.DataLossError, tf.errors.NotFoundError, tf.errors.OutOfRangeError) as error:
        raise DamagedError(error.message.partition("\n")[0]) from None
    except tf.errors.InvalidArgumentError as error:
        raise CheckpointError(_is_of_another(path, error)) from None
    except OSError as error:
        if error.errno in _MAY_BE_READ_LATER:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
        raise DamagedError(f"{type(error).__name__}: {error}") from None
    try:
        if shards is None:
            model.load_weights(weights)
        else:
            read_shards(stored_variables(model), shards, path, assign=True)
    except Exception as error:  # Keras has loaded what fits, so no other checkpoint may take its place in silence
        raise CheckpointError(_is_of_another(path, error)) from None
    for variable, value in zip(seed_states(model), seeds, strict=False):
        variable.assign(value)
    return progress


def _is_of_another(path: str, error: Exception) -> str:
    return f"{path} cannot be restored; it may be of another model: {' '.join(str(error).split())}"


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_logs(path: str) -> dict[str, float]:
    """The logs of the epoch that had just ended when a checkpoint was written; {} if none had, or it is damaged."""
    try:
        with open(os.path.join(path, STATE_FILE)) as file:
            logs = json.load(file).get("logs", {})
        return {str(name): float(value) for name, value in logs.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def find_best(directory: str, metric: str, mode: str) -> str | None:
    """The path of the checkpoint with the best value in its logs, the first of those that are alike; None without any.

    Args:
      directory: of the checkpoints.
      metric: the name of the value, as "val_loss".
      mode: "min" or "max".
    """
    sign = 1 if mode == "min" else -1
    values = [(sign * read_logs(path).get(metric, math.nan), path) for path in list_checkpoints(directory)]
    return min((pair for pair in values if not math.isnan(pair[0])), default=(0.0, None), key=lambda pair: pair[0])[1]


def keep_newest(
    directory: str, count: int, written: str, damaged: Sequence[str], best: Callable[[], str | None] = lambda: None
) -> None:
    """Removes all checkpoints but the newest ones, when another was written.

    Args:
      directory: of the checkpoints.
      count: how many to keep.
      written: the path of the newest.
      damaged: paths of those that were found to be damaged. They are set aside: one is of a higher step, so it would
        count as the newest, and good ones would be removed for it.
      best: returns the path of one more that is kept.
    """
    for path in damaged:
        if path != written:
            with contextlib.suppress(OSError):  # somebody has removed it
                set_aside(path)
    old = list_checkpoints(directory)[:-count]
    kept = best() if old else None
    for path in old:
        if path == kept:
            continue
        shutil.rmtree(path, ignore_errors=True)


def set_aside(path: str) -> None:
    """Renames a damaged checkpoint, so that it is not among the others any more.

    Raises:
      OSError: it cannot be renamed.
    """
    folder, name = os.path.split(path)
    aside = os.path.join(folder, f"damaged-{name}")
    shutil.rmtree(aside, ignore_errors=True)
    os.rename(path, aside)


def discard_unfinished(directory: str) -> None:
    """Removes what a job that was killed while it wrote has left, and puts back what it was about to replace."""
    for name in os.listdir(directory) if os.path.isdir(directory) else ():
        path = os.path.join(directory, name)
        if replaced := _REPLACED.fullmatch(name):
            whole = os.path.join(directory, replaced[1])
            shutil.rmtree(path, ignore_errors=True) if os.path.isdir(whole) else os.rename(path, whole)
        elif name.startswith((".checkpoint-", f".{STATUS_FILE}.")) and name.endswith(".part"):
            shutil.rmtree(path, ignore_errors=True) if os.path.isdir(path) else os.remove(path)
