"""An evaluator: a task of its own that follows the checkpoints of a training and evaluates each.

It takes no part in the training and needs no connection to it, only its directory of checkpoints. It ends when the
training has ended, or has given no sign of life there for a while.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import keras
import tensorflow as tf

from tf2dist import checkpoint as files
from tf2dist import joining
from tf2dist.checkpoint import Checkpoint
from tf2dist.lifeline import GRACE, Gone
from tf2dist.program import Program

_LOOK = 0.5  # seconds between two looks into the directory


def follow(
    program: Program, directory: str, validation, hooks: keras.callbacks.CallbackList
) -> keras.callbacks.History:
    """Evaluates every checkpoint that a training writes into `directory`, until that has ended.

    Prints a line for each, and writes "evaluation_loss" and so on for TensorBoard into `directory/evaluation`, over
    the training's updates.

    Returns:
      The logs of each checkpoint; `history.epoch` holds the updates after which it was written.

    Raises:
      Gone: the training has failed, or given no sign of life for a minute.
    """
    history = keras.callbacks.History()
    history.set_model(program.model)
    history.on_train_begin()
    program.steps(validation)  # makes the variables that are read from a checkpoint
    writer = tf.summary.create_file_writer(os.path.join(directory, "evaluation"))
    for path in _new(directory):
        try:
            position = files.restore(program.model, path).position
        except FileNotFoundError:
            continue  # the training has made newer ones and removed it
        logs = program.evaluate(validation, hooks)
        with writer.as_default(step=position):
            for name, value in logs.items():
                tf.summary.scalar(f"evaluation_{name}", value)
        writer.flush()
        values = "  ".join(f"{name} {value:.4f}" for name, value in sorted(logs.items()))
        print(f"evaluation after {position} updates: {values}", flush=True)
        history.on_epoch_end(position, logs)
    writer.close()
    return history


def _new(directory: str) -> Iterator[str]:
    """Yields each checkpoint once, oldest first, waiting for more until the training has ended."""
    began, seen = time.time(), set()
    changed, last = time.monotonic(), files.status(directory)
    limit = joining.start_timeout()
    running = False  # seen to be alive by us: what a status says may be left over from an earlier training
    while True:
        state, when = files.status(directory)
        if (state, when) != last:
            changed, last, running = time.monotonic(), (state, when), True
        fresh = running or when >= began
        for path in files.checkpoints(directory) if fresh else ():
            if path not in seen:
                seen.add(path)
                yield path
        if (state, when) != files.status(directory):
            continue
        silent = time.monotonic() - changed
        if state == "failed" and fresh:
            raise Gone(f"the training in {directory} has failed")
        if state == "done" and fresh:
            return
        if not fresh and silent > limit:
            found = f"the last one is {state}" if state else "there was none"
            raise Gone(f"no training has begun in {directory} within {limit:g} s; {found}")
        if fresh and silent > GRACE:
            raise Gone(f"the training in {directory} has given no sign of life for {GRACE:g} s")
        time.sleep(_LOOK)


def checkpoint_of(callbacks) -> Checkpoint:
    """The checkpoint among callbacks, whose directory an evaluator follows.

    Raises:
      ValueError: there is none.
    """
    found = [c for c in callbacks if isinstance(c, Checkpoint)]
    if not found:
        raise ValueError(
            "an evaluator follows checkpoints: give fit callbacks=[tf2dist.Checkpoint(directory)], the directory being "
            "the same in every task"
        )
    return found[0]
