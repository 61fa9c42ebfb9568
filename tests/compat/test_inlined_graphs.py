"""Operations of a function that is traced once, put into graphs in its place."""

import threading

import numpy as np
import pytest

from tf2dist.compat.inlined_graphs import InlinedGraph


def called(tf, function, times, *arguments):
    """What the last of several calls in a loop returns, each of which gets what the one before has returned."""

    @tf.function(autograph=False)
    def run(*start):
        inlined = InlinedGraph(function, *start)

        def body(_, *state):
            for _ in range(times):
                state = inlined(*state)
            return tf.constant(True), *state

        return tf.while_loop(lambda over, *_: ~over, body, (tf.constant(False), *start))[1:]

    return run(*arguments)


def test_it_is_traced_once_and_called_several_times(tf):
    traced = []

    def function(x, parts):
        traced.append(x)
        return x * 2.0 + outside, {"last": parts["first"], "first": parts["last"] + 1}

    outside = tf.constant(1.0)
    x, parts = called(tf, function, 3, tf.constant(1.0), {"first": tf.constant(10), "last": tf.constant(20)})
    assert len(traced) == 1
    assert float(x) == 15.0
    assert {name: int(part) for name, part in parts.items()} == {"first": 22, "last": 11}


def test_arguments_and_captured_tensors_are_returned_as_they_are(tf):
    @tf.function(autograph=False)
    def run(x, y):
        inlined = InlinedGraph(lambda a, b: (b, a, x), x, y)
        return inlined(y, inlined(y, x)[0])

    assert [int(t) for t in run(tf.constant(1), tf.constant(2))] == [1, 2, 1]


def test_slices_and_shapes(tf):
    def function(slices):
        assert slices.values.shape == (2, 3)
        return tf.IndexedSlices(slices.values + 1.0, slices.indices, slices.dense_shape)

    @tf.function(autograph=False)
    def run(x):
        slices = tf.IndexedSlices(x, tf.constant([0, 2]), tf.constant([4, 3]))
        found = InlinedGraph(function, slices)(slices)
        assert found.values.shape == (2, 3)
        return tf.convert_to_tensor(found)

    np.testing.assert_array_equal(run(tf.zeros([2, 3])), [[1.0] * 3, [0.0] * 3, [1.0] * 3, [0.0] * 3])


def test_what_is_written_is_read_in_the_order_of_the_program(tf):
    variable = tf.Variable(1.0)

    def function(seen):
        before = variable.read_value()
        tf.cond(before > 2.0, lambda: variable.assign_add(10.0), lambda: variable.assign(before * 2.0))
        return (seen + before + 100.0 * variable.read_value(),)

    (seen,) = called(tf, function, 4, tf.constant(0.0))
    before, expected = 1.0, 0.0
    for _ in range(4):
        after = before + 10.0 if before > 2.0 else before * 2.0
        expected, before = expected + before + 100.0 * after, after
    assert (float(seen), float(variable)) == (expected, before)


@pytest.mark.parametrize("inside", [False, True], ids=["", "in a condition"])
def test_operations_of_which_nothing_is_returned_are_run(tf, inside):
    ran = []

    def function(x):
        def effect():
            tf.numpy_function(lambda v: ran.append(int(v)) or v, [x], tf.int32)
            tf.debugging.assert_less(x, 3, "too large")
            return x + 1

        return (tf.cond(x >= 0, effect, lambda: x) if inside else effect(),)

    assert int(*called(tf, function, 3, tf.constant(0))) == 3
    assert sorted(ran) == [0, 1, 2]
    with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
        called(tf, function, 4, tf.constant(0))


def test_what_is_to_come_after_an_argument_does(tf):
    order = []

    def note(name):
        return tf.numpy_function(lambda x: order.append(name) or x, [tf.constant(1.0)], tf.float32)

    def function(x):
        with tf.control_dependencies([x]):
            return (note("second"),)

    @tf.function(autograph=False)
    def run():
        inlined = InlinedGraph(function, tf.constant(1.0))
        first = tf.numpy_function(
            lambda x: threading.Event().wait(0.2) or order.append("first") or x, [1.0], tf.float32
        )
        return inlined(first)

    run()
    assert order == ["first", "second"]


def waited(tf, make):
    """Whether what is returned by a function of `make` is used while its other operation is still under way."""
    used = threading.Event()
    seen = []

    def slow():
        seen.append(used.wait(2.0))
        return np.float32(0.0)

    def use(value):
        used.set()
        return value

    def function(x):
        tf.numpy_function(slow, [], tf.float32)
        return x + 1.0

    @tf.function(autograph=False)
    def run(x):
        return tf.numpy_function(use, [make(function, x)(x)], tf.float32, stateful=False)

    assert float(run(tf.constant(1.0))) == 2.0
    return seen == [True]


def test_what_is_returned_is_there_while_other_operations_run(tf):
    assert waited(tf, InlinedGraph)


def test_tensorflow_still_has_all_that_a_function_returns_wait(tf):
    """If this fails, a `tf.function` does where `InlinedGraph` is used."""
    assert not waited(tf, lambda function, x: tf.function(function, autograph=False))


def test_values_of_the_time_of_a_call(tf):
    """As the handle of a lookup table that each worker has for itself."""
    now = [1]

    @tf.function(autograph=False)
    def run(x):
        def function(x):
            graph = tf.compat.v1.get_default_graph()
            late = graph.capture_call_time_value(lambda: tf.constant(now[0]), tf.TensorSpec([], tf.int32), key="now")
            return (x * 10 + late,)

        inlined = InlinedGraph(function, x)

        def body(over, x):
            return tf.constant(True), *inlined(*inlined(x))

        return tf.while_loop(lambda over, x: ~over, body, (tf.constant(False), x))[1]

    assert int(run(tf.constant(3))) == 311
    now[0] = 2
    assert int(run(tf.constant(3))) == 322


def copies(tf, function, operations=1000, nbytes=1 << 20):
    found = []

    @tf.function(autograph=False)
    def run(x):
        found.append(InlinedGraph(function, x).copies(operations, nbytes))
        return x

    run.get_concrete_function(tf.TensorSpec([], tf.float32))
    return found[0]


def test_how_many_copies_there_may_be(tf):
    from tf2dist.parameter_server.server_calls import called_by_server

    def many(x):
        for _ in range(100):
            x = tf.tanh(x)
        return x

    in_condition = tf.function(lambda x: tf.cond(x > 0, lambda: many(x), lambda: x), autograph=False)
    large = np.arange(1 << 16, dtype=np.float32)
    server = called_by_server(many)
    assert 9 <= copies(tf, many) <= 10
    assert 5 <= copies(tf, in_condition) <= 9
    assert copies(tf, in_condition, operations=10) == 1
    assert copies(tf, server) > 100
    assert copies(tf, lambda x: x + tf.constant(large)) == 3  # of 1 MiB
    assert copies(tf, lambda x: x + tf.random.stateless_normal([], [1, 2])) > 20


@pytest.mark.parametrize("inside", [False, True], ids=["", "in a condition"])
def test_numbers_that_follow_from_how_often_they_were_drawn_are_not_copied(tf, inside):
    def draw(x):
        return x + tf.random.normal([], seed=5)

    assert copies(tf, (lambda x: tf.cond(x > 0, lambda: draw(x), lambda: x)) if inside else draw) == 1
