"""What a worker's step does with gradients when they arrive at the servers."""

import types

import keras
import numpy as np

from tests.models import OPTIMIZERS, classifier, data
from tf2dist.parameter_server.worker_step import WorkerStep


def test_gradients_of_a_loss_with_another_scale(tf):
    """Another worker's update may have changed the scale since; Keras divides by the one of now."""
    model = classifier(OPTIMIZERS["sgd"]())
    scale = keras.Variable(8.0, trainable=False)
    step = types.SimpleNamespace(_scales=[scale], _model=model)
    gradients = [2.0 * tf.ones(v.shape) for v in model.trainable_variables]
    rows = tf.IndexedSlices(
        tf.fill([1, *gradients[0].shape[1:]], 2.0), tf.constant([1]), tf.constant(gradients[0].shape)
    )
    for given in (gradients, [rows, *gradients[1:]]):
        found = WorkerStep._rescaled(step, given, [tf.constant(2.0)])
        for gradient in found:
            values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
            np.testing.assert_array_equal(values, np.full(values.shape, 8.0))


def test_local_steps_are_counted_beside_those_of_others(tf):
    """What another worker has counted since the weights were fetched is not overwritten."""
    from tf2dist.execution.keras_train_step import KerasTrainStep
    from tf2dist.parameter_server.local_sgd import LocalSgd

    model = classifier(OPTIMIZERS["adam"]())
    model.train_on_batch(*data())  # makes all variables
    iterations = model.optimizer.iterations

    def apply(update, sent, steps, token):
        iterations.value.assign_add(7)  # of another worker
        update()

    rows, first = tuple(map(tf.constant, data())), tf.zeros([], tf.int64)
    batches = types.SimpleNamespace(take=lambda ahead, number, end: (rows, ahead))
    local = LocalSgd(KerasTrainStep(model), types.SimpleNamespace(apply=apply))
    tf.function(lambda: local.run_round(batches, (), first, tf.constant(3), first, None)[0], autograph=False)()
    assert int(iterations) == 1 + 7 + 3
