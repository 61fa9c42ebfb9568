"""A coordinator and its server in one process: what it leaves there is saved as if it were gone.

python -m tests.programs.emergency DIRECTORY

It prints, as JSON, what has become of it in each of several circumstances.
"""

import json
import logging
import os
import sys
from types import SimpleNamespace

import numpy as np
import tensorflow as tf

import tf2dist
from tests.models import classifier, data
from tests.programs.in_process import addresses, make_strategy
from tf2dist import Cluster, Task
from tf2dist.compat.eager_service import ContextLostError, LeftContext, context_id, drop, leave
from tf2dist.execution.dispatcher_interface import CountsOnServers
from tf2dist.runtime import emergency_checkpoint, session
from tf2dist.runtime.emergency_checkpoint import KeptTraining, cpu_of
from tf2dist.training import emergency_plan
from tf2dist.training.checkpoint_state import TrainingState

PER_EPOCH = 10
directory = sys.argv[1]
strategy = make_strategy(workers=1)
address = addresses["ps 0"]
found = {}


def attempt(function, *args, **kwargs):
    try:
        return function(*args, **kwargs)
    except ContextLostError as error:
        return str(error)


# What the service does by itself.
left = LeftContext(address, context_id(), cpu_of(0), 5.0)
with strategy.scope():
    number = tf.Variable([1.5, 2.5])
leave("numbers", cpu_of(0), [number.handle, number.handle])
leave("numbers", cpu_of(0), [number.handle])
(handle,) = left.find("numbers", [tf.resource])
number.assign_add([1.0, 1.0])
found["read"] = left.fetch(left.read(handle, tf.float32), tf.float32).tolist()
left.assign(handle, np.array([7.0, 8.0], np.float32))
found["assigned"] = number.numpy().tolist()
found["cannot write"] = attempt(
    left.save, "/proc/numbers", ["a"], [left.read(handle, tf.float32)], [tf.float32], seconds=5.0
)
drop("numbers", cpu_of(0))
drop("nothing", cpu_of(0))
impatient = LeftContext(address, context_id(), cpu_of(0), 0.5)
found["dropped"] = attempt(impatient.find, "numbers", [tf.resource])
found["another context"] = attempt(LeftContext(address, 12345, cpu_of(0), 5.0).find, "numbers", [tf.resource])
found["no server"] = attempt(LeftContext("127.0.0.1:1", context_id(), cpu_of(0), 5.0).find, "numbers", [tf.resource])
assert number.numpy().tolist() == [7.0, 8.0]  # it lives until here

# A training.
with strategy.scope():
    model = classifier(tf.keras.optimizers.Adam(0.02), tf.keras.layers.Dropout(0.3, seed=3))
    x, y = data()
    model(x[:2], training=True)
    model.optimizer.build(model.trainable_variables)
    updates, under_way, tokens = (tf.Variable(tf.zeros(shape, tf.int64)) for shape in ([], [], [3]))
state = TrainingState(model, strategy, PER_EPOCH, [np.zeros(()), np.zeros((2, 2))], lambda: int(updates))
counts = CountsOnServers(updates, under_way, tokens, [model.optimizer.iterations.value])
under_way.assign(2)  # that never end
cluster = Cluster({"ps": (address,), "chief": ("c:1",), "worker": ("w:1",)}, Task("ps", 0))
kept = KeptTraining(cluster)
session.current().servers = SimpleNamespace(note_kept=kept.note, parameter_servers=lambda: {Task("ps", 0): 1})
emergency_checkpoint._SETTLE_SECONDS, emergency_checkpoint._STILL_SECONDS = 1.0, 0.05
said = []
logging.getLogger("tf2dist").addHandler(
    SimpleNamespace(level=0, handle=lambda record: said.append(record.getMessage()))
)
logging.getLogger("tf2dist").setLevel(logging.INFO)
tf2dist_files = tf2dist.Checkpoint(directory)
tf2dist_files.begin(state, 0, 5)
SUMS = [np.array(3.0), np.array([[1.0, 2.0], [3.0, 4.0]])]


def saved(name, step, change=lambda plan: None, **options):
    """Saves, at that step of a training that is in the middle of its first epoch, after `change`."""
    said.clear()
    before = {*os.listdir(directory)}
    updates.assign(step)
    with emergency_plan.announced([tf2dist_files], state, counts, sums_make_logs=True, **options) as plan:
        plan.begin_epoch(0, 0, [np.zeros(()), np.zeros((2, 2))], stops=False)
        plan.reach(min(step, 6), SUMS, stops=False)
        change(plan)
        kept.save()
    new = sorted(each for each in {*os.listdir(directory)} - before if not each.startswith("."))
    result = {"said": said.copy(), "new": new, "left": [n for n in os.listdir(directory) if n.startswith(".")]}
    if os.path.isdir(path := os.path.join(directory, f"checkpoint-{step}")):
        with open(os.path.join(path, "state.json")) as file:
            result["state"] = json.load(file)
    found[name] = result
    return result


model.optimizer.iterations.assign(7)
saved("in an epoch", 7, lambda plan: model.optimizer.iterations.assign(5))  # as a callback may
found["tokens"] = tokens.numpy().tolist()
found["seeds"] = [np.asarray(v).tolist() for v in emergency_plan.seed_states(model)]
with tf.device("cpu:0"):
    again = classifier(tf.keras.optimizers.Adam(0.02), tf.keras.layers.Dropout(0.3, seed=3))
again(x[:2])
found["step"] = tf2dist.load_checkpoint(again, directory)
found["equal"] = all(np.array_equal(a, b) for a, b in zip(model.weights, again.weights, strict=True))
found["iterations"] = int(again.optimizer.iterations)
model.optimizer.learning_rate = 0.01  # as a callback does, after the last update
saved("once more", 7)
found["learning rate"] = [tf2dist.load_checkpoint(again, directory), float(again.optimizer.learning_rate.numpy())]
saved("at an end", 10, lambda plan: plan.reach(10, SUMS, stops=True))
saved("at a beginning", 10, lambda plan: plan.begin_epoch(1, 10, SUMS, stops=False))  # in the place of that one
saved("at another one", 20, lambda plan: plan.begin_epoch(2, 20, SUMS, stops=False))
saved("between", 9, lambda plan: plan.end_epoch())
saved("of another epoch", 12)
saved("under way", 9, lambda plan: under_way.assign(3))
under_way.assign(2)
saved("not seen", 9, lambda plan: os.truncate(os.path.join(directory, emergency_plan.JOURNAL), 30))
saved("not there any more", 9, lambda plan: kept.note(12345, 0))
saved("nothing", 9, lambda plan: kept.note(0, 0))
try:
    with emergency_plan.announced([tf2dist_files], state, counts, sums_make_logs=True):
        raise ValueError
except ValueError:
    found["after an error"] = [kept.exists, attempt(impatient.find, emergency_checkpoint.HANDLES, [tf.resource])]
print(json.dumps(found))
