"""The file that says which variable of a checkpoint is which of the model. Imports no TensorFlow."""

from __future__ import annotations

import json

from tf2dist.convert_checkpoint import ConvertError


def read_name_map(path: str) -> dict[str, str]:
    """The names of a map file: a JSON object from a variable's path in the model to its name in the checkpoint.

    Raises:
      ConvertError: it cannot be read, or is something else.
    """
    try:
        with open(path) as file:
            found = json.load(file, object_pairs_hook=_once)
    except (OSError, ValueError, RecursionError) as error:
        raise ConvertError(f"--map={path} cannot be read: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise ConvertError(f'--map={path} is no JSON object of names, as {{"dense/kernel": "hidden/weights"}}')
    return found


def _once(pairs):
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} is there twice")
    return dict(pairs)
