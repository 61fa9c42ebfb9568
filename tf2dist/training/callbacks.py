"""Keras callbacks around our loop."""

# Keras ships no types.
# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUntypedBaseClass=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false
# pyright: reportMissingTypeStubs=false, reportUntypedClassDecorator=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf2dist.compat.profiling import profiles_batches
from tf2dist.errors import TrainingError, UsageError
from tf2dist.runtime import collectives, peer_arguments

_log = logging.getLogger("tf2dist")

_ORBAX = tuple(c for c in [getattr(keras.callbacks, "OrbaxCheckpoint", None)] if c is not None)  # since Keras 3.14
_BY_SAVE_FREQ = (  # "epoch", or so many batches
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.BackupAndRestore,
    *_ORBAX,
)
# They write files, which only one process of a job should do.
_WRITERS = (
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.TensorBoard,
    keras.callbacks.CSVLogger,
    keras.callbacks.BackupAndRestore,
    keras.callbacks.RemoteMonitor,
    *_ORBAX,
)


# What they do at the end leaves the weights as they are.
_LEAVE_WEIGHTS = (
    *_WRITERS,
    keras.callbacks.History,
    keras.callbacks.ProgbarLogger,
    keras.callbacks.ReduceLROnPlateau,
)
_BATCH_HOOKS = {
    "training": ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end"),
    "evaluation": ("on_test_batch_begin", "on_test_batch_end"),
}


class ExecutionCallback(keras.callbacks.Callback):
    """A callback whose hooks for a batch are to be called once an execution, not once a batch.

    An execution is one call of a `tf.function` that takes many steps; a hook gets the number of its first batch at the
    beginning and of its last at the end. For callbacks that look at the time or write a line now and then: others slow
    training down to one step an execution.
    """


def as_list(callbacks: Any) -> list[keras.callbacks.Callback]:
    """Callbacks as Keras takes them, one, many, None or a `CallbackList`, as a list.

    Raises:
      ValueError: one of them is no Keras callback.
    """
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    found = tf.nest.flatten(callbacks) if callbacks else []
    wrong = [c for c in found if not isinstance(c, keras.callbacks.Callback)]
    if wrong:
        raise UsageError(f"callbacks must be keras.callbacks.Callback objects, found {type(wrong[0]).__name__}")
    return found


def make_callback_list(
    model: keras.Model,
    callbacks: Sequence[keras.callbacks.Callback],
    *,
    verbose: int | str = 0,
    epochs: int = 1,
    steps: int | None,
    add_history: bool = False,
    last: type | tuple[type, ...] = (),
) -> keras.callbacks.CallbackList:
    """The callbacks that run in this process, and a progress bar if `verbose`.

    Args:
      verbose: 0, 1, 2 or "auto", which is 1 on a terminal and 0 elsewhere.
      last: callbacks of these classes come after all others.
    """
    verbose = int(sys.stdout is not None and sys.stdout.isatty()) if verbose == "auto" else int(verbose)
    rank = collectives.peers(model.distribute_strategy)[1]
    mine = [c for c in callbacks if rank == 0 or not isinstance(c, _WRITERS)]
    mine.sort(key=lambda c: isinstance(c, last))  # which is a stable sort
    add_progbar = bool(verbose) and rank == 0
    return keras.callbacks.CallbackList(
        mine, add_history, add_progbar, model, verbose=verbose, epochs=epochs, steps=steps
    )


class PeersAlike(keras.callbacks.Callback):
    """Ends the training of all peers after the epoch in which a callback of one of them has asked for it.

    Peers that go by a clock, or by a file on a disk that they share, see it in different epochs; the others would wait
    for ever in the next one. Peers whose learning rates differ, since a callback of one has changed it, would go
    on with other weights each. It comes after the user's callbacks, and before those that save.

    Args:
      strategy: that of the job.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        super().__init__()
        self._strategy = strategy

    @classmethod
    def after(
        cls, callbacks: Sequence[keras.callbacks.Callback], strategy: tf.distribute.Strategy
    ) -> list[keras.callbacks.Callback]:
        """The callbacks, and this one where the job has several peers."""
        return [*callbacks, *([cls(strategy)] if collectives.peers(strategy)[0] > 1 else [])]

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Exchanges whether the training is to stop, and with which learning rate it goes on.

        Raises:
          TrainingError: in all peers, since their learning rates differ.
        """
        if found := peer_arguments.difference(self._strategy, {"learning_rate": learning_rate_of(self.model)}):
            raise TrainingError(
                f"after epoch {epoch + 1} the learning rate is {found[1]}; a callback that changes it has to run in "
                "all peers of the job"
            )
        self.model.stop_training = _any_peer(self._strategy, bool(self.model.stop_training))


def learning_rate_of(model: keras.Model) -> str | None:
    """The optimizer's learning rate as it is now, in words; None of one that has several."""
    rate = getattr(model.optimizer, "learning_rate", None)
    return None if rate is None else f"{float(keras.ops.convert_to_numpy(rate)):.7g}"


def checkpoints_of(callbacks: Sequence[keras.callbacks.Callback], kinds: Sequence[type]) -> str:
    """Names the callbacks of these kinds, which peers must have alike, since they exchange something in them."""
    return ", ".join(sorted(kind.__name__ for kind in kinds for c in callbacks if isinstance(c, kind))) or "none"


def may_change_weights_at_the_end(callbacks: Sequence[keras.callbacks.Callback]) -> bool:
    """May one of them give weights other values in `on_train_end`, as `EarlyStopping` does with the best ones?"""

    def may(callback: keras.callbacks.Callback) -> bool:
        if isinstance(callback, keras.callbacks.EarlyStopping):
            return callback.restore_best_weights
        if isinstance(callback, _LEAVE_WEIGHTS):
            return False
        hook = callback.on_train_end
        return getattr(hook, "__func__", None) is not keras.callbacks.Callback.on_train_end

    return any(map(may, callbacks))


def history_of(callbacks: keras.callbacks.CallbackList) -> keras.callbacks.History:
    """The history that was added to these callbacks."""
    return next(c for c in callbacks.callbacks if isinstance(c, keras.callbacks.History))


def histories(epoch_logs: Mapping[int, Mapping[str, Any]]) -> dict[str, list[Any]]:
    """What `History` has of epochs with these logs, by their numbers."""
    found: dict[str, list[Any]] = {}
    for _, logs in sorted(epoch_logs.items()):
        for name, value in logs.items():
            found.setdefault(name, []).append(value)
    return found


def needs_batch_logs(
    strategy: tf.distribute.Strategy, callbacks: keras.callbacks.CallbackList, what: str = "training"
) -> bool:
    """Does any callback look at the logs at the end of batches of training or evaluation?

    Computing metrics for nobody costs time. All peers of a job get the same answer: what metrics measure is in all.
    """
    hooks = [hook for hook in _BATCH_HOOKS[what] if hook.endswith("_end")]
    wanted = any(_overrides(callback, hook) for callback in callbacks.callbacks for hook in hooks)
    return _any_peer(strategy, wanted)


def _overrides(callback: keras.callbacks.Callback, hook: str) -> bool:
    """In its class or, as `LambdaCallback` does, as an attribute of its own."""
    method = getattr(callback, hook)
    return getattr(method, "__func__", method) is not getattr(keras.callbacks.Callback, hook)


def need_every_batch(
    strategy: tf.distribute.Strategy, callbacks: keras.callbacks.CallbackList, what: str = "training"
) -> bool:
    """Is a hook to be called for every batch of training or evaluation, so that an execution can take one step only?

    That is so for hooks of the user's, and for those of Keras's own that go by the number of batches: `save_freq=100`,
    `TensorBoard(update_freq="batch")` or with `profile_batch`. All peers of a job get the same answer.
    """
    names = [type(c).__name__ for c in callbacks.callbacks if _needs_every_batch(c, _BATCH_HOOKS[what])]
    if names:
        _log.info(
            "%s acts on every batch: %s takes one step an execution (unless it is a tf2dist.ExecutionCallback)",
            " and ".join(names), what,
        )  # fmt: skip
    return _any_peer(strategy, bool(names))


def _any_peer(strategy: tf.distribute.Strategy, wanted: bool) -> bool:
    return b"yes" in collectives.all_gather(strategy, b"yes" if wanted else b"no")


def _needs_every_batch(callback: keras.callbacks.Callback, hooks: Sequence[str]) -> bool:
    if isinstance(callback, ExecutionCallback):
        return False
    if isinstance(callback, keras.callbacks.TensorBoard) and (
        callback.update_freq != "epoch" or profiles_batches(callback)
    ):
        return True
    if isinstance(callback, _BY_SAVE_FREQ) and callback.save_freq != "epoch":
        return True
    own = [getattr(callback, hook) for hook in hooks if _overrides(callback, hook)]
    return any(not getattr(hook, "__module__", "").startswith("keras.") for hook in own)


def has_batch_hooks(callbacks: keras.callbacks.CallbackList) -> bool:
    """Does any callback but the progress bar do something at the beginning or end of a batch?"""
    others = [c for c in callbacks.callbacks if not isinstance(c, keras.callbacks.ProgbarLogger)]
    return any(_overrides(callback, hook) for callback in others for hook in _BATCH_HOOKS["training"])


def act_on_validation(strategy: tf.distribute.Strategy, callbacks: keras.callbacks.CallbackList) -> bool:
    """Does a callback do something at the beginning of an evaluation, so that its end must come too?

    `SwapEMAWeights` has the model hold averages in between. All peers of a job get the same answer.
    """
    others = [c for c in callbacks.callbacks if not isinstance(c, _LEAVE_WEIGHTS)]
    return _any_peer(strategy, any(_overrides(callback, "on_test_begin") for callback in others))


def includes(callbacks: Sequence[keras.callbacks.Callback], kind: type) -> bool:
    """Is one of the callbacks of this kind?"""
    return any(isinstance(c, kind) for c in callbacks)
