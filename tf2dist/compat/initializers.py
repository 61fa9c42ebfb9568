"""Keras's random initializers, whose base class and scale have no public name."""

from keras.src.initializers.random_initializers import RandomInitializer, compute_fans

__all__ = ["RandomInitializer", "compute_fans"]
