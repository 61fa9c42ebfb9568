"""The one error of this package, and TensorFlow's errors made readable."""

import re


class DataError(ValueError):
    """The data is not there, or is not what it should be.

    The message is one line: what was wrong, what was found, what would be right.
    """

    def __init__(self, message: object):
        super().__init__(" ".join(str(message).split()))


def plain(error: Exception) -> str:
    """What a `tf.errors.OpError` of a data pipeline says, without the names of graph nodes around it."""
    message = re.sub(r"{{.*?}}|\[\[.*|\[Op:.*", "", str(getattr(error, "message", error)))
    return re.sub(r"Error in user-defined function.*?with iterator: \S+: ", "", message).strip()
