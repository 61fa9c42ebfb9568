"""Run in every process of a parameter server job: maps and reduces while the test stops and kills workers.

python -m tests.programs.mapreduce OUT

It makes a file OUT/NAME and waits for OUT/NAME.done where the test has to do something.
"""

import functools
import json
import operator
import pathlib
import sys
import time

import tf2dist

strategy = tf2dist.join("ps")
out = pathlib.Path(sys.argv[1])

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from tf2dist.runtime import session  # noqa: E402
from trainers.common import threefry  # noqa: E402

REDUCERS = {"sum": operator.add, "least": np.minimum, "in order": lambda a, b: np.concatenate([a, b])}
SAMPLES, SIZE = 2**31, 2**25  # two seconds of one core, in 64 shards
results = {}


def ask(name):
    (out / name).touch()
    wait((out / f"{name}.done").exists)


def wait(until):
    deadline = time.monotonic() + 120
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(numbers=st.lists(st.integers(-99, 99), min_size=1, max_size=40), cuts=st.lists(st.integers(0, 40), max_size=9),
       name=st.sampled_from(sorted(REDUCERS)))  # fmt: skip
def right(numbers, cuts, name):
    slices = np.split(np.array(numbers, np.int64), sorted(min(cut, len(numbers)) for cut in cuts))
    found = tf2dist.map_reduce(lambda x: tf.concat([x, [1]], 0) ** 2, slices, _reduce(name), strategy=strategy)
    expected = functools.reduce(_reduce(name), (np.append(s, 1) ** 2 for s in slices))
    np.testing.assert_array_equal(found, expected)
    results["slicings"] = results.get("slicings", 0) + 1


def _reduce(name):
    if name == "in order":
        return REDUCERS[name]
    return lambda a, b: REDUCERS[name](a.sum(keepdims=True), b.sum(keepdims=True))


def inside(name, at=None):
    """The count of a long run; asks the test for something when `at` shards are done."""
    shards = [(first, SIZE) for first in range(0, SAMPLES, SIZE)]
    progress = None if at is None else lambda done: ask(name) if done == at else None
    began = time.monotonic()
    found = tf2dist.map_reduce(
        lambda shard: threefry.inside(1, *shard), shards, operator.add, strategy=strategy, progress=progress
    )
    results[name] = {"inside": int(found), "seconds": time.monotonic() - began}


def each_killed():
    """Each worker is killed once, the second one when the first one is back and connected."""

    def progress(done):
        if done == 5:
            ask("first_killed")
            wait(session.current().lost_tasks)
            (out / "first_noticed").touch()
        if done == 15:
            wait(lambda: not session.current().lost_tasks())
        if done == 25:
            wait(lambda: not session.current().unused_workers())
            ask("second_killed")

    shards = [(first, SIZE) for first in range(0, SAMPLES, SIZE)]
    found = tf2dist.map_reduce(
        lambda shard: threefry.inside(1, *shard), shards, operator.add, strategy=strategy, progress=progress
    )
    results["each killed"] = {"inside": int(found)}


def failing():
    def fn(x):
        tf.debugging.assert_less(x, np.int64(5), "too large")
        return x

    try:
        tf2dist.map_reduce(fn, range(9), operator.add, strategy=strategy)
    except tf2dist.ShardError as error:
        results["error"] = [error.shard, str(error)]
    results["after the error"] = int(tf2dist.map_reduce(fn, range(5), operator.add, strategy=strategy))


right()
failing()
inside("whole")
inside("stopped", at=5)
ask("going_on")
inside("killed", at=5)
right()
ask("restarted")
each_killed()
right()
(out / "result.json").write_text(json.dumps(results))
