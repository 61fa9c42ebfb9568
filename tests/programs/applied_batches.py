"""Run in every process of a parameter server job: trains models whose weights say which batches were applied.

python -m tests.programs.applied_batches OUT KILLS SEED MODE...

For each mode worker 1 is killed, or stopped for a while, KILLS times while it makes updates. Each update adds 1 to its
batch's row of two variables, or to their momentum, which never fades and moves the variables once an update.
"""

import json
import os
import pathlib
import random
import signal
import sys
import threading
import time

import tf2dist

strategy = tf2dist.join("ps")
out, kills, seed, modes = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from tf2dist.compat import scheduled_functions  # noqa: E402
from tf2dist.execution import steps_per_execution  # noqa: E402
from tf2dist.parameter_server.asynchronous import AsynchronousDispatcher  # noqa: E402
from tf2dist.system import linux  # noqa: E402
from tf2dist.training import checkpoint_files  # noqa: E402

BATCHES, PER_EPOCH, WIDE = 16, 20, 20_000  # so wide a variable is sent by itself
SYNC = tf2dist.ParameterServer("sync")
AVERAGED = {"use_ema": True, "ema_momentum": 0.0, "ema_overwrite_frequency": 1}  # the average is the last value


class Counts(keras.layers.Layer):
    """Looks rows up by a product, so that a gradient is as large as the variable."""

    def __init__(self, rows, width, embeddings_initializer, embeddings_constraint=None):
        super().__init__()
        self._shape, self._initializer, self._constraint = (rows, width), embeddings_initializer, embeddings_constraint

    def build(self, input_shape):
        self.table = self.add_weight(shape=self._shape, initializer=self._initializer, constraint=self._constraint)

    def call(self, inputs):
        return keras.ops.matmul(keras.ops.one_hot(inputs, self._shape[0]), self.table)


def slow_one(start, turns=60):
    """1.0, after a while in which a server has begun an update and not ended it."""
    square = keras.ops.eye(300) * keras.ops.cast(start, "float32")
    for _ in range(turns):  # a loop in the graph would be cancelled with the worker
        square = 0.0 * keras.ops.matmul(square, square)
    return keras.ops.cond(square[0, 0] < 1.0, lambda: 1.0 + square[0, 0], lambda: square[0, 0])


class Slow(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return slow_one(step)


def slow_constraint(table):
    """The same table; what is written to it meanwhile is overwritten."""
    return table * slow_one(table[0, 0], turns=10)


def minus_sum(_, outputs):
    return -keras.ops.sum(outputs, axis=-1)


def scaled(optimizer):
    """Loss scaling whose scale doubles at every fourth update."""
    return keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0**-100, dynamic_growth_steps=4)


class OwnStep(keras.Model):
    """Applies its gradients itself; each step takes a while."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True)) * slow_one(x[0])
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def build(
    momentum=0.0,
    width=1,
    layer=Counts,
    rate=lambda: 1.0,
    constraint=None,
    wrap=lambda o: o,
    kind=keras.Model,
    **options,
):
    """Both variables are rows of zeros, on different servers if there are several."""
    batches = keras.Input((), dtype="int64")
    made = {"embeddings_initializer": "zeros", "embeddings_constraint": constraint}
    total = keras.layers.Add()([layer(BATCHES, width, **made)(batches) for _ in range(2)])
    model = kind(batches, total)
    model.compile(wrap(keras.optimizers.SGD(rate(), momentum=momentum, **options)), minus_sum)
    return model


MODES = {
    "async": {},
    "momentum": {"momentum": 1.0},
    "wide": {"width": WIDE},
    "wide momentum": {"width": WIDE, "momentum": 1.0},
    "slow": {"rate": Slow},
    "slow momentum": {"rate": Slow, "momentum": 1.0},
    "constraint": {"constraint": slow_constraint, "epochs": 20},
    "wide average": {"width": WIDE, "epochs": 20, **AVERAGED},
    "wide scaled": {"width": WIDE, "wrap": scaled, "epochs": 20},
    "table": {"layer": keras.layers.Embedding},
    "local steps": {"options": tf2dist.ParameterServer(local_steps=5)},
    "own step": {"kind": OwnStep, "in_one": 10},
    "given back": {"momentum": 1.0, "limit": 0.0},
    "stopped": {"stops": True},
    "slow stopped": {"stops": True, "rate": Slow, "momentum": 1.0},
    "stopped, local steps": {"stops": True, "options": tf2dist.ParameterServer(local_steps=5)},
    "dataset": {"dataset": True, "momentum": 1.0},
    "dataset, local steps": {"dataset": True, "options": tf2dist.ParameterServer(local_steps=5)},
    "dataset, stopped": {"dataset": True, "stops": True},
    "sync": {"options": SYNC, "momentum": 1.0},
    "wide sync": {"options": SYNC, "momentum": 1.0, "width": WIDE},
    "backup": {"options": tf2dist.ParameterServer("sync", backup_workers=1), "momentum": 1.0},
}


def worker():
    """The pid of worker 1; None while there is none."""
    for pid in linux.descendants(os.getppid()):
        try:
            if pathlib.Path(f"/proc/{pid}/comm").read_text() == "worker 1\n":
                return pid
        except OSError:
            continue
    return None


taken = {}  # when each worker was given its last execution


def note_executions():
    get = scheduled_functions._ObservedQueue.get

    def get_and_note(self, timeout=None, tag=None):
        closure = get(self, timeout, tag)
        if closure is not None:
            taken[tag] = time.monotonic()
        return closure

    scheduled_functions._ObservedQueue.get = get_and_note


class Kills(keras.callbacks.Callback):
    """Kills worker 1 at random moments; notes after each epoch what is counted and applied, and ends the training.

    Or stops it, until others have ended some epochs without it, in which it sees none of what has happened since.
    """

    def __init__(self, momentum, epochs, stops, together, within):
        super().__init__()
        self._stops, self._together, self._within = stops, together, within
        self._epochs = epochs  # at least
        self._thread = threading.Thread(target=self._kill, daemon=True)
        self._counting = momentum
        self.killed, self.notes = 0, []

    def on_train_begin(self, logs=None):
        self._thread.start()

    def on_epoch_end(self, epoch, logs=None):
        self.notes.append(self.now(PER_EPOCH * (epoch + 1)))
        self.model.stop_training = epoch + 1 >= self._epochs and not self._thread.is_alive()

    def now(self, steps):
        """Steps that were made, updates that are counted, and what is in the variables."""
        counts, weights = self._counts(), [np.asarray(v.value, np.float64) for v in self.model.trainable_variables]
        return {
            "steps": steps,
            "updates": tf2dist.updates(self.model),
            "batches": [c[:, 0].tolist() for c in counts],
            "weights": [float(w[:, 0].sum()) for w in weights],
            "whole": all((v == v[:, :1]).all() for v in (*counts, *weights)),
            "killed": self.killed,
        }

    def _counts(self):
        """How many times each batch was applied to each variable."""
        if not self._counting:
            return [np.asarray(v.value) for v in self.model.trainable_variables]
        return [np.asarray(v.value) for v in self.model.optimizer.momentums]

    def _by_worker_1(self):
        """Updates to which worker 1 has given a slice, where workers make them together."""
        return float(self._counts()[0][1::2, 0].sum())

    def _kill(self):
        draw, last = random.Random(seed), None
        while self.killed < kills:
            # A worker that is stopped while functions are made is lost after the minute that TensorFlow waits for it.
            while self._stops and len(self.notes) < 2:
                time.sleep(0.01)
            while (pid := worker()) in (None, last):
                time.sleep(0.02)
            if self._together:
                before = self._by_worker_1()
                while self._by_worker_1() < before + 3:  # it makes updates
                    time.sleep(0.01)
            else:
                for _ in range(2):  # it has an execution, which is not its first one: in that it is told of functions
                    seen = time.monotonic()
                    while taken.get(1, 0.0) < seen:
                        time.sleep(0.01)
            time.sleep(draw.random() * self._within)
            if self._stops:
                os.kill(pid, signal.SIGSTOP)
                ended = len(self.notes)
                while len(self.notes) < ended + 5:
                    time.sleep(0.01)
                os.kill(pid, signal.SIGCONT)
                self.killed += 1
            else:
                os.kill(pid, signal.SIGKILL)
                self.killed, last = self.killed + 1, pid
            time.sleep(0.5)  # its last update is over


given_back = [0]  # steps, by executions that took too long


def note_results():
    next_result = AsynchronousDispatcher.next_result

    def next_and_note(self):
        result = next_result(self)
        given_back[0] += result.given_back
        return result

    AsynchronousDispatcher.next_result = next_and_note


def run(
    mode, options=None, epochs=1, stops=False, dataset=False, in_one=None, limit=steps_per_execution._LIMIT_TARGETS,
    **made,
):  # fmt: skip
    steps_per_execution._LIMIT_TARGETS, given_back[0] = limit, 0
    options = options or tf2dist.ParameterServer()
    with strategy.scope():
        model = build(**made)
    together = options.update == "sync"
    noted, directory = (
        Kills(bool(made.get("momentum")), epochs, stops, together, 0.2 * (in_one or 1)),
        out / mode.replace(" ", "-"),
    )
    size = 2 if options == SYNC else 1  # an update's slices come from different batches when a worker was lost
    rows = np.arange(size * BATCHES) % BATCHES
    data = rows, np.zeros(len(rows), np.float32)
    arguments = {} if dataset else {"batch_size": size, "shuffle": False}
    history = tf2dist.fit(
        model, tf.data.Dataset.from_tensor_slices(data).batch(size) if dataset else data, **arguments, verbose=0,
        epochs=10_000, steps_per_epoch=PER_EPOCH, steps_per_execution=in_one, parameter_server=options,
        callbacks=[noted, tf2dist.Checkpoint(directory, every_steps=PER_EPOCH * 3 // 2, keep=10_000)],
    )  # fmt: skip
    notes = [*noted.notes, noted.now(PER_EPOCH * len(history.history["loss"]))]
    for path in checkpoint_files.list_checkpoints(str(directory)):
        progress = checkpoint_files.read_checkpoint(model, path)
        notes.append(noted.now(progress.global_step))
    momentum = bool(made.get("momentum"))
    return {"momentum": momentum, "killed": noted.killed, "notes": notes, "given back": given_back[0]}


note_executions()
note_results()
results = {mode: run(mode, **MODES[mode]) for mode in modes}
(out / "result.json").write_text(json.dumps(results))
