"""Data that Python yields, for tests: the same batches as each kind of it, and what is wrong with such data."""

import os
import signal
import threading

import keras
import numpy as np

from tests.models import data

BATCH = 16
STEPS = 7  # the last has 7 rows


def batches():
    """The batches of `tests.models.data`, in order."""
    x, y = data()
    return [(x[at : at + BATCH], y[at : at + BATCH]) for at in range(0, len(x), BATCH)]


class Rows(keras.utils.PyDataset):
    """The batches, in another order after each epoch."""

    def __init__(self, reorder=False, **kwargs):
        super().__init__(**kwargs)
        self.batches, self.calls, self._reorder = batches(), [], reorder

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]

    def on_epoch_begin(self):
        self.calls.append("begin")

    def on_epoch_end(self):
        self.calls.append("end")
        if self._reorder:
            self.batches = [*self.batches[3:], *self.batches[:3]]


class Endless(Rows):
    @property
    def num_batches(self):
        return None

    def __getitem__(self, index):
        return self.batches[index % len(self.batches)]


class DataLoader:
    """As Keras and we see that of torch: an iterable of lists of tensors, of which `dataset` says how many."""

    __module__ = "torch.utils.data.dataloader"
    batch_size, dataset = BATCH, range(103)

    class Tensor:
        def __init__(self, array):
            self.array, self.shape = array, array.shape

        def detach(self):
            return self

        def cpu(self):
            return self

        def __array__(self, dtype=None, copy=None):
            return self.array

    def __iter__(self):
        return iter([[self.Tensor(a) for a in batch] for batch in batches()])

    def __len__(self):
        return STEPS


class Unsized:
    """An iterable that does not say how many batches it has."""

    def __iter__(self):
        return iter(batches())


def endless():
    while True:
        yield from batches()


KINDS = {
    "PyDataset": Rows,
    "PyDataset that changes": lambda: Rows(reorder=True),
    "PyDataset with threads": lambda: Rows(reorder=True, workers=3, max_queue_size=2),
    "PyDataset with processes": lambda: Rows(reorder=True, workers=2, use_multiprocessing=True),
    "PyDataset without end": Endless,
    "DataLoader": DataLoader,
    "iterable": Unsized,
    "generator": endless,
}


def _raises():
    yield from batches()[:3]
    raise KeyError("row 77")


def _another_structure():
    yield from batches()[:3]
    yield batches()[3][0]


def _another_shape():
    yield from batches()[:3]
    x, y = batches()[3]
    yield x[:, :5], y


def _blocks():
    yield from batches()[:3]
    threading.Event().wait()


class _Lies(Rows):
    def __len__(self):
        return len(self.batches) + 3


class _Dies(Rows):
    def __getitem__(self, index):
        if index == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.batches[index]


# What is wrong, and the error that tells.
BROKEN = {
    "ends early": (lambda: iter(batches()[:5]), ValueError, "has ended after 5 batches, and 7 were to come"),
    "raises": (_raises, KeyError, "row 77"),
    "another structure": (_another_structure, ValueError, "batch 3 of the generator"),
    "another shape": (
        _another_shape,
        ValueError,
        "expected (float32[None, 12], int64[None]), found (float32[16, 5], int64[16])",
    ),
    "blocks": (_blocks, ValueError, "batch 3 of the generator has not come in 3 s"),
    "lies": (_Lies, IndexError, "list index out of range"),
    "dies": (
        lambda: _Dies(workers=2, use_multiprocessing=True),
        ValueError,
        "a worker process of the _Dies has died while it made a batch",
    ),
}


def datasets():
    """Datasets that call Python, of the same batches; by name, what makes them."""
    import tensorflow as tf

    spec = (tf.TensorSpec([None, 12], tf.float32), tf.TensorSpec([None], tf.int64))

    def called(x, y):
        x = tf.numpy_function(lambda x: x + 0.0, [x], tf.float32)
        x = tf.py_function(lambda x: x + 0.0, [x], tf.float32)
        return tf.ensure_shape(x, [None, 12]), y

    return {
        "from_generator": lambda: tf.data.Dataset.from_generator(batches, output_signature=spec),
        "numpy_function": lambda: tf.data.Dataset.from_tensor_slices(data()).batch(BATCH).map(called),
    }


def shuffled():
    """A Dataset of the same batches in another order in each pass, and how many it has yielded in each so far."""
    import tensorflow as tf

    passes = []

    def counted():
        passes.append(0)
        for batch in batches():
            passes[-1] += 1
            yield batch

    spec = (tf.TensorSpec([None, 12], tf.float32), tf.TensorSpec([None], tf.int64))
    tf.random.set_seed(1)  # of which the order is made, too
    return tf.data.Dataset.from_generator(counted, output_signature=spec).shuffle(8, seed=1), passes


def composite(kind):
    """A Dataset of ragged or sparse inputs, and what makes a compiled model for them."""
    import tensorflow as tf

    x, y = data()
    given = tf.RaggedTensor.from_row_lengths(np.arange(205) % 9, np.arange(len(x)) % 3 + 1)
    if kind == "sparse":
        given = tf.sparse.from_dense(np.where(x > 0, x, 0))

    def compiled():
        dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=1))
        if kind == "sparse":
            inputs = keras.Input((12,), sparse=True)
            model = keras.Model(inputs, dense(inputs))
        else:
            table = keras.layers.Embedding(9, 3, embeddings_initializer=keras.initializers.RandomNormal(seed=2))
            model = keras.Sequential([table, keras.layers.GlobalAveragePooling1D(), dense])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    return tf.data.Dataset.from_tensor_slices((given, y.astype(np.float32))).batch(BATCH), compiled
