"""Numbers of batches are handed out once; those that come back unused first."""

from tf2dist.parameter_server.batch_numbers import BatchNumbers


def test_consecutive_numbers():
    numbers = BatchNumbers(7)
    assert [*numbers.hand_out(3), *numbers.hand_out(1), *numbers.hand_out(2)] == [7, 8, 9, 10, 11, 12]
    assert not numbers.has_gaps


def test_unused_numbers_come_first_and_in_pieces():
    numbers = BatchNumbers(0)
    for _ in range(4):
        numbers.hand_out(5)
    numbers.take_back([range(17, 20), range(10, 10), range(3, 5)])
    numbers.take_back([range(6, 10)])
    assert numbers.has_gaps
    handed_out = [list(numbers.hand_out(most)) for most in (1, 3, 3, 3, 3)]
    assert handed_out == [[3], [4], [6, 7, 8], [9], [17, 18, 19]]
    assert not numbers.has_gaps
    assert list(numbers.hand_out(2)) == [20, 21]


def test_nothing_comes_back():
    numbers = BatchNumbers(0)
    numbers.hand_out(4)
    numbers.take_back([range(4, 4)])
    assert not numbers.has_gaps
    assert list(numbers.hand_out(1)) == [4]


def test_neighbours_are_one_range_again():
    numbers = BatchNumbers(0)
    numbers.hand_out(12)
    numbers.take_back([range(4, 6)])
    numbers.take_back([range(8, 10), range(6, 8)])
    assert list(numbers.hand_out(8)) == [4, 5, 6, 7, 8, 9]
    assert list(numbers.hand_out(2)) == [12, 13]


def test_the_last_ones_leave_no_gap():
    """Nothing was handed out after them; as where fewer batches were sent than asked for."""
    numbers = BatchNumbers(0)
    numbers.hand_out(10)
    numbers.take_back([range(4, 10)])
    assert not numbers.has_gaps
    assert [n for n in range(12) if not numbers.is_unused(n)] == [0, 1, 2, 3]
    assert list(numbers.hand_out(3)) == [4, 5, 6]
    numbers.take_back([range(1, 2)])
    assert numbers.has_gaps
    assert [n for n in range(9) if numbers.is_unused(n)] == [1, 7, 8]
