"""Run in every process of a parameter server job: trains on data of which a batch fails, and saves what is left.

python -m launch local --ps=N --workers=1 -- tests.programs.bad_batches OUT BATCH
"""

import pathlib
import pickle
import sys

import tf2dist

strategy = tf2dist.join("ps")
out, bad = pathlib.Path(sys.argv[1]), int(sys.argv[2])

import tensorflow as tf  # noqa: E402

from tests.models import OPTIMIZERS, classifier, data  # noqa: E402


def checked(number, batch):
    with tf.control_dependencies([tf.debugging.assert_less(number, tf.constant(bad, tf.int64))]):
        return tf.nest.map_structure(tf.identity, batch)


def batches(context):
    """Read by the worker itself."""
    return tf.data.Dataset.from_tensor_slices(data()).batch(8).enumerate().map(checked)


with strategy.scope():
    model = classifier(OPTIMIZERS["adam"]())
try:
    tf2dist.fit(model, batches, steps_per_epoch=12, steps_per_execution=12, verbose=0)
    error = "none"
except tf.errors.InvalidArgumentError as raised:
    error = type(raised).__name__
out.write_bytes(pickle.dumps((error, tf2dist.updates(model), model.get_weights())))
