"""What Linux offers and Python does not: process trees, files that are there whole or not at all, commands.

Imports nothing of this project and no TensorFlow."""
