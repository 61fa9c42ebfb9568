"""The files of checkpoints: written whole or not at all, listed and read.

`directory/checkpoint-1200/` holds `model.weights.h5` (model and optimizer, as `keras.Model.load_weights` reads it)
and `state.json`; `directory/status.json` is described in `training_status`.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil

import keras
import numpy as np

from tf2dist.system.atomic_files import flush
from tf2dist.training.checkpoint_compatibility import check_shapes, shapes_of
from tf2dist.training.training_progress import SavedProgress
from tf2dist.training.training_status import STATUS_FILE

_NAME = re.compile(r"checkpoint-(\d+)")
_WEIGHTS, _STATE = "model.weights.h5", "state.json"


def list_checkpoints(directory: str) -> list[str]:
    """The paths of the checkpoints in a directory, oldest first."""
    names = os.listdir(directory) if os.path.isdir(directory) else []
    found = sorted((int(match[1]), name) for name in names if (match := _NAME.fullmatch(name)))
    return [os.path.join(directory, name) for _, name in found]


def step_of(path: str) -> int:
    """The global step of a checkpoint of `list_checkpoints`."""
    return int(os.path.basename(path).rpartition("-")[2])


def write_checkpoint(model: keras.Model, progress: SavedProgress, directory: str) -> str:
    """Writes a checkpoint and returns its path. Readers see all of it or nothing.

    Raises:
      OSError: the disk is full, say; nothing is left.
    """
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, f"checkpoint-{progress.global_step}")
    unfinished = os.path.join(directory, f".checkpoint-{progress.global_step}.{secrets.token_hex(4)}.part")
    try:
        os.mkdir(unfinished)
        model.save_weights(os.path.join(unfinished, _WEIGHTS))
        state = {
            "global_step": progress.global_step,
            "metric_sums": [np.asarray(t).tolist() for t in progress.metric_sums],
            "shapes": shapes_of(model),
        }
        with open(os.path.join(unfinished, _STATE), "w") as file:
            json.dump(state, file)
        for name in (_WEIGHTS, _STATE):
            flush(os.path.join(unfinished, name))
        if os.path.isdir(path):  # from a training that was further, or damaged
            shutil.rmtree(path)
        os.rename(unfinished, path)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return path


def read_checkpoint(model: keras.Model, path: str) -> SavedProgress:
    """Reads a checkpoint into a built model and its optimizer.

    Raises:
      OSError, KeyError, json.JSONDecodeError: it is damaged.
      CheckpointError: it is of another model.
    """
    with open(os.path.join(path, _STATE)) as file:
        state = json.load(file)
    step = state["global_step"] if "global_step" in state else state["position"]  # as it was called at first
    sums = state["metric_sums"] if "metric_sums" in state else state["totals"]
    progress = SavedProgress(int(step), [np.asarray(t, np.float64) for t in sums])
    check_shapes(model, state["shapes"], path)
    model.load_weights(os.path.join(path, _WEIGHTS))
    return progress


def discard_unfinished(directory: str) -> None:
    """Removes what a job that was killed while it wrote has left."""
    for name in os.listdir(directory) if os.path.isdir(directory) else ():
        if name.startswith((".checkpoint-", f".{STATUS_FILE}.")) and name.endswith(".part"):
            path = os.path.join(directory, name)
            shutil.rmtree(path, ignore_errors=True) if os.path.isdir(path) else os.remove(path)
