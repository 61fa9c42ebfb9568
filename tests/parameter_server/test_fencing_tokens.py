"""Fencing tokens and counts of updates, on variables of one process."""

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


def test_an_update_is_counted_when_all_its_gradients_are_there(tf, strategy):
    """A worker that dies before that has neither changed a weight nor counted."""
    from tests.models import OPTIMIZERS, embedder, sentences
    from tf2dist.execution.compiled_step import CompiledStep
    from tf2dist.parameter_server.update_counter import UpdateCounter
    from tf2dist.parameter_server.worker_step import WorkerStep

    model = embedder(OPTIMIZERS["adam"]())
    model.train_on_batch(*sentences())  # makes all variables
    counter = UpdateCounter(strategy)
    update = WorkerStep(CompiledStep(model), counter).update
    batch = tf.TensorSpec([None, 6], tf.int64), tf.TensorSpec([None], tf.int64)
    graph = tf.function(lambda x, y: update((x, y))).get_concrete_function(*batch).graph
    writes = [op for op in graph.get_operations() if op.type in ("AssignAddVariableOp", "AssignSubVariableOp")]
    handle = next(tensor for value, tensor in graph.captures if value is counter.variable.handle)
    (counts,) = (op for op in writes if op.inputs[0] is handle)
    (complete,) = (op for op in before(counts) if op.type == "NoOp")
    assert len(complete.control_inputs) == 4  # kernel and bias, and of the table rows and their numbers
    assert len(writes) > 4
    assert all(complete in before(write) for write in writes)
