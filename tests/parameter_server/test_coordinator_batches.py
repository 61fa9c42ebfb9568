"""Batches that a coordinator sends have numbers, and are kept until they are used."""

import numpy as np
import pytest


@pytest.fixture
def made(tf):
    from tf2dist.input.batch_groups import single_batches
    from tf2dist.parameter_server.coordinator_batches import SentBatches

    def batches():
        for number in range(6):
            yield np.full([2 + number % 2], number, np.int64)

    dataset = tf.data.Dataset.from_generator(batches, output_signature=tf.TensorSpec([None], tf.int64))
    sent = SentBatches(iter(dataset), dataset.element_spec, 10)

    def take(numbers, at_least=1):
        count, together, shapes = sent.take(numbers, at_least)
        found = [batch.numpy().tolist() for batch in single_batches(together, shapes, sent.element_spec)]
        assert len(found) == count
        return found

    return sent, take


def test_batches_that_were_not_used_are_sent_again(made):
    sent, take = made
    assert take(range(10, 13)) == [[0, 0], [1, 1, 1], [2, 2]]
    assert take(range(11, 14)) == [[1, 1, 1], [2, 2], [3, 3, 3]]  # two of them again
    sent.forget(range(10, 12))
    with pytest.raises(AssertionError, match="batch 11 is not kept, and 14 is the next one"):
        take(range(11, 12))
    assert sent.kept == 2
    sent.forget_all_but(lambda number: number == 12)
    assert sent.kept == 1
    assert take(range(12, 13)) == [[2, 2]]
    with pytest.raises(AssertionError, match="batch 13 is not kept"):
        take(range(13, 14))


def test_what_takes_long_is_sent_when_some_of_it_is_read(made, monkeypatch):
    from tf2dist.parameter_server import coordinator_batches

    sent, take = made
    monkeypatch.setattr(coordinator_batches, "_READ_SECONDS", 0.0)
    assert take(range(10, 14)) == [[0, 0]]
    assert take(range(11, 16), at_least=3) == [[1, 1, 1], [2, 2], [3, 3, 3]]
    assert sent.nbytes == (2 + 3 + 2 + 3) * 8


def test_the_end_of_the_data(tf, made):
    _, take = made
    assert take(range(10, 20)) == [[0, 0], [1, 1, 1], [2, 2], [3, 3, 3], [4, 4], [5, 5, 5]]
    with pytest.raises(tf.errors.OutOfRangeError, match="the data has ended"):
        take(range(16, 17))
    assert take(range(14, 17)) == [[4, 4], [5, 5, 5]]
