"""Servers for variables, by their bytes."""

import keras
import pytest

from tf2dist.compat.server_placement import ServerPlacement, _nbytes, in_turn

KB, MB = 1 << 10, 1 << 20


def placed(servers, together, sizes):
    """The servers of variables of these sizes, and what counts them."""
    placement, found = ServerPlacement(servers, together), []
    for size in sizes:
        found.append(placement.server_of(size))
        placement._add(found[-1], size)
    return found, placement


def test_a_small_model_is_on_one_server():
    assert placed(3, 2 * MB, [MB, KB, MB - KB])[0] == [0, 0, 0]


def test_large_variables_go_where_the_fewest_bytes_are_and_small_ones_stay_together():
    found, placement = placed(3, MB, [MB // 2, 4 * MB, KB, 3 * MB, KB, MB, MB, 2 * MB, 32 * KB - 1, 32 * KB])
    assert found == [0, 1, 0, 2, 0, 0, 0, 0, 0, 2]
    assert placement.server_of(MB) == 2


def test_the_first_server_may_have_hardly_more_than_others():
    assert placed(2, MB, [8, 2 * MB, KB])[0] == [0, 0, 0]
    assert placed(2, MB, [8, 2 * MB, 2 * MB, 2 * MB])[0] == [0, 0, 1, 0]


def test_without_bytes_for_the_first_all_go_by_their_bytes():
    assert placed(2, 0, [KB, 1, 1, KB, 1])[0] == [0, 1, 1, 1, 0]


def test_what_is_not_known_is_beside_the_others_or_goes_in_turn():
    placement = ServerPlacement(3, MB)
    assert [placement.server_of(None) for _ in range(4)] == [0, 0, 0, 0]
    placement._add(1, 2 * MB)
    assert [placement.server_of(None) for _ in range(4)] == [0, 1, 2, 0]


def test_parts_go_in_turn_from_the_first_server_on():
    placement = ServerPlacement(3, MB)
    for _ in range(2):
        with in_turn():
            assert [placement.server_of(KB) for _ in range(4)] == [0, 1, 2, 0]
    assert placement.server_of(KB) == 0


def test_a_model_that_nobody_uses_does_not_count(tf):
    placement, nodes = ServerPlacement(2, KB), [[], []]
    for node in nodes:  # in a circle
        node += [tf.Variable(tf.zeros([100])), *nodes]
        placement.take(placement.server_of(400), node[0])
    del node, nodes
    assert placement.server_of(KB) == 0
    assert placement._bytes == [0, 0]


def test_a_variable_counts_while_it_lives(tf):
    placement = ServerPlacement(2, MB)
    variable = tf.Variable(tf.zeros([200 * KB]))
    placement.take(placement.server_of(800 * KB), variable)
    assert placement.server_of(400 * KB) == 1
    del variable
    assert placement.server_of(400 * KB) == 0


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
def test_bytes_of_keras_variables(tf, dtype):
    """If this fails, Keras has another function for the first value: look for a way to its shape."""
    seen = []

    def creator(create, **arguments):
        seen.append(_nbytes(arguments))
        return create(**arguments)

    with tf.variable_creator_scope(creator):
        keras.Variable("zeros", shape=(5, 7), dtype=dtype)
        keras.layers.Dense(3, dtype="float32").build((None, 4))
    assert seen == [35 * tf.as_dtype(dtype).size, 48, 12]


def test_bytes_of_other_variables(tf):
    assert _nbytes({"initial_value": [1.0, 2.0], "dtype": None}) == 8
    assert _nbytes({"initial_value": 3, "dtype": tf.int64}) == 8
    assert _nbytes({"initial_value": lambda: 0, "shape": [2, 3], "dtype": tf.float32}) == 24
    assert _nbytes({"initial_value": lambda: tf.zeros([2]), "dtype": tf.float32}) is None
    assert _nbytes({"initial_value": lambda: 0, "shape": [None, 3], "dtype": tf.float32}) is None
    assert _nbytes({}) is None
