"""Guard: threads that trace functions are known by what is on their stacks."""

import sys
import traceback

import keras

from tf2dist import make_strategy
from tf2dist.compat.tracing_detection import traces


def _is_tracing():
    return any(traces(frame.f_code) for frame, _ in traceback.walk_stack(sys._getframe()))


def test_threads_of_replicas_and_the_one_that_waits_for_them(tf):
    strategy, found = make_strategy("mirrored", replicas=2), []

    def in_replica():
        found.append(_is_tracing())
        return tf.constant(1)

    @tf.function(autograph=False)
    def run():
        found.append(_is_tracing())
        return strategy.run(in_replica)

    assert not _is_tracing()
    run()
    assert found == [True, True, True]


def test_a_model_that_is_built(tf):
    found = []

    class Looks(keras.layers.Layer):
        def call(self, inputs):
            found.append(_is_tracing())
            return inputs

    Looks()(keras.Input((3,)))
    Looks()(tf.zeros([1, 3]))
    assert found == [True, False]
