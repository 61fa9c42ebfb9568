"""Keras's random initializers, whose base class and scale have no public name."""

from typing import Any

from keras.src.initializers import random_initializers

RandomInitializer: Any = random_initializers.RandomInitializer
compute_fans: Any = random_initializers.compute_fans
