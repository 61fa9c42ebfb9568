"""Data that Python yields, on the strategies of one process: the numbers of Keras, and one clear error."""

import itertools
import os
import threading
import time

import keras
import numpy as np
import pytest
import scipy.sparse

import tf2dist
from tests.conftest import sampled
from tests.input.python_kinds import BROKEN, KINDS, STEPS, Rows, batches, composite, endless
from tests.models import OPTIMIZERS, ROWS, classifier, same_weights, weights
from tf2dist.errors import UsageError
from tf2dist.input.make_adapter import make_data_adapter
from tf2dist.input.timed_batch_reader import BatchReader
from tf2dist.system import linux


def made():
    return classifier(OPTIMIZERS["adam"]())


def same_logs(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, values in theirs.items():
        np.testing.assert_allclose(ours[name], values, rtol=1e-4, err_msg=name)


def on_strategies(name, table):
    """Parameters `strategy` and `name`: on `mirrored` all; on `one` the first, and all when all are asked for."""
    mirrored, one = ([(strategy, kind) for kind in table] for strategy in ("mirrored", "one"))
    pairs = sampled([*mirrored, *one], slow=[*mirrored, one[0]])
    return pytest.mark.parametrize(("strategy", name), pairs, indirect=["strategy"])


@on_strategies("kind", KINDS)
def test_as_keras(strategy, kind):
    steps = None if kind in ("PyDataset", "DataLoader", "iterable") else STEPS
    arguments = {"epochs": 3, "steps_per_epoch": STEPS, "shuffle": False}
    arguments |= {"validation_data": batches()[1], "verbose": 0}
    theirs, reference = made(), Rows(reorder="changes" in kind or "with " in kind)
    expected = theirs.fit(reference, **arguments).history
    with strategy.scope():
        model = made()
    given = KINDS[kind]()
    found = tf2dist.fit(model, given, **{**arguments, "steps_per_epoch": steps}).history
    same_logs(found, expected)
    same_weights(model, theirs)
    if isinstance(given, Rows):
        assert given.calls == reference.calls


@on_strategies("kind", KINDS)
def test_evaluate_and_predict(strategy, kind):
    with strategy.scope():
        model = made()
    steps = STEPS if kind in ("PyDataset without end", "generator") else None
    x, y = (np.concatenate(each) for each in zip(*batches(), strict=True))
    found = tf2dist.evaluate(model, KINDS[kind](), steps=steps, return_dict=True)
    assert found == pytest.approx(model.evaluate(x, y, verbose=0, return_dict=True), rel=1e-4)
    np.testing.assert_allclose(tf2dist.predict(model, KINDS[kind](), steps=steps), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["mirrored"], indirect=True)
def test_predict_calls_the_hooks_of_a_py_dataset_as_keras_does(strategy):
    """None before the first batch, so that the outputs are in the order that the data has when it is given."""
    with strategy.scope():
        model = made()
    ours, theirs = Rows(reorder=True), Rows(reorder=True)
    for steps in (None, None, 3):
        expected = model.predict(theirs, verbose=0, steps=steps)
        found = tf2dist.predict(model, ours, steps=steps)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        assert ours.calls == theirs.calls


@on_strategies("wrong", BROKEN)
def test_one_clear_error(strategy, monkeypatch, wrong):
    monkeypatch.setenv("TF2DIST_BATCH_TIMEOUT", "3")
    broken, error, message = BROKEN[wrong]
    with strategy.scope():
        model = made()
    before, threads = linux.descendants(os.getpid()), threading.active_count()
    with pytest.raises(error) as caught:
        tf2dist.fit(model, broken(), epochs=2, steps_per_epoch=STEPS, shuffle=False)
    assert message in str(caught.value)
    if wrong != "blocks":  # a thread that user's code holds up cannot be ended
        assert threading.active_count() <= threads
    assert linux.descendants(os.getpid()) == before
    tf2dist.fit(model, endless(), steps_per_epoch=STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_ragged_and_sparse_tensors(strategy, tf, kind):
    """In a Dataset, and yielded by Python."""
    dataset, compiled = composite(kind)
    theirs = compiled()
    expected = theirs.fit(dataset, epochs=2, verbose=0).history
    for given in (dataset, (batch for batch in [*dataset, *dataset])):
        with strategy.scope():
            model = compiled()
        found = tf2dist.fit(model, given, epochs=2, steps_per_epoch=STEPS).history
        same_logs(found, expected)
        same_weights(model, theirs)


def whole(kind, tf):
    """All examples of `composite(kind)` as one matrix or tensor, and their labels."""
    dataset, _ = composite("ragged" if kind == "ragged" else "sparse")
    rows = [*dataset.unbatch()]
    y = np.stack([y for _, y in rows])
    if kind == "ragged":
        return tf.ragged.stack([x for x, _ in rows]), y
    dense = np.stack([tf.sparse.to_dense(x) for x, _ in rows])
    return (scipy.sparse.csc_matrix(dense) if kind == "SciPy" else tf.sparse.from_dense(dense)), y


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["SciPy", "sparse", "ragged"])
def test_whole_sparse_and_ragged(strategy, tf, kind):
    """As arrays: batches are cut from them, some rows are set apart, and others evaluated."""
    x, y = whole(kind, tf)
    _, compiled = composite("ragged" if kind == "ragged" else "sparse")
    rows = ROWS - ROWS // 4
    theirs = compiled()
    dataset = tf.data.Dataset.from_tensor_slices((x if kind != "SciPy" else whole("sparse", tf)[0], y))
    train, rest = dataset.take(rows), dataset.skip(rows)
    expected = theirs.fit(train.batch(8), validation_data=rest.batch(8), epochs=2, verbose=0).history
    with strategy.scope():
        model = compiled()
    found = tf2dist.fit(
        model, x, y, batch_size=8, validation_split=1 - rows / ROWS, epochs=2, shuffle=False, verbose=0
    ).history
    same_logs(found, expected)
    same_weights(model, theirs)
    predicted = theirs.predict(dataset.batch(8), verbose=0)
    np.testing.assert_allclose(tf2dist.predict(model, x, batch_size=8), predicted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(tf2dist.predict(model, x, batch_size=8, steps=2), predicted[:16], rtol=1e-4, atol=1e-5)


def test_whole_sparse_matrices_are_shuffled(tf):
    """A new order in each pass, the same with the same seed, with every row once."""
    x, y = scipy.sparse.eye(40, format="csr"), np.arange(40)
    passes = []
    for seed in (1, 1, 2):
        adapter = make_data_adapter((x, y), batch_size=16, shuffle=True, seed=seed)
        passes.append([[int(n) for _, batch in adapter.dataset for n in batch] for _ in range(2)])
    first, same_seed, other_seed = passes
    assert first == same_seed
    assert len({tuple(order) for order in (*first, *other_seed)}) == 4
    assert [sorted(order) for order in first] == [[*range(40)]] * 2
    for rows, labels in make_data_adapter((x, y), batch_size=16, shuffle=True).dataset:
        assert (tf.argmax(tf.sparse.to_dense(rows), 1).numpy() == labels.numpy()).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [iter, lambda generator: map(tuple, generator)], ids=["generator", "map"])
def test_a_generator_is_left_where_training_has_ended(kind, tf):
    """Also for the next call, and where a callback has stopped it; a `map` cannot be referred to weakly."""
    numbers = []

    def counted():
        for number, batch in enumerate(endless()):
            numbers.append(number)
            yield batch

    generator, model = kind(counted()), made()
    stop = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: setattr(model, "stop_training", batch == 1)
    )
    tf2dist.fit(model, generator, steps_per_epoch=3)
    assert numbers == [0, 1, 2]
    tf2dist.fit(model, generator, steps_per_epoch=4, callbacks=stop)
    assert tf2dist.updates(model) == 5
    tf2dist.fit(model, generator, initial_epoch=1, epochs=2, steps_per_epoch=5)
    assert numbers == [*range(10)]
    expected = made()
    expected.fit(endless(), steps_per_epoch=10, verbose=0)
    same_weights(model, expected)


@pytest.mark.slow
def test_a_new_generator_begins_with_the_batch_that_is_due(tf):
    """As in a job that goes on: what was looked at for its shape counts as not read yet."""
    model, expected, first = made(), made(), []
    note = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: first.append(epoch))
    tf2dist.fit(model, endless(), initial_epoch=1, epochs=2, steps_per_epoch=5, callbacks=[note])
    assert first == [1]
    theirs = endless()
    for _ in range(5):
        next(theirs)
    expected.fit(theirs, steps_per_epoch=5, verbose=0)
    same_weights(model, expected)


class Noted(Rows):
    """Notes which of its batches are asked for."""

    def __init__(self, numbers):
        super().__init__()
        self.numbers = numbers

    def __getitem__(self, index):
        self.numbers.append(index)
        return super().__getitem__(index)


def test_each_later_pass_is_a_whole_one(tf):
    """Where training begins in the middle of a pass."""
    numbers = []
    data = Noted(numbers)
    count, model = len(data), made()
    steps = count - 2
    tf2dist.fit(model, data, initial_epoch=1, epochs=4, steps_per_epoch=steps, shuffle=False)
    wanted = [n % count for n in range(steps, 4 * steps)]
    assert numbers[-len(wanted) :] == wanted
    batch_of = batches()
    expected = made()
    expected.fit((batch_of[n] for n in wanted), steps_per_epoch=len(wanted), verbose=0)
    same_weights(model, expected)


@pytest.mark.slow
def test_a_generator_without_steps_is_kept(tf):
    theirs, model = made(), made()
    theirs.fit(Rows(), epochs=2, shuffle=False, verbose=0)
    tf2dist.fit(model, iter(batches()), epochs=2)
    same_weights(model, theirs)
    assert tf2dist.predict(model, (batch for batch in batches())).shape == (ROWS, 3)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["one"], indirect=True)
def test_the_order_of_a_shuffled_py_dataset_follows_from_the_seed(strategy):
    def trained(seed):
        model = made()
        tf2dist.fit(model, Rows(), epochs=2, seed=seed)
        return weights(model)[0]

    np.testing.assert_array_equal(trained(1), trained(1))
    assert np.abs(trained(1) - trained(2)).max() > 1e-6


@pytest.mark.slow
def test_a_length_that_changes(tf):
    class Shrinks(Rows):
        def on_epoch_begin(self):
            super().on_epoch_begin()
            if self.calls.count("begin") == 2:
                del self.batches[-1]

    with pytest.raises(ValueError, match="says that it has 6 batches, and has said 7 before"):
        tf2dist.fit(made(), Shrinks(), epochs=3)


@pytest.mark.slow
def test_skipping_has_the_time_of_a_batch_for_each(tf, monkeypatch):
    """Where training goes on at batch 10, batches before it are read again: each may take as long as any other."""
    monkeypatch.setenv("TF2DIST_BATCH_TIMEOUT", "2")

    def slow():
        for number, batch in enumerate(endless()):
            time.sleep(0.5 if number < 8 else 0)
            yield batch

    for kind in (slow(), _Unsized(slow)):
        model = made()
        tf2dist.fit(model, kind, initial_epoch=2, epochs=3, steps_per_epoch=4)
        assert tf2dist.updates(model) == 4


class _Unsized:
    """Batches that are made anew for each pass, of which there are 15."""

    def __init__(self, make):
        self._make = make

    def __len__(self):
        return 15

    def __iter__(self):
        return itertools.islice(self._make(), 15)


def test_slices_for_synchronous_workers_make_up_the_batches(tf):
    """As of data that TensorFlow reads, from any step on."""
    start, total, workers, steps = 2, 2, 3, 3
    parts = [[] for _ in range(workers)]
    for worker in range(workers):
        feed = make_data_adapter(Rows(), shuffle=False)
        feed.begin_epoch()
        stream = iter(feed.training_slices(None, total, start, worker, workers))
        feed.allow(steps)
        parts[worker] = [next(stream) for _ in range(total * steps // workers)]
        feed.close()
    turns = [part for turn in zip(*parts, strict=True) for part in turn]
    for number, (_, y) in enumerate(batches()[start : start + steps]):
        pair = turns[total * number : total * (number + 1)]
        np.testing.assert_array_equal(np.concatenate([labels for (_, labels), _ in pair]), y)
        np.testing.assert_allclose([float(weight) for _, weight in pair], 0.5)


@pytest.mark.parametrize("text", ["soon", "0", "inf"])
def test_a_time_limit_that_is_none(monkeypatch, text):
    monkeypatch.setenv("TF2DIST_BATCH_TIMEOUT", text)
    with pytest.raises(
        UsageError, match=rf"^TF2DIST_BATCH_TIMEOUT is '{text}'; it must be a number of seconds above 0$"
    ):
        BatchReader(lambda: iter([]), "data")
