"""Image data sets as batches for `tf2dist.fit` and `evaluate`: pixels f32[b, 28, 28] in [0, 1], labels i64[b]."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from tf2dist.data import image_sources, tfrecord
from tf2dist.input.array_adapter import Examples

_SHUFFLE_BUFFER = 10_000  # records of TFRecord files
_TEST_BATCH_SIZE = 1000


@dataclass(frozen=True)
class ImageBatches:
    """Training and test batches, and their numbers of examples."""

    train: Examples | tf.data.Dataset
    test: Examples | tf.data.Dataset
    train_examples: int
    test_examples: int
    steps_per_epoch: int


def scale_pixels(pixels, labels):
    """Scales pixels u8[b, 28, 28] to f32[b, 28, 28] in [0, 1]."""
    return tf.cast(pixels, tf.float32) / 255.0, labels


def image_batches(source: image_sources.Source, batch_size: int, seed: int) -> ImageBatches:
    """Returns the images of `source` in global batches; training images are reshuffled each epoch.

    TFRecord files are streamed; other sources are held in memory as bytes and scaled batch by batch.
    """
    if source.name == "tfrecord":
        assert source.path is not None
        train, test = tfrecord.files(source.path)
        return ImageBatches(
            tfrecord.read(train, batch_size, shuffle=_SHUFFLE_BUFFER, seed=seed),
            tfrecord.read(test, batch_size),
            tfrecord.count_records(train),
            tfrecord.count_records(test),
            -(-tfrecord.count_records(train) // batch_size),
        )
    train, test = image_sources.load(source)
    return ImageBatches(
        Examples(train, batch_size, seed=seed, transform=scale_pixels),
        Examples(test, _TEST_BATCH_SIZE, shuffle=False, transform=scale_pixels),
        len(train[0]),
        len(test[0]),
        -(-len(train[0]) // batch_size),
    )
