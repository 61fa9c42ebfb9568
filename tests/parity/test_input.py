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


def read_by_queues(path, batch):
    tf = tf1.begin()
    names = tf.train.string_input_producer([path], num_epochs=1, shuffle=False)
    _, record = tf.TFRecordReader().read(names)
    form = {"image_raw": tf.FixedLenFeature([], tf.string), "label": tf.FixedLenFeature([], tf.int64)}
    features = tf.parse_single_example(record, form)
    image = tf.reshape(tf.decode_raw(features["image_raw"], tf.uint8), [28, 28])
    image = tf.cast(image, tf.float32) / 255
    tensors = tf.train.batch([image, features["label"]], batch, allow_smaller_final_batch=True)
    batches = []
    with tf.Session() as session:
        session.run(tf.local_variables_initializer())
        coordinator = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(session, coordinator)
        try:
            while not coordinator.should_stop():
                batches.append(session.run(tensors))
        except tf.errors.OutOfRangeError:
            coordinator.request_stop()
        coordinator.join(threads)
    return batches


def read_by_iterator(path, batch):
    tf = tf1.begin()
    form = {"image_raw": tf.FixedLenFeature([], tf.string), "label": tf.FixedLenFeature([], tf.int64)}

    def parse(record):
        features = tf.parse_single_example(record, form)
        image = tf.reshape(tf.decode_raw(features["image_raw"], tf.uint8), [28, 28])
        return tf.cast(image, tf.float32) / 255, features["label"]

    iterator = tf.data.make_initializable_iterator(tf.data.TFRecordDataset(path).map(parse).batch(batch))
    tensors, batches = iterator.get_next(), []
    with tf.Session() as session:
        session.run(iterator.initializer)
        try:
            while True:
                batches.append(session.run(tensors))
        except tf.errors.OutOfRangeError:
            return batches


def written_and_read_here(path, batch):
    from tf2dist.data import tfrecord

    random = np.random.default_rng(5)
    tfrecord.write(path, random.integers(0, 256, (50, 28, 28), dtype=np.uint8), random.integers(0, 10, 50))
    return [(images.numpy(), labels.numpy()) for images, labels in tfrecord.read(path, batch)]


def same_batches(ours, theirs):
    assert [len(labels) for _, labels in theirs] == [16, 16, 16, 2]
    for (images, labels), (their_images, their_labels) in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(images, their_images, rtol=1e-6)  # one divides, one multiplies
        np.testing.assert_array_equal(labels, their_labels)


def test_queues(tf, tmp_path):
    """Batches that queue runners read from TFRecord files, and those of a Dataset, also the last, smaller one."""
    path = str(tmp_path / "train.tfrecords")
    same_batches(written_and_read_here(path, 16), alone(read_by_queues, path, 16))


def test_iterators(tf, tmp_path):
    """An iterator that a session initialized, and a Dataset."""
    path = str(tmp_path / "train.tfrecords")
    same_batches(written_and_read_here(path, 16), alone(read_by_iterator, path, 16))


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
