"""What a batch that Python makes is: its dtypes and its rows."""

import numpy as np
import pytest

from tf2dist.errors import UsageError
from tf2dist.input.batch_format import as_dtypes, as_spec, check_rows, spec_of


@pytest.mark.parametrize(
    ("first", "later", "expected"),
    [
        (np.float32([1]), np.float64([0.1]), "float32"),
        (np.float64([1]), np.float32([0.1]), "float64"),
        (np.int32([1]), np.int64([-5]), "int32"),
        (np.float32([1]), np.int64([3]), "float32"),
        (np.float32([1]), np.int64([(1 << 24) + 1]), "float32"),  # rounded
        (np.int64([1]), np.array([True]), "int64"),
        (np.int8([1]), np.int64([300]), "int64"),  # which it cannot hold
        (np.float16([1]), np.float32([1e6]), "float32"),
        (np.int64([1]), np.float32([0.5]), "float32"),
        (np.int64([1]), np.array(["a"]), "<U1"),
    ],
)
def test_numbers_take_the_dtype_of_those_before_them_if_it_holds_them(tf, first, later, expected):
    x, y = as_dtypes(spec_of((first, first)), (later, first))
    assert (x.dtype, y.dtype) == (expected, first.dtype)
    assert as_dtypes(spec_of((first,)), (later, first))[0].dtype == later.dtype  # a batch of another structure
    if expected == first.dtype:
        assert as_spec(spec_of(first), later).dtype == expected
    else:
        with pytest.raises(TypeError):
            as_spec(spec_of(first), later)


def test_rows_of_parts_are_compared_but_not_those_within_one(tf):
    two, three, none = np.zeros((2, 1)), np.zeros(3), np.zeros(0)
    for batch in ((two,), (two, np.zeros(2)), ({"labelled": two, "other": three}, two), ([two, none], three)):
        check_rows(batch)
    check_rows((tf.ragged.constant([[1], [2, 3], [4]]), three))
    check_rows((two, np.zeros(2), None))
    for batch, said in (
        ((two, three), "x of 2, y of 3"),
        ((two, None, three), "x of 2, sample_weight of 3"),
        ((none, none), "must have rows"),
        (([none, none],), "must have rows"),
    ):
        with pytest.raises(UsageError, match=said):
            check_rows(batch)
