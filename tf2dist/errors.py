"""What ends a training that is no fault of the program. Imports no TensorFlow."""


class TrainingError(ValueError):
    """A training that cannot go on: the loss is NaN, say. The message is one line, with what to do."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be gone on from: it is of another model. The message is one line."""
