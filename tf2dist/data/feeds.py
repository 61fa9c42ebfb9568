"""A source of images as the feeds that `tf2dist.fit` and `evaluate` take: pixels f32[b, 28, 28] in [0, 1]."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from tf2dist.data import images, tfrecord
from tf2dist.datasets import Batches
from tf2dist.examples import Examples

_SHUFFLE = 10_000  # records in the shuffle buffer of files


@dataclass(frozen=True)
class ImageFeeds:
    """Training and test images, and how many there are."""

    train: Examples | Batches
    test: Examples | Batches
    train_examples: int
    test_examples: int
    steps_per_pass: int


def scaled(pixels, labels):
    """Pixels u8[b, 28, 28] as f32[b, 28, 28] in [0, 1]."""
    return tf.cast(pixels, tf.float32) / 255.0, labels


def image_feeds(source: images.Source, batch_size: int, seed: int) -> ImageFeeds:
    """The images of `source` in global batches; training images in a new order each pass.

    TFRecord files are read while training; everything else is held in memory, as bytes, and scaled batch by batch.
    """
    if source.name == "tfrecord":
        assert source.path is not None
        train, test = tfrecord.files(source.path)
        return ImageFeeds(
            Batches(tfrecord.read(train, batch_size, shuffle=_SHUFFLE, seed=seed)),
            Batches(tfrecord.read(test, batch_size)),
            tfrecord.count(train),
            tfrecord.count(test),
            -(-tfrecord.count(train) // batch_size),
        )
    train, test = images.load(source)
    return ImageFeeds(
        Examples(train, batch_size, seed=seed, transform=scaled),
        Examples(test, 1000, shuffle=False, transform=scaled),
        len(train[0]),
        len(test[0]),
        -(-len(train[0]) // batch_size),
    )
