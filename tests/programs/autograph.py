"""Run in every process of a cluster: trains, evaluates and predicts, and says which functions AutoGraph has converted.

python -m launch local --ps=1 --workers=1 -- tests.programs.autograph ps '[{"update": "sync"}]'
"""

import json
import sys
from unittest import mock

import tf2dist

if __name__ == "__main__":
    strategy = tf2dist.join(sys.argv[1])

import tensorflow as tf
from tensorflow.python.autograph.impl import api

from tests.models import OPTIMIZERS, classifier, data


def _upside_down(x, y):
    """Of a dataset: with a condition on tensors, which AutoGraph is needed for."""
    if tf.reduce_mean(x) > 0:  # noqa: SIM108 (it is what is tried)
        x = -x
    else:
        x = x + 0
    return x, y


def _by_number(context):
    """A dataset of a worker's own, whose number is a tensor."""
    x, y = data()
    scale = 1.0
    if context.input_pipeline_id == 0:
        scale = -1.0
    return tf.data.Dataset.from_tensor_slices((x * scale, y)).batch(16).map(_upside_down).repeat()


def converted_by(strategy, **options):
    """The names of the functions that AutoGraph converts while models are trained, evaluated and asked."""
    names = set()

    def noting(function, context, convert=api._convert_actual):
        names.add(function.__name__)
        return convert(function, context)

    x, y = data()
    with mock.patch.object(api, "_convert_actual", noting):
        dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(16).map(_upside_down)
        examples = tf2dist.Examples((x, y), 16, transform=_upside_down)
        for batches in ((x, y), dataset, examples):
            with strategy.scope():
                model = classifier(OPTIMIZERS["sgd"]())
            sizes = {"batch_size": 16} if isinstance(batches, tuple) else {}
            weights = {} if batches is dataset else {"class_weight": {0: 2.0}}
            tf2dist.fit(model, batches, epochs=2, verbose=0, **sizes, **weights, **options)
            tf2dist.evaluate(model, batches, verbose=0, **sizes)
            tf2dist.predict(model, batches[:1] if isinstance(batches, tuple) else batches, verbose=0, **sizes)
    return sorted(names)


if __name__ == "__main__":
    for options in json.loads(sys.argv[2]) if sys.argv[2:] else [{}]:
        given = {"parameter_server": tf2dist.ParameterServer(**options)} if options else {}
        print("converted", *converted_by(strategy, **given))
    if sys.argv[1] == "ps":
        with strategy.scope():
            model = classifier(OPTIMIZERS["sgd"]())
        tf2dist.fit(model, _by_number, steps_per_epoch=10, verbose=0)
        print("trained", tf2dist.updates(model), "steps on data by number")
