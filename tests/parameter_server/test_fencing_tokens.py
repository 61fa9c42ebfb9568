"""Fencing tokens and counts of updates, on variables of one process."""

import contextlib
import threading
import types

import numpy as np
import pytest

import tf2dist
from tests.parameter_server.graphs import before


@pytest.fixture
def strategy(tf):
    return tf2dist.make_strategy("one")


@pytest.fixture
def tokens(tf, strategy):
    from tf2dist.parameter_server.fencing_tokens import FencingTokens

    with strategy.scope():
        return FencingTokens(strategy, capacity=3, beside=tf.Variable(0))


class AlwaysHeld:
    """A token of an execution, valid if `is_valid()` is, whose steps nobody counts."""

    def __init__(self, is_valid):
        self.is_valid = is_valid

    def count_applied(self, updates):
        pass


def taken(tokens, token):
    """Steps to make, and the count."""
    held = tokens.take(token.tensor())
    return int(held.steps), int(held.count)


def issue(tokens, steps):
    """A token for the first batches."""
    return tokens.issue(0, steps)


def test_a_token_is_good_for_its_steps_once(tokens):
    first, second = issue(tokens, 5), issue(tokens, 7)
    assert taken(tokens, second) == (7, 1)  # in any order
    assert taken(tokens, first) == (5, 1)
    assert taken(tokens, first) == (0, 2)  # run again
    tokens.give_back(first, 2, 0)
    tokens.give_back(second, 1, 0)
    assert [taken(tokens, issue(tokens, steps))[0] for steps in (1, 2, 3)] == [1, 2, 3]


def test_a_token_that_no_execution_has_taken(tokens):
    for _ in range(7):
        token = issue(tokens, 5)
        tokens.give_back(token, token.count, 0)
    assert [taken(tokens, issue(tokens, 6))[0] for _ in range(3)] == [6] * 3


def test_who_was_taken_for_dead_takes_no_steps_of_others(tokens):
    """Its token was given back, and its place is that of another one now, used or not."""
    old = issue(tokens, 5)
    assert taken(tokens, old) == (5, 1)
    tokens.give_back(old, 1, 0)
    new = next(token for token in (issue(tokens, 9) for _ in range(3)) if token.place == old.place)
    assert taken(tokens, old)[0] == 0
    # The other one finds that somebody was there: its steps are missing, which is seen, and not made twice.
    assert taken(tokens, new)[0] == 0


def test_who_begins_with_a_revoked_token_spoils_no_other(tokens):
    """An execution of a training that has failed, say, that begins when the next one has its token."""
    old = [issue(tokens, 5) for _ in range(3)]
    tokens.revoke(old)
    new = [issue(tokens, 4) for _ in range(3)]
    assert [taken(tokens, token)[0] for token in (*old, *new, *old)] == [0] * 3 + [4] * 3 + [0] * 3


def test_a_revoked_token_is_good_for_nothing(tokens):
    """Whether it was taken before or not, and whoever has its place now."""
    old = [issue(tokens, 5) for _ in range(3)]
    held = tokens.take(old[0].tensor())
    assert bool(held.is_valid())
    tokens.revoke(old)
    assert not bool(held.is_valid())
    new = [issue(tokens, 6) for _ in range(3)]
    assert sorted(token.place for token in new) == [0, 1, 2]
    assert [taken(tokens, token)[0] for token in (*old, *old)] == [0] * 6
    assert not any(bool(tokens.take(token.tensor()).is_valid()) for token in old)
    tokens.revoke(new)
    last = [issue(tokens, 6) for _ in range(3)]
    tokens.give_back(new[0], 17, 0)  # too late to say
    tokens.revoke(new)
    held = [tokens.take(token.tensor()) for token in last]
    assert [int(h.steps) for h in held] == [6] * 3
    assert all(bool(h.is_valid()) for h in held)


def test_which_batches_no_step_was_applied_on(tf, tokens):
    """A place of a token is used again and again; what its earlier tokens were applied for is not counted twice."""
    for _ in range(2):
        whole, begun, not_begun = tokens.issue(0, 5), tokens.issue(5, 7), tokens.issue(12, 3)
        for token, applied in ((whole, 5), (begun, 4)):
            tokens.take(token.tensor()).count_applied(tf.constant(applied))
        tokens.give_back(whole, whole.count + 1, 5)
        tokens.revoke([begun, not_begun])
        assert sorted(tokens.settle(), key=lambda numbers: numbers.start) == [range(9, 12), range(12, 15)]
        assert tokens.settle() == []


def test_what_was_applied_in_a_training_that_failed_is_forgotten(tf, tokens):
    failed = [tokens.issue(0, 9) for _ in range(3)]
    tokens.revoke(failed[:2])
    for token in failed:
        tokens.take(token.tensor()).count_applied(2)
    tokens.forget()
    assert not tokens.take(failed[2].tensor()).is_valid()
    assert tokens.settle() == []
    again = [tokens.issue(0, 9) for _ in range(3)]
    tokens.take(again[0].tensor()).count_applied(tf.constant(1))
    tokens.revoke(again)
    assert sorted(numbers.start for numbers in tokens.settle()) == [0, 0, 1]


def test_other_counters_follow_what_was_applied(tf, strategy):
    """A worker that died told one counter of an update and not the other."""
    from tf2dist.parameter_server.update_counter import UpdateCounter

    counter, iterations = UpdateCounter(strategy), tf.Variable(100, dtype=tf.int64)
    counter.follow([iterations])
    counter.reset(20)
    counter.snapshot()
    counter.add(tf.constant(4))
    iterations.assign_add(3)
    counter.correct_others()
    assert (counter.value, int(iterations)) == (24, 104)


@pytest.mark.slow
def test_a_server_applies_and_counts_an_update_in_one_call(tf, strategy):
    """A worker that dies before it has changed no weight and counted nothing, and after it, all."""
    from tests.models import OPTIMIZERS, embedder, sentences
    from tf2dist.execution.keras_train_step import KerasTrainStep
    from tf2dist.parameter_server.update_counter import UpdateCounter
    from tf2dist.parameter_server.worker_step import WorkerStep

    model = embedder(OPTIMIZERS["adam"]())
    model.train_on_batch(*sentences())  # makes all variables
    counter = UpdateCounter(strategy)
    own, valid = WorkerStep(KerasTrainStep(model), counter), tf.Variable(True)

    @tf.function(autograph=False)
    def step(x, y):
        _, (told,) = own.update((x, y), AlwaysHeld(valid.read_value), own.begin())
        return told

    def read_together():
        small = [v for v in model.trainable_variables if "embedding" not in v.path]
        return np.concatenate([np.ravel(v) for v in small])

    operations = step.get_concrete_function(*map(tf.constant, sentences())).graph.get_operations()
    assert [op for op in operations if "Assign" in op.type or "Scatter" in op.type] == []
    (call,) = (op for op in operations if op.type == "StatefulPartitionedCall")
    called = call.graph._get_function(call.get_attr("f").name).graph.get_operations()
    (begun,) = (op for op in called if op.type == "AssignAddVariableOp")
    assert "MutexLock" in [op.type for op in before(begun)]
    made = [node.op for f in call.graph.as_graph_def().library.function for node in f.node_def]
    assert made.count("MutexLock") == 1
    (end,) = (op for op in called if op.type == "ConsumeMutexLock")
    assert {"ConcatV2", "ReadVariableOp"} <= {op.type for op in before(end)}  # the answer
    began_with = read_together()
    told = step(*map(tf.constant, sentences()))
    counter.settle()
    assert counter.value == 1
    np.testing.assert_array_equal(told, read_together())
    assert (told.numpy() != began_with).any()
    assert int(model.optimizer.iterations) == 2
    valid.assign(False)
    trained = model.get_weights()
    told = step(*map(tf.constant, sentences()))
    np.testing.assert_array_equal(told, read_together())
    assert (counter.value, int(model.optimizer.iterations)) == (1, 2)
    for before_it, after_it in zip(trained, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before_it, after_it)


@pytest.mark.parametrize("mutex", [None, "a mutex"])
def test_an_update_that_is_under_way_ends_when_its_worker_dies(tf, strategy, mutex):
    """TensorFlow then cancels the worker's call: a condition that is not begun would not begin any more."""
    from tensorflow.python.eager import cancellation

    from tf2dist.parameter_server.update_counter import UpdateCounter

    counter, weight = UpdateCounter(strategy), tf.Variable(1.0)
    reached, cancelled = threading.Event(), threading.Event()

    def pause():
        reached.set()
        return np.float32(cancelled.wait(60.0))

    def update():
        paused = tf.numpy_function(pause, [], tf.float32)
        tf.cond(paused > 0.0, lambda: weight.assign_add(1.0), lambda: weight.assign(-1.0))

    held = AlwaysHeld(lambda: tf.constant(True))
    caller = cancellation.CancellationManager()
    step = tf.function(lambda: counter.apply(update, [], 1, held, mutex), autograph=False).get_concrete_function()

    def run():
        with contextlib.suppress(tf.errors.CancelledError):
            caller.get_cancelable_function(step)()

    running = threading.Thread(target=run)
    running.start()
    assert reached.wait(60.0)
    caller.start_cancel()
    cancelled.set()
    counter.settle()
    running.join()
    assert (counter.value, float(weight)) == (1, 2.0)


def test_an_update_with_a_loop_is_cancelled_with_its_worker(tf, strategy, monkeypatch):
    """It may have been applied in part; a job goes on from its last checkpoint."""
    from tf2dist.errors import TrainingError
    from tf2dist.parameter_server import update_counter

    counter = update_counter.UpdateCounter(strategy)
    monkeypatch.setattr(update_counter, "_SETTLE_SECONDS", 0.1)

    @tf.function(autograph=False)
    def turns():
        return tf.while_loop(lambda n: n < 2, lambda n: [n + 1], [0])

    for loops in (lambda: None, turns):
        held = AlwaysHeld(lambda: tf.constant(True))
        tf.function(lambda loops=loops, held=held: counter.apply(loops, [], 1, held), autograph=False)()
        counter.settle()
        counter.under_way.assign_add(1)
        with pytest.raises(TrainingError) as failed:
            counter.settle()
        assert ("tf.while_loop" in str(failed.value)) == (loops is turns)
        counter.under_way.assign_sub(1)


def test_with_several_servers_an_update_is_counted_when_all_is_there(tf, strategy):
    """A worker that dies before that has neither changed a weight nor counted."""
    from tf2dist.parameter_server.update_counter import UpdateCounter

    counter, near = UpdateCounter(strategy), tf.Variable(0.0)
    with tf.device("/device:CPU:1"):
        far = tf.Variable(0.0)

    valid = tf.Variable(True)

    @tf.function(input_signature=[tf.TensorSpec([])])
    def step(gradient):
        with tf.device(far.device):
            sent = tf.identity(gradient)

        def update():
            near.assign_add(gradient)
            far.assign_add(sent)

        counter.apply(update, [gradient, sent], 1, AlwaysHeld(valid.read_value))

    operations = step.get_concrete_function().graph.get_operations()
    (written,) = [op for op in operations if op.type == "If"]
    assert not [op for op in operations if "Assign" in op.type]
    assert [len(o.control_inputs) for o in before(written) if o.type == "NoOp" and len(o.control_inputs) > 1] == [2]
    step(tf.constant(2.0))
    assert (counter.value, float(near), float(far)) == (1, 2.0, 2.0)
    valid.assign(False)
    step(tf.constant(2.0))
    assert (counter.value, float(near), float(far)) == (1, 2.0, 2.0)


def test_an_update_that_fails_on_its_server_is_not_waited_for_in_the_next_training(tf, strategy, monkeypatch):
    from tf2dist.parameter_server import update_counter

    counter = update_counter.UpdateCounter(strategy)
    monkeypatch.setattr(update_counter, "_ABANDON_SECONDS", 0.1)
    step = tf.function(
        lambda: counter.apply(
            lambda: tf.debugging.assert_equal(tf.zeros([]), 1.0), [], 1, AlwaysHeld(lambda: tf.constant(True))
        )
    )
    counter.snapshot()
    with pytest.raises(tf.errors.InvalidArgumentError):
        step()
    counter.abandon()
    counter.snapshot()
    counter.settle()


def test_a_refused_update_at_the_wrong_time_hides_no_other(tf, strategy, monkeypatch):
    """A worker that is slow asks for updates that are refused; one may be under way when the next epoch begins."""
    from tf2dist.errors import TrainingError
    from tf2dist.parameter_server import update_counter

    counter = update_counter.UpdateCounter(strategy)
    counter.under_way.assign_add(1)
    counter.snapshot()
    monkeypatch.setattr(update_counter, "_SETTLE_SECONDS", 0.1)
    with pytest.raises(TrainingError, match="has begun 1 updates"):
        counter.settle()


def test_without_calls_of_the_server_none_is_known_to_be_under_way(tf, strategy, monkeypatch):
    """Several devices a worker: what they have sent may be about to begin."""
    from tf2dist.parameter_server import update_counter

    counter, now = update_counter.UpdateCounter(strategy), [0.0]

    def pass_time(seconds):
        now[0] += seconds

    monkeypatch.setattr(update_counter, "time", types.SimpleNamespace(monotonic=lambda: now[0], sleep=pass_time))
    counter.settle()
    assert now[0] >= 1.0


def test_updates_that_wait_for_each_other_are_waited_for(tf, strategy, monkeypatch):
    """As long as one ends now and then."""
    from tf2dist.parameter_server import update_counter

    counter = update_counter.UpdateCounter(strategy)
    counter.snapshot()
    monkeypatch.setattr(update_counter, "_ABANDON_SECONDS", 1.0)
    looks, now = [], [0.0]

    def pass_time(seconds):
        now[0] += seconds

    monkeypatch.setattr(update_counter, "time", types.SimpleNamespace(monotonic=lambda: now[0], sleep=pass_time))

    class UnderWay:
        def numpy(self):
            looks.append(None)
            pass_time(0.201)
            return max(0, 4 - len(looks) // 4)  # another one has ended after four looks

    counter.under_way = UnderWay()
    counter.in_one_call = True
    counter.abandon()
    assert len(looks) == 16  # the first without one
    looks.clear()
    counter.in_one_call = False
    counter.abandon()
    assert len(looks) == 20  # and no other comes for a second


def test_an_update_that_a_server_does_not_end_is_named(tf, strategy, monkeypatch):
    from tf2dist.errors import TrainingError
    from tf2dist.parameter_server import update_counter

    counter = update_counter.UpdateCounter(strategy)
    counter.settle()
    counter.under_way.assign_add(2)
    monkeypatch.setattr(update_counter, "_SETTLE_SECONDS", 0.1)
    with pytest.raises(TrainingError, match="CPU:0 has begun 2 updates of workers that are lost, and not ended them"):
        counter.settle()
