"""The files of checkpoints: written whole or not at all, listed and read.

`directory/checkpoint-1200/` holds `model.weights.h5` (model and optimizer, as `keras.Model.load_weights` reads it), or
the files of `checkpoint_shards`, and `state.json`, with what these leave out; `directory/status.json` is described in
`status_file`. One that was found to be damaged is kept as `directory/damaged-checkpoint-1200/`, where nothing reads it.
One that servers have written in an emergency has the files of `checkpoint_shards`, and "emergency" in its state.
`directory/best-val_loss-1400/` is the best one by a value in the logs, from which no training goes on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import h5py
import keras
import numpy as np
import tensorflow as tf

from tf2dist.compat.model import finalize_restored, has_optimizer, seed_states
from tf2dist.compat.weights_files import load_weights
from tf2dist.errors import CheckpointError, first_line
from tf2dist.system.atomic_files import flush, flush_directory, put_in_place
from tf2dist.training.best_epoch import BestEpoch
from tf2dist.training.checkpoint_compatibility import Shapes, check_shapes
from tf2dist.training.checkpoint_shards import ElsewhereError, Shards, check_shards, read_shards
from tf2dist.training.checkpoint_snapshot import Snapshot, stored_variables
from tf2dist.training.checkpoint_state import PlaceInEpoch, SavedProgress
from tf2dist.training.status_file import STATUS_FILE

_NAME = re.compile(r"checkpoint-(\d+)")
_REPLACED = re.compile(r"\.((?:checkpoint|best-.*)-\d+)\.replaced")
_MAY_BE_READ_LATER = {errno.EACCES, errno.EPERM, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR}
_HDF5_BYTES = 8192  # that it adds to each variable, at most
_WEIGHTS, STATE_FILE = "model.weights.h5", "state.json"
JOURNAL = ".progress"  # see `emergency_plan`


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
    return _write(snapshot, directory, f"checkpoint-{snapshot.progress.global_step}", sharded)


def write_best(snapshot: Snapshot, directory: str, best: BestEpoch, *, sharded: bool = False) -> None:
    """Writes a checkpoint of the best epoch, in the place of the best one before, as `write_checkpoint`."""
    name = f"{_best_name(best.metric)}{snapshot.progress.global_step}"
    before = _list_best(directory, best.metric)
    path = _write(snapshot, directory, name, sharded, {"metric": best.metric, "mode": best.mode, "value": best.value})
    for each in before:
        if each != path:
            shutil.rmtree(each, ignore_errors=True)


def _best_name(metric: str) -> str:
    return f"best-{re.sub(r'[^A-Za-z0-9_.]', '_', metric)}-"


def _list_best(directory: str, metric: str) -> list[str]:
    names, begins = os.listdir(directory) if os.path.isdir(directory) else [], _best_name(metric)
    return [
        os.path.join(directory, name) for name in names if name.startswith(begins) and name[len(begins) :].isdigit()
    ]


def find_best(directory: str, metric: str) -> tuple[str, float] | None:
    """The path of the best checkpoint by this value in the logs, and the value; None if there is none."""
    found: list[tuple[float, str, float]] = []
    for path in _list_best(directory, metric):  # two, if a job was killed just when the second one was there
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            with open(os.path.join(path, STATE_FILE)) as file:
                best = json.load(file)["best"]
            value = float(best["value"])
            found.append((value if best["mode"] == "min" else -value, path, value))
    return min(found)[1:] if found else None


def _write(snapshot: Snapshot, directory: str, name: str, sharded: bool, best: Mapping[str, Any] | None = None) -> str:
    path = os.path.join(directory, name)
    unfinished = os.path.join(directory, f".{name}.{secrets.token_hex(4)}.part")
    with writing(path):
        try:
            os.makedirs(directory, exist_ok=True)
            os.mkdir(unfinished)
            _write_files(snapshot, unfinished, sharded, best)
            put_in_place(unfinished, path)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
    return path


@contextlib.contextmanager
def writing(path: str) -> Generator[None]:
    """Returns a context in which an OSError becomes an `UnwrittenError` that says that `path` cannot be written."""
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else " ".join(str(error).split())
        raise UnwrittenError(f"{path} cannot be written: {why}; the checkpoints before it are kept") from None


def _write_files(snapshot: Snapshot, directory: str, sharded: bool, best: Mapping[str, Any] | None) -> None:
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
        "variables": len(snapshot.sizes),
        "best": best,
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


@dataclasses.dataclass(frozen=True)
class _Whole:
    """What a checkpoint holds, of which all files are whole."""

    progress: SavedProgress
    seeds: list[np.ndarray]
    shards: Shards | None
    emergency: bool


def read_checkpoint(model: keras.Model, path: str) -> SavedProgress:
    """Reads a checkpoint into a built model and its optimizer.

    Raises:
      DamagedError: its files are incomplete or have changed; the model is as it was.
      CheckpointError: it is of another model, or cannot be read now.
    """
    whole = _verify(model, path)
    try:
        if whole.shards is None:
            load_weights(model, os.path.join(path, _WEIGHTS))
        else:
            read_shards(stored_variables(model), whole.shards, path, assign=True, here=whole.emergency)
    except Exception as error:  # Keras has loaded what fits, so no other checkpoint may take its place in silence
        raise CheckpointError(_is_of_another(path, error)) from None
    for variable, value in zip(seed_states(model), whole.seeds, strict=False):
        variable.assign(value)
    finalize_restored(model)
    return whole.progress


def read_shapes(path: str) -> Shapes:
    """The shapes of the model's and the optimizer's variables in a checkpoint; nothing if it does not say them."""
    try:
        with open(os.path.join(path, STATE_FILE)) as file:
            return dict(json.load(file)["shapes"])
    except (OSError, KeyError, TypeError, ValueError, RecursionError):
        return {}


def check_checkpoint(model: keras.Model, path: str) -> None:
    """Raises what `read_checkpoint` would, and leaves the model as it is."""
    _verify(model, path)


def _verify(model: keras.Model, path: str) -> _Whole:
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
        emergency = bool(state.get("emergency"))  # of a training whose checkpoints this process alone need see
        if shards is None and state.get("weights_sha256", found := _sha256(weights)) != found:  # older ones have none
            raise DamagedError(f"{_WEIGHTS} is not what was written")
        check_shapes(model, shapes, path)
        ours = stored_variables(model)
        if has_optimizer(model) and state.get("variables", len(ours)) != len(ours):
            raise CheckpointError(
                f"the checkpoint {path} is of a model with other optimizers, name another directory or remove it: it "
                f"has {state['variables']} variables in all, and the model here has {len(ours)}, as of optimizers that "
                "are not built"
            )
        if shards is not None:
            check_shards(shards, len(ours))
            read_shards(ours, shards, path, assign=False, here=emergency)
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
        raise DamagedError(first_line(error)) from None
    except tf.errors.InvalidArgumentError as error:
        raise CheckpointError(_is_of_another(path, error)) from None
    except (ElsewhereError, tf.errors.PermissionDeniedError, tf.errors.ResourceExhaustedError) as error:
        raise CheckpointError(f"{path} cannot be read: {first_line(error)}") from None
    except OSError as error:
        if error.errno in _MAY_BE_READ_LATER:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
        raise DamagedError(f"{type(error).__name__}: {error}") from None
    return _Whole(progress, seeds, shards, emergency)


def _is_of_another(path: str, error: Exception) -> str:
    return f"{path} cannot be restored; it may be of another model: {' '.join(str(error).split())}"


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def keep_newest(directory: str, count: int, written: str, damaged: Sequence[str]) -> None:
    """Removes all checkpoints but the newest ones, when another was written.

    Args:
      directory: of the checkpoints.
      count: how many to keep.
      written: the path of the newest.
      damaged: paths of those that were found to be damaged. They are set aside: one is of a higher step, so it would
        count as the newest, and good ones would be removed for it.
    """
    for path in damaged:
        if path != written:
            with contextlib.suppress(OSError):  # somebody has removed it
                set_aside(path)
    for path in list_checkpoints(directory)[:-count]:
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
        elif name == JOURNAL:
            with contextlib.suppress(OSError):  # nobody reads it any more
                os.remove(path)
        elif name.startswith((".checkpoint-", ".best-", f".{STATUS_FILE}.")) and name.endswith(".part"):
            shutil.rmtree(path, ignore_errors=True) if os.path.isdir(path) else os.remove(path)
