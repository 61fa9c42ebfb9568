"""The evaluator: a task of its own that evaluates each checkpoint that a training writes.

It needs no connection to the training, only its directory of checkpoints. It ends when the training has ended, to be
started again with it if that was preempted, or when the training's status there was not updated for a while. When it is
itself asked to stop, it ends after the training, whose tasks may be killed when one has ended; and if the training is
done it evaluates what is left, since it is asked for that very reason.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf2dist.cluster.heartbeat import GRACE, TaskLostError
from tf2dist.errors import CheckpointError, UsageError
from tf2dist.input.data_adapter import FiniteDataAdapter
from tf2dist.runtime import session
from tf2dist.system import linux
from tf2dist.training import checkpoint_files
from tf2dist.training.checkpoint import Checkpoint
from tf2dist.training.checkpoint_state import SavedProgress
from tf2dist.training.prepared_model import PreparedModel
from tf2dist.training.status_file import read_status

_POLL_SECONDS = 0.5
_SAVES_WITHIN = 45.0  # seconds from when this process is asked to stop; platforms that ask give about a minute
_log = logging.getLogger("tf2dist")


def follow(
    prepared: PreparedModel,
    directory: str,
    validation: FiniteDataAdapter,
    callbacks: keras.callbacks.CallbackList,
) -> keras.callbacks.History:
    """Evaluates every checkpoint that a training writes into `directory`, until the training has ended.

    Logs a line for each, and writes "evaluation_loss" and so on for TensorBoard into `directory/evaluation`, over
    the training's updates.

    Returns:
      The logs of each checkpoint, also as "val_..."; `history.epoch` holds the updates after which it was written.

    Raises:
      TaskLostError: the training has failed, or its status was not updated for a minute.
      Preempted: the training's job was, or this process: the next one evaluates what is there.
    """
    preemption = session.current().preemption
    with preemption.training():  # whose end it waits for when it is asked to stop
        history = _follow(prepared, directory, validation, callbacks)
        preemption.saved()
        preemption.leave()  # the job is done, so that whoever asks this process to end means nothing else
    return history


def _follow(
    prepared: PreparedModel,
    directory: str,
    validation: FiniteDataAdapter,
    callbacks: keras.callbacks.CallbackList,
) -> keras.callbacks.History:
    history = keras.callbacks.History()
    history.set_model(prepared.model)
    history.on_train_begin()
    prepared.train_step(validation)  # makes the variables that are read from a checkpoint
    writer = tf.summary.create_file_writer(os.path.join(directory, "evaluation"))
    last = None
    for path in _new_checkpoints(directory):
        progress = _read(prepared.model, path)
        if progress is None:
            continue
        step = progress.global_step
        if last == (last := (step, _digest(prepared.model))):
            continue  # it was written once more when its epoch, or the training, had ended
        logs = prepared.validate(validation, callbacks)
        if logs is None:
            _wait_for_end(directory)
            logs = prepared.evaluate(validation, callbacks)
        with writer.as_default(step=step):
            for name, value in _numbers(logs).items():
                tf.summary.scalar(f"evaluation_{name}", value)
        writer.flush()
        values = "  ".join(f"{name} {value:.4f}" for name, value in sorted(_numbers(logs).items()))
        _log.info("evaluation after %d updates: %s", step, values)
        history.on_epoch_end(step, {**logs, **{f"val_{name}": value for name, value in logs.items()}})
    writer.close()
    return history


def _wait_for_end(directory: str) -> None:
    """Returns when a training that is under way is done or has failed, since this process was asked to stop.

    Raises:
      Preempted: the training was preempted as well, or goes on for so long that it was not asked.
    """
    deadline = time.monotonic() + _SAVES_WITHIN
    over = ("done", "failed", "preempted")
    while (state := read_status(directory)[0]) not in over and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    if state not in ("done", "failed"):
        session.current().preemption.end()


def _digest(model: keras.Model) -> bytes:
    """Tells one state of the weights from another."""
    digest = hashlib.sha256()
    for variable in model.weights:
        value = np.asarray(variable.value)
        digest.update(
            repr(value.tolist()).encode() if value.dtype == object else value.tobytes()
        )  # strings are objects
    return digest.digest()


def _numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    """Logs with a name for each number: "f1_0" and so on for the entries of an array."""
    several = {name: np.ravel(value) for name, value in logs.items() if np.ndim(value)}
    entries = {f"{name}_{i}": float(v) for name, values in several.items() for i, v in enumerate(values)}
    return {name: float(value) for name, value in logs.items() if name not in several} | entries


def _read(model: keras.Model, path: str) -> SavedProgress | None:
    """Reads a checkpoint; None if the training has removed it, or if it is damaged, which is logged."""
    version = checkpoint_files.written_at(path)
    try:
        return checkpoint_files.read_checkpoint(model, path)
    except (checkpoint_files.DamagedError, CheckpointError) as error:
        time.sleep(_POLL_SECONDS)  # the training may be about to remove or to replace it
        is_the_same = checkpoint_files.written_at(path) == version is not None
        if isinstance(error, CheckpointError) and is_the_same:
            raise
    try:
        return checkpoint_files.read_checkpoint(model, path)
    except (checkpoint_files.DamagedError, CheckpointError) as error:
        if os.path.isdir(path):
            if isinstance(error, CheckpointError):
                raise
            _log.warning("tf2dist: %s is damaged (%s); it is not evaluated", path, error)
        return None


def _new_checkpoints(directory: str) -> Iterator[str]:
    """Yields each checkpoint once, oldest first, waiting for more until the training has ended.

    One that is replaced by another of the same step, as the last one by that with averaged weights, is yielded again.
    A training that has ended since this process was started is its own: it may be done before the model is built here.
    Of one that was done before, the checkpoints are yielded if no other has begun within the start timeout.
    """
    began, seen = linux.began(), set()
    changed, last = time.monotonic(), read_status(directory)
    limit, preemption = session.current().start_timeout, session.current().preemption
    running = False  # seen to be alive by us: what a status says may be left over from an earlier training
    while True:
        state, when = read_status(directory)
        if (state, when) != last:
            changed, last, running = time.monotonic(), (state, when), True
        fresh = running or when >= began
        if preemption.stops_training and not (fresh and state in ("done", "failed")):
            if not fresh:
                preemption.end()
            _wait_for_end(directory)
            continue
        for path in checkpoint_files.list_checkpoints(directory) if fresh else ():
            version = path, checkpoint_files.written_at(path)
            if version not in seen and version[1] is not None:
                seen.add(version)
                yield path
        if (state, when) != read_status(directory):
            continue
        silent = time.monotonic() - changed
        if state == "failed" and fresh:
            raise TaskLostError(f"the training in {directory} has failed")
        if state == "preempted" and fresh:
            preemption.end()
        if state == "done" and fresh:
            return
        if not fresh and silent > limit:
            found = f"the last one is {state}" if state else "there was none"
            message = f"no training has begun in {directory} within {limit:g} s; {found}"
            if state != "done":
                raise TaskLostError(message)
            _log.warning("tf2dist: %s: its checkpoints are evaluated", message)
            running = True
        if fresh and silent > GRACE:
            raise TaskLostError(f"the training in {directory} has given no sign of life for {GRACE:g} s")
        time.sleep(_POLL_SECONDS)


def checkpoint_of(callbacks) -> Checkpoint:
    """The `Checkpoint` among callbacks, whose directory an evaluator follows.

    Raises:
      ValueError: there is none.
    """
    found = [c for c in callbacks if isinstance(c, Checkpoint)]
    if not found:
        raise UsageError(
            "an evaluator follows checkpoints: give fit callbacks=[tf2dist.Checkpoint(directory)], the directory being "
            "the same in every task"
        )
    return found[0]
