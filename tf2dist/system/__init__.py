"""What Linux offers and Python does not: process trees, files that are there whole or not at all, commands.

Environment variables and GPUs too. Imports `tf2dist.errors` and no TensorFlow."""
