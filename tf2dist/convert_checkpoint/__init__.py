"""Converts a checkpoint of TensorFlow 1 for a Keras 3 model: python -m tf2dist.convert_checkpoint.

`find_checkpoint` is which file, `read` is what it holds, `model_argument` is which model, `match_variables` is which
variable is which, unless `name_map` says so, and `fill` puts the values in place. Imports no TensorFlow.
"""

from tf2dist.errors import UsageError, printable


class ConvertError(UsageError):
    """A conversion that cannot be: one line for each thing that is wrong, with what would be right."""

    def __init__(self, *lines: str) -> None:
        super().__init__(lines[0])
        self.args = tuple(map(printable, lines))

    def __str__(self) -> str:
        return "\n".join(self.args)
