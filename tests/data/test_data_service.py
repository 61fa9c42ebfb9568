"""What a data service in this process makes of a pipeline: the same elements, and the numbers of Keras."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf2dist
from tests.models import OPTIMIZERS, ROWS, classifier, data, same_weights
from tf2dist.errors import TrainingError, UsageError
from tf2dist.input.dataset_adapter import DatasetAdapter
from tf2dist.input.dataset_graph import mark_served
from tf2dist.runtime import data_service, session

BATCH = 16
STEPS = -(-ROWS // BATCH)
Dataset = tf.data.Dataset
pytestmark = pytest.mark.timeout(120)


def rows():
    return Dataset.from_tensor_slices(data())


def some_rows():
    """90 of them, of which TensorFlow does not know how many they are."""
    return rows().enumerate().filter(lambda n, row: n < 90).map(lambda n, row: row)


def served(workers=1):
    return tf2dist.DataService(workers).distribute(rows())


@pytest.fixture(autouse=True)
def no_seed():
    """Which a test before may have set for the whole process."""
    tf.random.set_seed(None)


@pytest.fixture
def of_job(monkeypatch):
    """A service of one worker, as of a job: it may be lost, and started again."""
    service = dataclasses.replace(data_service.service_in_this_process(1), of_job=True)
    monkeypatch.setattr(session.current(), "data_service", service)


def made(strategy, **options):
    with strategy.scope():
        model = classifier(OPTIMIZERS["momentum"]())
        model.compile(OPTIMIZERS["momentum"](), model.loss, **{"metrics": ["accuracy"], **options})
    return model


def by_keras(dataset, **arguments):
    model = classifier(OPTIMIZERS["momentum"]())
    return model, model.fit(dataset, verbose=0, **arguments).history


def same_history(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, values in theirs.items():
        np.testing.assert_allclose(ours[name], values, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("workers", [1, 3])
def test_each_pass_has_each_element_once_in_another_order(workers):
    shuffled = Dataset.range(200).shuffle(200).map(lambda n: {"n": n, "twice": 2 * n})
    found = tf2dist.DataService(workers).distribute(shuffled)
    assert found.element_spec == shuffled.element_spec
    passes = [[int(each["n"]) for each in found.as_numpy_iterator()] for _ in range(3)]
    assert [sorted(each) for each in passes] == 3 * [list(range(200))]
    assert passes[0] != passes[1] != passes[2]
    assert all(each["twice"] == 2 * each["n"] for each in found.as_numpy_iterator())


def test_one_worker_keeps_the_order():
    assert list(tf2dist.DataService().distribute(Dataset.range(100)).as_numpy_iterator()) == list(range(100))


KINDS = {
    "numbers": lambda: Dataset.range(50),
    "text": lambda: Dataset.range(50).map(lambda n: tf.strings.as_string(n)),
    "nested": lambda: Dataset.range(50).map(lambda n: {"a": (n, tf.fill([3, 2], n)), "b": tf.cast(n, tf.bool)}),
    "unlike shapes": lambda: Dataset.range(50).map(lambda n: (n, tf.range(n))),
    "ragged": lambda: Dataset.range(10).map(lambda n: tf.ragged.range(tf.stack([n, 2 * n]))),
    "sparse": lambda: Dataset.from_tensor_slices(tf.sparse.eye(7)),
    "large": lambda: Dataset.range(3).map(lambda n: tf.fill([1 << 19], n)),
    "few": lambda: Dataset.range(5),
    "none": lambda: Dataset.range(0),
    "batched": lambda: Dataset.range(50).batch(8),
    "repeated": lambda: Dataset.range(5).repeat(3),
    "flattened": lambda: Dataset.range(4).interleave(lambda n: Dataset.range(n), cycle_length=2),
    "by python": lambda: Dataset.from_generator(lambda: range(20), output_signature=tf.TensorSpec([], tf.int64)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_elements_come_as_they_are(kind):
    dataset = KINDS[kind]()
    found = tf2dist.DataService().distribute(dataset)
    assert found.element_spec == dataset.element_spec
    expected = [tf.nest.flatten(each, expand_composites=True) for each in dataset]
    ours = [tf.nest.flatten(each, expand_composites=True) for each in found]
    assert len(ours) == len(expected)
    for a, b in zip(ours, expected, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)


def test_how_many_there_are_is_known_without_reading(monkeypatch):
    monkeypatch.setattr(DatasetAdapter, "_count_by_reading", lambda self: pytest.fail("it was read"))
    found = served(2)
    assert DatasetAdapter(found.batch(BATCH)).steps == STEPS
    assert DatasetAdapter(found.batch(BATCH, drop_remainder=True).skip(1)).steps == ROWS // BATCH - 1
    assert DatasetAdapter(found.batch(BATCH).map(lambda x, y: (x, y)), 3).steps == 3
    assert DatasetAdapter(tf2dist.DataService().distribute(rows().repeat()).batch(BATCH)).steps is None


def test_what_does_not_say_how_many_it_has_is_counted():
    found = tf2dist.DataService(2).distribute(rows().filter(lambda x, y: y > 0)).batch(BATCH)
    assert DatasetAdapter(found).steps == -(-np.count_nonzero(data()[1]) // BATCH)


def test_fit_evaluate_and_predict_have_the_numbers_of_keras(strategy):
    x, y = data()
    batches = served().batch(BATCH)
    model = made(strategy)
    arguments = {"epochs": 3, "class_weight": {0: 1.0, 1: 2.0, 2: 0.5}}
    history = tf2dist.fit(model, batches, validation_data=batches, verbose=0, **arguments).history
    plain = rows().batch(BATCH)
    theirs, expected = by_keras(plain, validation_data=plain, **arguments)
    same_weights(model, theirs)
    same_history(history, expected)
    np.testing.assert_allclose(tf2dist.evaluate(model, batches, verbose=0), theirs.evaluate(x, y, verbose=0), rtol=1e-4)
    found = tf2dist.predict(model, batches.map(lambda x, y: x), verbose=0)
    np.testing.assert_allclose(found, theirs.predict(x, verbose=0), rtol=1e-3, atol=1e-4)


def test_several_workers_and_sample_weights(strategy):
    """A batch has all rows, so their order makes no difference."""
    weighted = rows().map(lambda x, y: (x, y, tf.abs(x[0])))
    model = made(strategy)
    tf2dist.fit(model, tf2dist.DataService(3).distribute(weighted).batch(ROWS), epochs=4, verbose=0)
    theirs, _ = by_keras(weighted.batch(ROWS), epochs=4)
    same_weights(model, theirs)


def test_epochs_of_fewer_steps_than_a_pass_and_a_call_that_goes_on(strategy):
    arguments = {"steps_per_epoch": 3, "verbose": 0}
    ours, theirs = made(strategy), made(strategy)
    for model, batches in ((ours, served().batch(BATCH)), (theirs, rows().batch(BATCH))):
        tf2dist.fit(model, batches, epochs=3, **arguments)
        tf2dist.fit(model, batches, epochs=5, initial_epoch=3, **arguments)
    same_weights(ours, theirs)
    assert tf2dist.updates(ours) == 15


def test_training_goes_on_where_elements_were_lost(strategy):
    """As with a data worker: a pass has 90 of 103, and the next one is begun for the rest."""
    model = made(strategy)
    lost = mark_served(some_rows(), ROWS, 2, lossy=True).batch(BATCH)
    history = tf2dist.fit(model, lost, epochs=2, verbose=0)
    assert (len(history.epoch), tf2dist.updates(model)) == (2, 2 * STEPS)


def test_a_prediction_in_which_elements_were_lost_fails(strategy):
    model = made(strategy)
    lost = mark_served(some_rows(), ROWS, 1, lossy=True).batch(BATCH)
    with pytest.raises((tf.errors.FailedPreconditionError, TrainingError), match="103 elements but contained only 90"):
        tf2dist.predict(model, lost.map(lambda x, y: x), verbose=0)


def test_an_evaluation_in_which_elements_were_lost_fails(strategy):
    """Though it has as many batches as without the loss."""
    lost = mark_served(rows().skip(5), ROWS, 2, lossy=True).batch(BATCH)
    model = made(strategy)
    with pytest.raises((tf.errors.FailedPreconditionError, TrainingError), match="103 elements but contained only 98"):
        tf2dist.evaluate(model, lost, verbose=0)
    with pytest.raises((tf.errors.FailedPreconditionError, TrainingError), match="103 elements but contained only 98"):
        tf2dist.fit(model, rows().batch(BATCH), validation_data=lost, verbose=0)


def test_of_data_workers_it_must_be_known_how_many_elements_they_make(strategy, of_job):
    model, positive = made(strategy), rows().filter(lambda x, y: y > 0)
    found = tf2dist.DataService().distribute(positive).batch(BATCH)
    for call in (tf2dist.fit, tf2dist.evaluate):
        with pytest.raises(UsageError, match="nobody knows how many elements data workers make"):
            call(model, found, verbose=0)
    tf2dist.fit(model, found, steps_per_epoch=2, verbose=0)
    counted = positive.apply(tf.data.experimental.assert_cardinality(int(np.count_nonzero(data()[1]))))
    served = tf2dist.DataService().distribute(counted)
    assert len(list(served)) == len(list(positive))
    adapter = DatasetAdapter(served.batch(BATCH))
    assert adapter.steps == -(-len(list(positive)) // BATCH)
    tf2dist.fit(model, served.batch(BATCH), epochs=2, verbose=0)


def test_an_assertion_in_the_middle_is_not_of_a_part_of_the_elements(of_job):
    """As tensorflow-datasets makes one."""
    asserted = rows().apply(tf.data.experimental.assert_cardinality(ROWS)).map(lambda x, y: (x + 1, y))
    found = list(tf2dist.DataService().distribute(asserted))
    assert len(found) == ROWS
    assert np.array_equal(sorted(float(x[0]) for x, y in found), sorted(float(x[0] + 1) for x, y in rows()))


def test_predictions_of_several_workers_are_refused(strategy):
    with pytest.raises(UsageError, match="2 data workers make its elements in any order"):
        tf2dist.predict(made(strategy), served(2).batch(BATCH).map(lambda x, y: x))


def numbers():
    return Dataset.range(20)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda found: Dataset.zip(found, rows().map(lambda x, y: y)).map(lambda row, y: (row[0], y)), "Zip"),
        (lambda found: found.take(64), "Take"),
        (lambda found: found.skip(64), "Skip"),
        (lambda found: found.enumerate().map(lambda n, row: row), "Zip"),
        (lambda found: found.shard(2, 0), "Shard"),
        (lambda found: found.cache(), "Cache"),
    ],
)
def test_what_goes_by_the_order_of_what_data_workers_make_is_refused(strategy, change, said, of_job):
    found = tf2dist.DataService().distribute(rows())
    for call in (tf2dist.fit, tf2dist.evaluate):
        with pytest.raises(UsageError, match=f"an operation {said} on elements of data workers") as error:
            call(made(strategy), change(found).batch(BATCH), verbose=0)
        assert "\n" not in str(error.value)
    tf2dist.fit(made(strategy), found.shuffle(20).repeat(2).batch(BATCH), verbose=0)


def noisy():
    noise = keras.layers.GaussianNoise(1.0, seed=3)
    return rows().map(lambda x, y: (noise(x, training=True), y))


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        (lambda: rows().shuffle(20, seed=1), "Shuffle with a seed"),
        (lambda: rows().shuffle(20, reshuffle_each_iteration=False), "reshuffle_each_iteration=False"),
        (lambda: rows().map(lambda x, y: (x + tf.random.normal([], seed=4), y)), "RandomStandardNormal with a seed"),
        (noisy, "a variable, as of a layer of random numbers"),
    ],
)
def test_what_would_be_the_same_in_each_pass_is_refused(dataset, said):
    with pytest.raises(UsageError, match=said) as error:
        tf2dist.DataService().distribute(dataset())
    assert "\n" not in str(error.value)


def test_a_seed_of_the_program_is_one_of_the_shuffle():
    tf.random.set_seed(1)
    with pytest.raises(UsageError, match="Shuffle with a seed"):
        tf2dist.DataService().distribute(rows().shuffle(20))
    assert tf2dist.DataService().distribute(rows()).shuffle(20)
    tf.random.set_seed(None)


def test_random_numbers_without_a_seed_are_others_in_each_pass():
    found = tf2dist.DataService().distribute(numbers().map(lambda n: tf.random.normal([])))
    assert [*found.as_numpy_iterator()] != [*found.as_numpy_iterator()]


def test_one_worker_of_this_process_makes_anything():
    """It is not started again in the middle, nor is anything divided."""
    dataset = Dataset.zip(numbers().skip(3), numbers().batch(2).unbatch()).take(5).cache()
    found = tf2dist.DataService().distribute(dataset)
    assert [*found.as_numpy_iterator()] == [*dataset.as_numpy_iterator()]


@pytest.mark.parametrize(
    ("dataset", "workers", "said"),
    [
        (lambda: [1, 2], 1, "distributes a tf.data.Dataset, found list"),
        (lambda: numbers().window(3), 1, "are Datasets .as of window., which do not travel"),
        (lambda: numbers().take(6), 2, "an operation Take, which each data worker would do"),
        (lambda: numbers().batch(6), 2, "an operation Batch, "),
        (lambda: numbers().enumerate(), 2, "an operation "),
        (lambda: numbers().cache(), 2, "an operation Cache, "),
        (lambda: numbers().repeat(2).map(lambda n: n), 2, "an operation Repeat, "),
        (lambda: Dataset.zip(numbers(), numbers()), 2, "an operation Zip, "),
        (lambda: numbers().concatenate(numbers()), 2, "an operation Concatenate, "),
        (lambda: Dataset.random(), 2, "an operation Random, "),
    ],
)
def test_what_data_workers_cannot_make_is_refused(dataset, workers, said):
    with pytest.raises(UsageError, match=said) as error:
        tf2dist.DataService(workers).distribute(dataset())
    assert "\n" not in str(error.value)


def test_a_service_of_a_service_is_refused():
    """TensorFlow would wait for it for ever."""
    with pytest.raises(UsageError, match="made by a data service already"):
        served().batch(4).apply(tf2dist.DataService().distribute)


def test_in_a_traced_function_it_is_refused():
    with pytest.raises(UsageError, match="in a function that TensorFlow traces"):
        numbers().flat_map(lambda n: tf2dist.DataService().distribute(numbers()))


@pytest.mark.parametrize("workers", [0, -1, "two", 1.5, True])
def test_numbers_of_workers(workers):
    with pytest.raises(UsageError, match="must be a whole number from 1 on"):
        tf2dist.DataService(workers)


def test_an_error_of_the_pipeline_is_said():
    def fail(number):
        with tf.control_dependencies([tf.debugging.assert_less(number, np.int64(3), "three is too many")]):
            return tf.identity(number)

    with pytest.raises(tf.errors.InvalidArgumentError, match="three is too many"):
        list(tf2dist.DataService().distribute(numbers().map(fail)))


def test_it_is_for_keras_too():
    model, plain = classifier(OPTIMIZERS["sgd"]()), classifier(OPTIMIZERS["sgd"]())
    for each, dataset in ((model, served()), (plain, rows())):
        each.fit(dataset.batch(BATCH), epochs=2, verbose=0)
    same_weights(model, plain)
    keras.backend.clear_session()
