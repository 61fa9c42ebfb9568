"""How data comes in: placeholders, queues, iterators, Python functions."""

import numpy as np
import pytest

from tests.parity import regression, tf1
from tests.parity.processes import alone

pytestmark = pytest.mark.slow

STEPS = 12


def fed_in_tf1():
    tf = tf1.begin()
    return regression.tf1_train(tf, tf.train.GradientDescentOptimizer(0.1), STEPS)


def fitted_here():
    import keras

    return regression.weights(regression.fit(lambda: keras.optimizers.SGD(0.1), STEPS))


def test_placeholders_and_feed_dict(tf):
    """Batches fed step by step, and arrays given to `fit` at once, train to the same weights."""
    regression.assert_close(fitted_here(), alone(fed_in_tf1))


RECORDS, SIZE = 50, 16  # in all files, and in a batch


def written(directory):
    """Two TFRecord files of random images, which are told apart by their pixels."""
    from tf2dist.data import tfrecord

    random, paths = np.random.default_rng(5), [str(directory / f"{part}.tfrecords") for part in "ab"]
    for path, count in zip(paths, (20, RECORDS - 20), strict=True):
        tfrecord.write(path, random.integers(0, 256, (count, 28, 28), dtype=np.uint8), random.integers(0, 10, count))
    return paths


def read_by_queues(paths):
    """Batches of `shuffle_batch`, as it is by default and with the last one, and of `batch`."""
    tf = tf1.begin()
    form = {"image_raw": tf.FixedLenFeature([], tf.string), "label": tf.FixedLenFeature([], tf.int64)}

    def example():
        names = tf.train.string_input_producer(paths, num_epochs=1, shuffle=False)
        _, record = tf.TFRecordReader().read(names)
        features = tf.parse_single_example(record, form)
        image = tf.reshape(tf.decode_raw(features["image_raw"], tf.uint8), [28, 28])
        return [tf.cast(image, tf.float32) / 255, features["label"]]

    shuffle, last = {"capacity": 40, "min_after_dequeue": 20, "seed": 1}, {"allow_smaller_final_batch": True}
    tensors = {
        "default": tf.train.shuffle_batch(example(), SIZE, **shuffle),
        "whole": tf.train.shuffle_batch(example(), SIZE, **shuffle, **last),
        "in order": tf.train.batch(example(), SIZE, **last),
    }
    batches = {name: [] for name in tensors}
    with tf.Session() as session:
        session.run(tf.local_variables_initializer())
        coordinator = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(session, coordinator)
        for name in tensors:
            try:
                while True:
                    batches[name].append(session.run(tensors[name]))
            except tf.errors.OutOfRangeError:
                pass
        coordinator.request_stop()
        coordinator.join(threads)
    return batches


def test_queues(tf, tmp_path):
    """An epoch of shuffled batches from several files: each example once. A smaller last batch had to be asked for."""
    from tf2dist.data import tfrecord

    paths = written(tmp_path)
    theirs = alone(read_by_queues, paths)
    ours = [[tensor.numpy() for tensor in batch] for batch in tfrecord.read(paths, SIZE, shuffle=40, seed=1)]
    in_order = [[tensor.numpy() for tensor in batch] for batch in tfrecord.read(paths, SIZE)]
    assert [len(labels) for _, labels in theirs["default"]] == [16, 16, 16]
    for batches in (ours, in_order, theirs["whole"], theirs["in order"]):
        assert [len(labels) for _, labels in batches] == [16, 16, 16, 2]

    def examples(batches):
        """All of an epoch in its order, each as its pixels, 0 to 255, and its label."""
        images, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
        pixels = images if images.dtype == np.uint8 else np.rint(images * 255).astype(np.uint8)
        return [(*image.ravel().tolist(), label) for image, label in zip(pixels, labels.tolist(), strict=True)]

    there = examples(theirs["in order"])  # file after file; here, side by side
    assert len(set(there)) == RECORDS
    assert there == examples([tfrecord.load(paths)])
    assert examples(in_order)[:4] == [there[0], there[20], there[1], there[21]]
    for batches in (ours, in_order, theirs["whole"]):
        assert examples(batches) != there
        assert sorted(examples(batches)) == sorted(there)


PASSES, ROWS = 3, 9  # the last batch of a pass is smaller


def trained_by_iterator():
    tf = tf1.begin()
    iterator = tf.data.make_initializable_iterator(tf.data.Dataset.from_tensor_slices(regression.data()).batch(ROWS))
    x, y = iterator.get_next()
    step = tf.train.get_or_create_global_step()
    train = tf.train.GradientDescentOptimizer(0.1).minimize(regression.tf1_loss(tf, x, y), global_step=step)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(PASSES):
            session.run(iterator.initializer)
            try:
                while True:
                    session.run(train)
            except tf.errors.OutOfRangeError:
                pass
        return session.run([step, tf.trainable_variables()])


def test_iterators(tf):
    """Passes over an iterator that a session initialized, and the epochs of `fit` on the dataset; which is iterable."""
    import keras

    import tf2dist

    step, theirs = alone(trained_by_iterator)
    dataset = tf.data.Dataset.from_tensor_slices(regression.data()).batch(ROWS)
    with tf2dist.make_strategy("one").scope():
        model = regression.model(keras.optimizers.SGD(0.1))
    tf2dist.fit(model, dataset, epochs=PASSES)
    assert tf2dist.updates(model) == step == PASSES * len(dataset)
    regression.assert_close(regression.weights(model), theirs)
    assert [len(y) for _, y in dataset] == [9, 9, 9, 9, 9, 3]


BOARD = np.random.default_rng(6).integers(0, 2, (20, 30), dtype=np.uint8)


def lived_in_tf1(generations):
    tf = tf1.begin()

    def update(board):
        around = [np.roll(board, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j]
        neighbours = np.sum(around, axis=0)
        return ((neighbours == 3) | (board & (neighbours == 2))).astype(np.uint8)

    x = tf.placeholder(tf.uint8, BOARD.shape)
    after = tf.py_func(update, [x], tf.uint8)
    board = BOARD
    with tf.Session() as session:
        for _ in range(generations):
            board = session.run(after, {x: board})
    return board


def lived_here(generations):
    from trainers.life import packed_board
    from trainers.life.engines import make_engine
    from trainers.life.rule import parse

    engine = make_engine("numpy_function", parse("B3/S23"), *BOARD.shape, "torus")
    state = engine.advance(engine.load(packed_board.pack(BOARD)), generations)
    return packed_board.unpack(engine.board(state), BOARD.shape[1])


def test_python_functions(tf):
    """A NumPy function in the graph: 25 generations of the Game of Life."""
    theirs = alone(lived_in_tf1, 25)
    np.testing.assert_array_equal(lived_here(25), theirs)
    assert 0 < theirs.sum() != BOARD.sum()
