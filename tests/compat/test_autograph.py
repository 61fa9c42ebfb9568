"""AutoGraph for what users write, in steps of ours that are traced without it."""

import types

import pytest

from tf2dist.compat.autograph import as_in_function, converted

CALLS = 33  # of an iterator; TensorFlow allows one fewer


def test_tensorflow_counts_the_calls_of_an_iterator_without_autograph(tf):
    """Fails when `as_in_function` is no longer needed for them."""
    with pytest.raises(ValueError, match="unusually high number"):
        sum_of_calls(tf, lambda iterator: [next(iterator) for _ in range(CALLS)])


def sum_of_calls(tf, elements):
    @tf.function(autograph=False)
    def total(iterator):
        return tf.add_n(list(elements(iterator)))

    return int(total(iter(tf.data.Dataset.range(CALLS))))


def test_more_replicas_than_that_take_elements_of_their_own(tf):
    from tf2dist.execution.replica_dispatcher import ReplicaDispatcher

    dispatcher = types.SimpleNamespace(_slices=types.SimpleNamespace(single=False, count=CALLS), _on_accelerators=False)
    found = sum_of_calls(tf, lambda iterator: ReplicaDispatcher._next(dispatcher, iterator, True))
    assert found == sum(range(CALLS))


def absolute(x):
    if x > 0:
        return x
    return -x


def test_one_function_is_converted_wherever_it_is_called(tf):
    """Also where it is given to `converted` in what is traced without AutoGraph."""
    before = converted(absolute)

    @tf.function(autograph=False)
    def both(x):
        return before(x) + converted(absolute)(x)

    assert int(both(tf.constant(-2))) == 4
    assert int(before(tf.constant(-2))) == 2


@pytest.mark.parametrize("autograph", [True, False])
def test_a_status_holds_inside_and_the_one_before_afterwards(tf, autograph):
    inner = tf.autograph.experimental.do_not_convert(lambda: status())
    status = lambda: tf.__internal__.autograph.control_status_ctx().status.name  # noqa: E731
    before = status()
    with as_in_function(autograph=autograph):
        assert status() == ("ENABLED" if autograph else "DISABLED")
        assert inner() == "DISABLED"
    assert status() == before
