"""Run in every process of a parameter server job: a server stops answering, and is told about a function, or at work.

python -m tests.programs.frozen OUT added|removed|seeded ours|theirs
"""

import pathlib
import sys
import threading
import time

import tf2dist

strategy = tf2dist.join("ps")
out, change, whose = pathlib.Path(sys.argv[1]), *sys.argv[2:]

import tensorflow as tf  # noqa: E402
from tensorflow.python import _pywrap_tfe, pywrap_tfe  # noqa: E402
from tensorflow.python.eager import context  # noqa: E402

if whose == "theirs":
    del context.context().add_c_function, context.context().remove_function
    pywrap_tfe.TFE_ContextClearCaches = _pywrap_tfe.TFE_ContextClearCaches
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)


def function():
    @tf.function
    def one():
        return tf.constant(1)

    return one


def value(function):
    coordinator.schedule(function)
    remote = coordinator.schedule(function)
    coordinator.join()
    return remote.fetch()


def others():
    while not changed:
        time.sleep(1)
        (out / "others_run").write_text("")


changed = False
known = function()
assert value(known) == 1
(out / "under_way").write_text("")
while not (out / "stopped").exists():
    time.sleep(0.02)
at_work = [coordinator.schedule(known) for _ in range(2)] if change == "seeded" else []
time.sleep(1)  # a worker's thread has begun it
threading.Thread(target=others).start()
if change == "removed":
    del known
elif change == "seeded":
    tf.random.set_seed(1)
else:
    known = function()
    known.get_concrete_function()
changed = True
assert value(function() if change == "removed" else known) == 1
