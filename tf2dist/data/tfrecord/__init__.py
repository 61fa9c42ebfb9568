"""Labelled 28×28 images as TFRecord files, with the features of TensorFlow 1's MNIST examples.

One `tf.train.Example` an image, with the features `image_raw` (bytes: u8[784], row by row), `pixels` (int64: 784)
and `label` (int64: 0 to 9). `python -m tf2dist.data.tfrecord --help` writes such files from any data set.
"""

from tf2dist.data.tfrecord.image_features import check_features
from tf2dist.data.tfrecord.reading import load, read
from tf2dist.data.tfrecord.train_test_files import files
from tf2dist.data.tfrecord.writing import write, write_in_place
from tf2dist.data.tfrecord_framing import count_records

__all__ = ["check_features", "count_records", "files", "load", "read", "write", "write_in_place"]
