"""Fencing tokens and counts of updates, on variables of one process."""

import types

import pytest

import tf2dist
from tests.parameter_server.graphs import before


@pytest.fixture
def strategy(tf):
    return tf2dist.make_strategy("one")


def test_each_token_is_taken_once(tf, strategy):
    from tf2dist.parameter_server.fencing_tokens import FencingTokens

    tokens = FencingTokens(strategy, capacity=3)
    issued = [tokens.issue(steps) for steps in (5, 7)]
    assert [int(tokens.take(*arguments)) for arguments in issued] == [5, 7]
    assert int(tokens.take(*issued[0])) == 0  # run again, its token is gone
    assert int(tokens.take(*tokens.issue(2))) == 0  # that one is: the run before has taken a number


def test_a_restart_issues_all_tokens_anew(tf, strategy):
    from tf2dist.parameter_server.fencing_tokens import FencingTokens

    tokens = FencingTokens(strategy, capacity=2)
    for steps in (3, 4, 5):
        assert int(tokens.take(*tokens.issue(steps))) == steps
    tokens.restart()
    assert int(tokens.take(*tokens.issue(9))) == 9


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


def test_a_server_applies_and_counts_an_update_in_one_call(tf, strategy):
    """A worker that dies before it has changed no weight and counted nothing, and after it, all."""
    from tests.models import OPTIMIZERS, embedder, sentences
    from tf2dist.execution.compiled_step import CompiledStep
    from tf2dist.parameter_server.update_counter import UpdateCounter
    from tf2dist.parameter_server.worker_step import WorkerStep

    model = embedder(OPTIMIZERS["adam"]())
    model.train_on_batch(*sentences())  # makes all variables
    counter = UpdateCounter(strategy)
    update = WorkerStep(CompiledStep(model), counter).update
    step = tf.function(lambda x, y: update((x, y)))
    operations = step.get_concrete_function(*map(tf.constant, sentences())).graph.get_operations()
    assert [op for op in operations if "Assign" in op.type or "Scatter" in op.type] == []
    assert [op.type for op in operations].count("RemoteCall") == 1
    step(*map(tf.constant, sentences()))
    counter.settle()
    assert counter.value == 1
    assert int(model.optimizer.iterations) == 2


def test_with_several_servers_an_update_is_counted_when_all_is_there(tf, strategy):
    """A worker that dies before that has neither changed a weight nor counted."""
    from tf2dist.parameter_server.update_counter import UpdateCounter

    counter, near = UpdateCounter(strategy), tf.Variable(0.0)
    with tf.device("/device:CPU:1"):
        far = tf.Variable(0.0)

    @tf.function(input_signature=[tf.TensorSpec([])])
    def step(gradient):
        with tf.device(far.device):
            sent = tf.identity(gradient)
        counter.apply(lambda: (near.assign_add(gradient), far.assign_add(sent)), [gradient, sent], 1)

    writes = [op for op in step.get_concrete_function().graph.get_operations() if op.type == "AssignAddVariableOp"]
    assert len(writes) == 3
    first = set.intersection(*map(before, writes))
    assert [len(op.control_inputs) for op in first if op.type == "NoOp" and len(op.control_inputs) > 1] == [2]
    step(tf.constant(2.0))
    assert (counter.value, float(near), float(far)) == (1, 2.0, 2.0)


def test_an_update_that_fails_on_its_server_is_not_waited_for_in_the_next_training(tf, strategy):
    from tf2dist.parameter_server.update_counter import UpdateCounter

    counter = UpdateCounter(strategy)
    step = tf.function(lambda: counter.apply(lambda: tf.debugging.assert_equal(tf.zeros([]), 1.0), [], 1))
    with pytest.raises(tf.errors.InvalidArgumentError):
        step()
    counter.snapshot()
    counter.settle()


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
            pass_time(0.2)
            return max(0, 4 - len(looks) // 4)  # another one has ended after four looks

    counter._under_way = UnderWay()
    counter.abandon()
    assert len(looks) == 20  # the first without one is the 16th, and no other comes for a second


def test_an_update_that_a_server_does_not_end_is_named(tf, strategy, monkeypatch):
    from tf2dist.errors import TrainingError
    from tf2dist.parameter_server import update_counter

    counter = update_counter.UpdateCounter(strategy)
    counter.settle()
    counter._under_way.assign_add(2)
    monkeypatch.setattr(update_counter, "_SETTLE_SECONDS", 0.1)
    with pytest.raises(TrainingError, match="CPU:0 has begun 2 updates of workers that are lost, and not ended them"):
        counter.settle()
