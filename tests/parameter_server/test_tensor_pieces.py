"""Arrays are cut into pieces, and joined to the same tensors again."""

import ml_dtypes
import numpy as np
import pytest

from tf2dist.parameter_server.tensor_pieces import ArrayPieces, copy_to_device

NUMBERS = np.arange(5 * 7 * 3).reshape(5, 7, 3)
WORDS = np.array(["a", "", "füße" * 9, "\U0001f600", "end" * 30] * 3).reshape(5, 3)
ARRAYS = {
    "u8": NUMBERS.astype(np.uint8),
    "i64": NUMBERS,
    "f16": NUMBERS.astype(np.float16),
    "bfloat16": NUMBERS.astype(ml_dtypes.bfloat16),
    "complex": NUMBERS * 1j,
    "bool": NUMBERS % 3 == 0,
    "one dimension": NUMBERS.reshape(-1),
    "a huge row": NUMBERS.reshape(1, -1),
    "nothing in a row": np.zeros((5, 0, 2), np.float32),
    "a view": NUMBERS[::2, ::-1, 1:],
    "columns first": np.asfortranarray(NUMBERS),
    "words": WORDS,
    "bytes": np.char.encode(WORDS, "utf-8"),
    "objects": WORDS.astype(object),
    "bytes as objects": np.char.encode(WORDS, "utf-8").astype(object),
    "a view of objects": WORDS.astype(object)[:, ::2],
    "no strings in a row": np.zeros((5, 0), object),
    "a single string": np.array(b"\0".join([b"graph"] * 50), object),
    "no text": np.array(b"", object),
}


@pytest.mark.parametrize("nbytes", [1, 8, 100, 1 << 20])
@pytest.mark.parametrize("name", ARRAYS)
def test_what_is_joined_is_what_was_cut(tf, name, nbytes):
    array = ARRAYS[name]
    pieces = ArrayPieces(array, nbytes)
    (tensor,) = copy_to_device([pieces], lambda: True)
    expected = tf.constant(array)
    assert (tensor.dtype, tensor.shape) == (expected.dtype, expected.shape) == (pieces.spec.dtype, pieces.spec.shape)
    np.testing.assert_array_equal(tensor.numpy(), expected.numpy())
    assert len(pieces) == len([*pieces])


@pytest.mark.parametrize("name", [n for n in ARRAYS if n != "no text"])
def test_no_piece_is_larger_than_asked_for(name):
    for piece in ArrayPieces(ARRAYS[name], 160):
        text = isinstance(piece, bytes) or piece.dtype.kind in "OSU"
        held = sum(len(v if isinstance(v, bytes) else v.encode()) for v in np.ravel(piece)) if text else piece.nbytes
        assert held <= 160


def test_a_string_larger_than_a_piece_is_one(tf):
    pieces = [[*piece] for piece in ArrayPieces(np.array(["a", "b", "c" * 500, "d"], object), 100)]
    assert pieces == [["a", "b"], ["c" * 500], ["d"]]


def test_pieces_of_a_large_array_are_views():
    array = np.arange(100)
    assert all(np.shares_memory(piece, array) for piece in ArrayPieces(array, 80))


def test_objects_that_are_no_strings_are_named():
    with pytest.raises(ValueError, match=r"must hold strings, found 1\.5"):
        ArrayPieces(np.array(["a", 1.5], object), 80)


def test_arrays_that_nobody_wants_any_more_are_not_sent(tf):
    asked = []

    def is_wanted():
        asked.append(True)
        return len(asked) < 3

    assert copy_to_device([ArrayPieces(np.arange(100), 80)], is_wanted) is None
    assert len(asked) == 3
