"""DataError, and readable messages of TensorFlow's data errors."""

import re

from tf2dist.errors import UsageError, without_nodes


class DataError(UsageError):
    """Data is missing or invalid.

    The message is one line: what was wrong, what was found, what would be right.
    """

    def __init__(self, message: object):
        super().__init__(" ".join(str(message).split()))


class StoreDataError(DataError):
    """The store that is to hold the data did not answer: whether it is there is not known."""


def op_error_message(error: Exception) -> str:
    """Returns the message of a `tf.errors.OpError` of a data pipeline, without names of graph nodes."""
    return re.sub(r"Error in user-defined function.*?with iterator: \S+: ", "", without_nodes(error)).strip()
