"""map_reduce in one process, and the task scheduler with devices that die or are late."""

import contextlib
import functools
import importlib
import itertools
import operator
import random
import threading
import time
from collections import deque

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tf2dist
from tf2dist.errors import ShardError
from tf2dist.map_reduce import task_scheduler
from tf2dist.map_reduce.map_reduce import map_reduce
from tf2dist.map_reduce.reduction_tree import ReductionTree
from tf2dist.map_reduce.task_scheduler import Task, TaskScheduler
from tf2dist.runtime import session

REDUCERS = {
    "sum": operator.add,
    "least": np.minimum,
    "xor": operator.xor,
    "in order": lambda a, b: np.concatenate([np.atleast_1d(a), np.atleast_1d(b)]),
}


@pytest.fixture(scope="module")
def strategies(tf):
    import tf2dist

    return [tf2dist.make_strategy("one"), *(tf2dist.make_strategy("mirrored", replicas=n) for n in (2, 3, 4))]


@st.composite
def slicings(draw):
    """Integers, in slices of any sizes, none among them."""
    numbers = draw(st.lists(st.integers(-1000, 1000), min_size=1, max_size=60))
    cuts = sorted(draw(st.lists(st.integers(0, len(numbers)), max_size=12)))
    return [numbers[a:b] for a, b in zip([0, *cuts], [*cuts, len(numbers)], strict=True)]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(slices=slicings(), name=st.sampled_from(sorted(REDUCERS)), data=st.data())
@pytest.mark.slow
def test_any_slicing_any_reducer_any_devices(tf, strategies, slices, name, data):
    strategy = data.draw(st.sampled_from(strategies))
    reduce = REDUCERS[name]

    def fn(x):
        if name == "in order":
            return 3 * x
        x = tf.concat([x, [7]], 0)
        return tf.reduce_min(x) if name == "least" else tf.reduce_sum(x)

    plain = [np.array(s, np.int64) for s in slices]
    mapped = {
        "in order": lambda x: 3 * x,
        "least": lambda x: min([*x, 7]),
    }.get(name, lambda x: np.int64(x.sum() + 7))
    done = []
    found = map_reduce(fn, (p for p in plain), reduce, strategy=strategy, progress=done.append)
    np.testing.assert_array_equal(found, functools.reduce(reduce, map(mapped, plain)))
    assert done == list(range(1, len(plain) + 1))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(order=st.integers(1, 40).flatmap(lambda n: st.permutations(range(n))))
def test_the_tree_is_the_same_in_any_order(tf, order):
    def tree(order):
        tree = ReductionTree(lambda a, b: f"({a}{b})")
        for number in order:
            tree.add(number, chr(48 + number))
        return tree.result()

    found = tree(order)
    assert found == tree(sorted(order))
    assert found.replace("(", "").replace(")", "") == "".join(chr(48 + n) for n in range(len(order)))


def test_the_tree_holds_few_results(tf):
    tree = ReductionTree(operator.add)
    for number in range(1000):
        tree.add(number, number)
        assert len(tree._pending) <= 10
    assert tree.result() == 499500


def test_floats_have_the_same_bits_for_any_number_of_devices(tf, strategies):
    numbers = np.random.default_rng(1).normal(size=201) * 10.0 ** np.arange(201)
    found = {map_reduce(tf.square, numbers, operator.add, strategy=s).tobytes() for s in strategies}
    assert len(found) == 1


def test_structures_and_dtypes(tf, strategies):
    shards = [({"a": 1, "b": [1.0, 2.0]}, "x"), ({"a": 2, "b": [3.0]}, "yz")]

    def fn(shard):
        numbers, text = shard
        assert (numbers["a"].dtype, numbers["b"].dtype, text.dtype) == (tf.int64, tf.float64, tf.string)
        return {"sum": tf.reduce_sum(numbers["b"]), "text": text, "both": (numbers["a"], numbers["a"] > 1)}

    def reduce(a, b):
        both = a["both"][0] * b["both"][0], a["both"][1] | b["both"][1]
        return {"sum": a["sum"] + b["sum"], "text": a["text"] + b["text"], "both": both}

    found = map_reduce(fn, shards, reduce, strategy=strategies[1])
    assert found == {"sum": 6.0, "text": b"xyz", "both": (2, True)}


def test_one_shard_is_not_reduced(tf, strategies):
    assert map_reduce(lambda x: x + 1, [41], None, strategy=strategies[0]) == 42


def test_the_strategy_of_no_strategy(tf):
    assert map_reduce(lambda x: x + 1, range(10), operator.add, strategy=tf.distribute.get_strategy()) == 55


def test_errors_name_the_shard(tf, strategies):
    def fn(x):
        tf.debugging.assert_less(x, np.int64(7), "too large")
        return x

    for strategy in strategies[:2]:
        with pytest.raises(ShardError, match=r"shard 7: InvalidArgumentError: .*too large") as caught:
            map_reduce(fn, range(8), operator.add, strategy=strategy)
        assert caught.value.shard == 7
        assert isinstance(caught.value.__cause__, tf.errors.InvalidArgumentError)
        assert map_reduce(fn, range(7), operator.add, strategy=strategy) == 21


def test_what_cannot_be_a_shard_or_an_answer(tf, strategies):
    one = {"strategy": strategies[0]}
    with pytest.raises(ShardError, match="shard 1: TypeError: a shard is numbers, booleans or text, found NoneType"):
        map_reduce(lambda x: x, [1, None], operator.add, **one)
    with pytest.raises(ShardError, match="shard 0: ZeroDivisionError"):
        map_reduce(lambda x: x + 1 // 0, [1], operator.add, **one)
    with pytest.raises(TypeError, match=r"reduce must return what it is given two of, \('int64', 'int64'\), found"):
        map_reduce(lambda x: (x, x), [1, 2], operator.add, **one)
    with pytest.raises(ValueError, match="at least one shard"):
        map_reduce(lambda x: x, [], operator.add, **one)


@pytest.fixture
def soon(monkeypatch):
    """No device rests for long."""
    monkeypatch.setattr(task_scheduler, "_POLL_SECONDS", 0.005)
    monkeypatch.setattr(task_scheduler, "_MIN_LATE_SECONDS", 0.05)


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shards=st.integers(1, 30), devices=st.integers(1, 7), seed=st.integers(0, 10**6))
def test_each_call_counts_once_though_devices_die(tf, soon, shards, devices, seed):
    """All but one device die, each at a call of its own."""
    chance = random.Random(seed)
    deaths = [chance.randint(0, 5) for _ in range(devices - 1)]
    names = [f"/cpu:{i % 4}" for i in range(devices)]
    lock, begun = threading.Lock(), dict.fromkeys(range(devices), 0)

    def function(number):
        me = _device_of_thread()
        with lock:
            begun[me] += 1
            dead = me < len(deaths) and begun[me] > deaths[me]
        if dead:
            raise tf.errors.UnavailableError(None, None, "Connection reset by peer")
        return tf.constant(number * number)

    numbers = {}

    def _device_of_thread():
        with lock:
            return numbers.setdefault(threading.get_ident(), len(numbers))

    unique = [f"{name}#{i}" for i, name in enumerate(names)]
    found = list(_results(tf, [(i, function, i) for i in range(shards)], unique))
    assert sorted(found) == [(i, i * i) for i in range(shards)]
    assert all(begun[i] <= death + task_scheduler._MAX_CONSECUTIVE_LOSSES for i, death in enumerate(deaths)), (
        "a dead device was not given up"
    )


def test_a_call_that_is_lost_once_does_not_cost_the_device(tf, soon):
    lost = []

    def function(number):
        if number % 3 == 0 and number not in lost:
            lost.append(number)
            raise tf.errors.CancelledError(None, None, "another worker died")
        return tf.constant(number)

    found = list(_results(tf, [(i, function, i) for i in range(20)], ["/cpu:0#0"]))
    assert (sorted(found), len(lost)) == ([(i, i) for i in range(20)], 7)


def test_when_all_devices_die_the_last_error_is_raised(tf, soon):
    def function(number):
        raise tf.errors.AbortedError(None, None, "Worker restarted")

    with pytest.raises(tf.errors.AbortedError, match="Worker restarted"):
        list(_results(tf, [(i, function, i) for i in range(5)], ["/cpu:0#0", "/cpu:0#1"]))


def test_a_call_that_is_late_is_given_to_another_and_not_waited_for(tf, soon):
    hangs, stuck = threading.Event(), []

    def function(number):
        if number == 1 and not stuck:
            stuck.append(number)
            hangs.wait(60)
        return tf.constant(number)

    began = time.monotonic()
    found = list(_results(tf, [(i, function, i) for i in range(10)], ["/cpu:0#0", "/cpu:1#1"]))
    assert time.monotonic() - began < 50
    assert (sorted(found), stuck) == ([(i, i) for i in range(10)], [1])
    hangs.set()


def test_an_error_of_a_call_that_was_answered_elsewhere_is_none(tf, soon):
    answered, first = threading.Event(), []

    def function(number):
        if number == 0 and not first:
            first.append(number)
            answered.wait(60)
            raise tf.errors.InvalidArgumentError(None, None, "too late")
        if number == 9:
            answered.wait(60)
            time.sleep(0.1)
        return tf.constant(number)

    found = []
    for number, answer in _results(tf, [(i, function, i) for i in range(10)], ["/cpu:0#0", "/cpu:0#1", "/cpu:0#2"]):
        found.append((number, int(answer)))
        if number == 0:
            answered.set()
    assert sorted(found) == [(i, i) for i in range(10)]


def _results(tf, tasks, devices):
    """Runs a TaskScheduler as for remote workers, with threads of this process in place of them."""
    real = tf.device
    try:
        tf.device = lambda name: real(name.partition("#")[0])
        yield from TaskScheduler(devices, remote=True).run(Task(*task) for task in tasks)
    finally:
        tf.device = real


def test_workers_that_came_back_get_tasks_once_they_are_connected(tf, soon, monkeypatch):
    """Both die in their first task, and come back one after the other; the first one makes tasks meanwhile."""
    unused, ran, looks = {0, 1}, [], itertools.count()

    def function(number):
        if unused == {0, 1}:
            raise tf.errors.UnavailableError(None, None, "Connection reset by peer")
        ran.append(set(unused))
        return tf.constant(number)

    def unused_workers():
        look = next(looks)
        if look < 2:  # their loss is not noticed yet
            return set()
        unused.intersection_update({index for index in (0, 1) if look < 40 + 40 * index})
        return set(unused)

    current = session.Session()
    monkeypatch.setattr(current, "unused_workers", unused_workers)
    monkeypatch.setattr(session, "_current", current)
    monkeypatch.setattr(tf, "device", lambda name: contextlib.nullcontext())
    devices = [task_scheduler._worker_device(index) for index in (0, 1)]
    scheduler = TaskScheduler(devices, remote=True)
    found = list(scheduler.run(Task(i, function, i) for i in range(100)))
    assert sorted(found) == [(i, i) for i in range(100)]
    assert ran[0] == {1}
    assert ran[-1] == set()
    assert sorted(scheduler._idle) == devices  # each once, though what it ran ended after it was given up


def test_a_worker_that_is_connected_again_gets_tasks_while_another_one_is_lost(tf, monkeypatch):
    lost = [tf2dist.Task("worker", 1)]
    current = session.Session()
    monkeypatch.setattr(current, "unused_workers", lambda: {task.index for task in lost})
    monkeypatch.setattr(session, "_current", current)
    first, second = (task_scheduler._worker_device(index) for index in (0, 1))
    scheduler = TaskScheduler([first, second], remote=True)
    scheduler._drop_lost_workers()
    assert scheduler._alive == {first}
    lost[:] = [tf2dist.Task("worker", 0)]
    scheduler._drop_lost_workers()
    scheduler._take_back_workers()
    assert scheduler._alive == {second}
    assert scheduler._idle == deque([second])


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_of_a_peer_keeps_its_cause(tf, strategies, monkeypatch, failing):
    """In the peer that computed the shard, and, sent, in the others."""
    module = importlib.import_module("tf2dist.map_reduce.map_reduce")
    strategy = strategies[0]

    def fn(x):
        tf.debugging.assert_none_equal(x, np.int64(failing), message="not this one")
        return x

    def run(rank, gather):
        monkeypatch.setattr(module.collectives, "peers", lambda strategy: (2, rank))
        monkeypatch.setattr(module.collectives, "all_gather", gather)
        return list(module._map_with_peers(tf.function(fn), range(2), strategy))

    sent = []

    def keep(strategy, data):
        sent.append(data)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        run(1, keep)
    with pytest.raises(ShardError) as caught:
        run(0, lambda strategy, data: [data, *sent])
    assert caught.value.shard == failing
    assert isinstance(caught.value.__cause__, tf.errors.InvalidArgumentError)
    assert "not this one" in str(caught.value.__cause__)
