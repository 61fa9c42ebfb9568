"""Which checkpoint a path means. Imports no TensorFlow."""

from __future__ import annotations

import os
import re

from tf2dist.convert_checkpoint import ConvertError

_STATE = re.compile(r'^model_checkpoint_path: "(.*)"$', re.MULTILINE)
_PART = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")


def checkpoint(path: str) -> str:
    """The prefix of the checkpoint that `path` means, as "DIR/model.ckpt-1000".

    Args:
      path: a directory, of which the checkpoint is taken that its file `checkpoint` names, else the newest; or a
        prefix, or one of a checkpoint's files.

    Raises:
      ConvertError: there is none.
    """
    if os.path.isdir(path):
        return _of_directory(path)
    if os.path.basename(path) == "checkpoint" and os.path.isfile(path):
        return _of_directory(os.path.dirname(path) or ".")
    prefix = _PART.sub("", path)
    if _exists(prefix):
        return prefix
    raise ConvertError(f"there is no checkpoint {path}: neither a directory nor {prefix}.index")


def _exists(prefix: str) -> bool:
    return os.path.exists(f"{prefix}.index") or os.path.isfile(prefix)  # the older form is one file


def _of_directory(directory: str) -> str:
    state, named = os.path.join(directory, "checkpoint"), None
    if os.path.isfile(state):
        with open(state, errors="replace") as file:
            named = _STATE.search(file.read())
    if named:  # often an absolute path, of the machine that wrote it
        for prefix in (os.path.join(directory, os.path.basename(named[1])), os.path.join(directory, named[1])):
            if _exists(prefix):
                return prefix
    found = [name.removesuffix(".index") for name in os.listdir(directory) if name.endswith(".index")]
    if not found:
        other = f", and its file `checkpoint` names {named[1]}, which is not there" if named else ""
        raise ConvertError(f"{directory} holds no checkpoint of TensorFlow 1: no file there is called *.index{other}")
    return os.path.join(directory, max(found, key=lambda name: [int(n) for n in re.findall(r"\d+", name)]))
