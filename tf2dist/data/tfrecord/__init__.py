"""Labelled 28×28 images as TFRecord files, in the form that TensorFlow 1's MNIST examples used.

One `tf.train.Example` an image, with the features `image_raw` (bytes: u8[784], row by row), `pixels` (int64: 784)
and `label` (int64: 0 to 9). `python -m tf2dist.data.tfrecord --help` writes such files from any data set.
"""

from tf2dist.data.framing import count
from tf2dist.data.tfrecord.form import check_form
from tf2dist.data.tfrecord.places import files
from tf2dist.data.tfrecord.reading import load, read
from tf2dist.data.tfrecord.writing import fill, write

__all__ = ["check_form", "count", "files", "fill", "load", "read", "write"]
