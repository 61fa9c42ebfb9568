"""Keras optimizers that keep moving averages of the weights."""
