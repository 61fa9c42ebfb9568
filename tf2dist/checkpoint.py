"""Checkpoints of a training: written by one task of the job, whole or not at all, and found when it starts again.

`directory/checkpoint-1200/` holds `model.weights.h5` (model and optimizer, as `keras.Model.load_weights` reads it)
and `state.json`; `directory/status.json` says, with a sign of life every few seconds, whether training goes on.
What TensorFlow 1's Supervisor and MonitoredTrainingSession did.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from tf2dist import peers
from tf2dist.atomic import flush, replacing
from tf2dist.errors import CheckpointError

PULSE = 5.0  # seconds between two signs of life
_NAME = re.compile(r"checkpoint-(\d+)")
_WEIGHTS, _STATE, _STATUS = "model.weights.h5", "state.json", "status.json"


@dataclass(frozen=True)
class Saved:
    """Where a training was when a checkpoint was written.

    Attributes:
      position: updates since its epoch 0.
      totals: the sums of the epoch so far, of metrics and loss; f64.
    """

    position: int
    totals: list[np.ndarray]


class Checkpoint(keras.callbacks.Callback):
    """Saves model, optimizer, step and epoch while `tf2dist.fit` trains, and lets it go on from there.

    One of the callbacks of `fit`. At the beginning the newest checkpoint in `directory` is restored, and training
    goes on at its step, with its place in the data and the sums of its epoch. One task of the job reads and writes,
    so the directory need not be shared, unless an evaluator follows it.

    Args:
      directory: made when it is not there.
      every_steps, every_seconds: when to save, whichever comes first, looked at after each execution; every 600
        seconds if neither is given. The end of training is always saved.
      keep: how many checkpoints to keep, the newest ones.

    Raises:
      ValueError: numbers that make no sense; from `fit`, a CheckpointError for one that does not fit the model.
    """

    def __init__(
        self,
        directory: str | os.PathLike,
        *,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        keep: int = 3,
    ):
        super().__init__()
        given = {"every_steps": every_steps, "every_seconds": every_seconds, "keep": keep}
        for name, value in given.items():
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, found {value}")
        self.directory = os.fspath(directory)
        self.every_steps, self.keep = every_steps, keep
        self.every_seconds = 600.0 if every_steps is None and every_seconds is None else every_seconds
        self._training: Any = None
        self._over = threading.Event()
        self._pulse: threading.Thread | None = None

    def begin(self, training) -> Saved | None:
        """Restores the newest checkpoint into the model of a `Training`; None if there is none."""
        self._training, self._writes = training, peers.of(training.program.strategy)[1] == 0
        self._position, self._time = 0, time.monotonic()
        found, position = None, -1
        if self._writes:
            _discard_unfinished(self.directory)
            found = self._newest_readable()
            position = -1 if found is None else found.position
            self._begin_pulse()  # a checkpoint that does not fit has ended it before
        zeros = [np.asarray(z, np.float64) for z in training.program.steps(training.feed).zeros()]
        strategy = training.program.strategy
        (position,) = peers.from_first(strategy, [position])
        if position < 0:
            return None
        peers.copy_first(strategy, [*self.model.variables, *self.model.optimizer.variables])
        self._position = int(position)
        return Saved(int(position), peers.from_first(strategy, zeros if found is None else found.totals))

    def _newest_readable(self) -> Saved | None:
        for path in reversed(checkpoints(self.directory)):
            try:
                return restore(self.model, path)
            except (OSError, KeyError, json.JSONDecodeError) as error:
                print(f"tf2dist: {path} is damaged ({error}); trying the one before", file=sys.stderr, flush=True)
        return None

    def due(self) -> bool:
        """Is it time to save? Training then lets what is under way come to its end first, and calls `save`."""
        if self._training is None or not self._writes:
            return False
        if self.every_seconds is not None and time.monotonic() - self._time >= self.every_seconds:
            return True
        if self.every_steps is None:
            return False
        return self._training.position // self.every_steps > self._position // self.every_steps

    def on_train_end(self, logs=None):
        if self._training is not None and self._writes:
            self.save()
            self._end("done")
        self._training = None

    def failed(self) -> None:
        """Says that training ended with an error; what was saved stays."""
        if self._training is not None and self._writes:
            with contextlib.suppress(OSError):  # the disk may be why
                self._end("failed")
        self._training = None

    def save(self) -> None:
        """Writes a checkpoint of this moment, if there is none yet, and removes old ones.

        Raises:
          OSError: it cannot be written; no part of it is left.
        """
        training, self._time = self._training, time.monotonic()
        assert training is not None  # fit has begun
        position = training.position
        if position == self._position:
            return
        saved = Saved(position, training.totals_at(position))
        write(self.model, saved, self.directory)
        self._position = position
        for path in checkpoints(self.directory)[: -self.keep]:
            shutil.rmtree(path, ignore_errors=True)

    def _begin_pulse(self) -> None:
        os.makedirs(self.directory, exist_ok=True)
        self._over = over = threading.Event()
        self._say("training")

        def pulse():
            while not over.wait(PULSE):
                with contextlib.suppress(OSError):
                    self._say("training")

        self._pulse = threading.Thread(target=pulse, daemon=True)
        self._pulse.start()

    def _end(self, state: str) -> None:
        if self._pulse is not None:
            self._over.set()
            self._pulse.join()
            self._say(state)

    def _say(self, state: str) -> None:
        with replacing(os.path.join(self.directory, _STATUS)) as (part,), open(part, "w") as file:
            json.dump({"state": state, "time": time.time()}, file)


def checkpoints(directory: str) -> list[str]:
    """The paths of the checkpoints in a directory, oldest first."""
    names = os.listdir(directory) if os.path.isdir(directory) else []
    found = sorted((int(match[1]), name) for name in names if (match := _NAME.fullmatch(name)))
    return [os.path.join(directory, name) for _, name in found]


def status(directory: str) -> tuple[str, float]:
    """What a training in this directory last said, "training", "done" or "failed", and when (Unix time); "" if none."""
    try:
        with open(os.path.join(directory, _STATUS)) as file:
            found = json.load(file)
        return found["state"], found["time"]
    except (OSError, ValueError, KeyError):
        return "", 0.0


def write(model: keras.Model, saved: Saved, directory: str) -> str:
    """Writes a checkpoint; returns its path. Readers see all of it or nothing.

    Raises:
      OSError: the disk is full, say; nothing is left.
    """
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, f"checkpoint-{saved.position}")
    unfinished = os.path.join(directory, f".checkpoint-{saved.position}.{secrets.token_hex(4)}.part")
    try:
        os.mkdir(unfinished)
        model.save_weights(os.path.join(unfinished, _WEIGHTS))
        state = {
            "position": saved.position,
            "totals": [np.asarray(t).tolist() for t in saved.totals],
            "shapes": _shapes(model),
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


def restore(model: keras.Model, path: str) -> Saved:
    """Reads a checkpoint into a built model and its optimizer.

    Raises:
      OSError, KeyError: it is damaged.
      CheckpointError: it is of another model.
    """
    with open(os.path.join(path, _STATE)) as file:
        state = json.load(file)
    saved = Saved(int(state["position"]), [np.asarray(t, np.float64) for t in state["totals"]])
    for owner, theirs in state["shapes"].items():
        ours = _shapes(model)[owner]
        if ours != theirs:
            differ = [(a, b) for a, b in zip(ours, theirs, strict=False) if a != b]
            how = f"{differ[0][1]} where this one has {differ[0][0]}" if differ else f"{len(theirs)}, not {len(ours)}"
            raise CheckpointError(
                f"the checkpoint {path} is of another {owner}, name another directory or remove it: "
                f"its variables are {how}"
            )
    model.load_weights(os.path.join(path, _WEIGHTS))
    return saved


def _shapes(model: keras.Model) -> dict[str, list[list[int]]]:
    """By which a checkpoint of another model is known: names change from process to process."""
    return {
        "model": [list(v.shape) for v in model.variables],
        "optimizer": [list(v.shape) for v in model.optimizer.variables],
    }


def _discard_unfinished(directory: str) -> None:
    """Removes what a job that was killed while it wrote has left."""
    for name in os.listdir(directory) if os.path.isdir(directory) else ():
        if name.startswith((".checkpoint-", f".{_STATUS}.")) and name.endswith(".part"):
            path = os.path.join(directory, name)
            shutil.rmtree(path, ignore_errors=True) if os.path.isdir(path) else os.remove(path)
