"""A coordinator, its server and a worker in one process: functions that fail, that never end, that nobody waits for.

python -m tests.programs.cancelled ours|theirs

It prints what became of the function that was scheduled after one that has failed, and by us also after one that never
ends, and after one that has failed when nobody waited for it; when the worker was idle, and what cancels other calls.
"""

import sys
import time

import tensorflow as tf
from tensorflow.python.eager import cancellation

from tests.programs.in_process import make_strategy
from tf2dist.compat.scheduled_functions import abandon, cancel_scheduled, idle_workers

whose = sys.argv[1]
coordinator = tf.distribute.coordinator.ClusterCoordinator(make_strategy(workers=1))


@tf.function
def one():
    return tf.constant(1)


@tf.function
def fails():
    tf.debugging.assert_equal(tf.random.uniform([]), 2.0, "too small")


@tf.function
def never_ends():
    turns = tf.constant(0)
    while turns >= 0:
        turns = tf.maximum(turns, tf.cast(tf.random.uniform([]), tf.int32))
    return turns


@tf.function
def takes_a_while():
    turns = tf.constant(0)
    while turns < 200_000:
        turns += 1
    return turns


def attempt(function):
    try:
        return function()
    except tf.errors.OpError as error:
        return type(error).__name__


print(attempt(coordinator.schedule(fails).fetch))
time.sleep(1)  # the coordinator has heard of it, too
if whose == "ours":
    print(cancel_scheduled(coordinator, 60.0))
print(attempt(lambda: int(coordinator.schedule(one).fetch())))
if whose == "ours":
    coordinator.schedule(never_ends)
    time.sleep(1)
    print(cancellation.context(), cancel_scheduled(coordinator, 60.0))  # what is called here is not cancelled with it
    first, second = coordinator.schedule(never_ends), coordinator.schedule(never_ends)  # one runs, one waits
    time.sleep(1)
    print(idle_workers(coordinator), not coordinator.done(), cancel_scheduled(coordinator, 60.0))
    print(attempt(first.fetch), attempt(second.fetch))
    print(attempt(lambda: int(coordinator.schedule(one).fetch())))
    first, second = coordinator.schedule(takes_a_while), coordinator.schedule(fails)
    abandon(coordinator, second)
    print(attempt(second.fetch), int(first.fetch()), attempt(lambda: int(coordinator.schedule(one).fetch())))
    while not idle_workers(coordinator):
        time.sleep(0.01)
    print(idle_workers(coordinator))
