"""In which order an execution on a worker does what concerns the servers."""

import types

import tf2dist
from tests.parameter_server.graphs import before


def test_a_custom_step_asks_for_its_token_when_the_step_before_is_made(tf):
    """Not for all steps of a turn at its beginning: the token may be revoked meanwhile."""
    from tf2dist.parameter_server.execution_functions import ExecutionFunctions

    pool = types.SimpleNamespace(strategy=tf2dist.make_strategy("one"), first_replica=lambda results: results)
    nothing = types.SimpleNamespace(add=lambda updates: None)
    step = types.SimpleNamespace(
        optimizers=[], zero_sums=lambda: [tf.constant(0.0)], update=lambda batch: [tf.identity(batch)]
    )
    updates = ExecutionFunctions._custom_step(types.SimpleNamespace(_pool=pool, _updates=nothing), step)
    batches = types.SimpleNamespace(take=lambda ahead, number, end, after: (tf.constant(1.0), ahead))

    @tf.function(autograph=False)
    def run(token, made):
        held = types.SimpleNamespace(
            is_valid=lambda: tf.identity(token, name="asked"), count_applied=lambda updates: None
        )
        number = tf.constant(0, tf.int64)
        sums, _, _ = updates.make(batches, (), [tf.identity(made, name="made")], number, tf.constant(1), number, held)
        return sums

    graph = run.get_concrete_function(tf.constant(True), tf.constant(0.0)).graph
    assert graph.get_operation_by_name("made") in before(graph.get_operation_by_name("asked"))
    assert [float(total) for valid in (True, False) for total in run(tf.constant(valid), tf.constant(0.0))] == [
        1.0,
        0.0,
    ]
