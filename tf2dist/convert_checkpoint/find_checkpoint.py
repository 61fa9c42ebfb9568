"""Which checkpoint a path means, and which name map and model a command names. Imports no TensorFlow."""

from __future__ import annotations

import ast
import difflib
import importlib
import json
import os
import re
from typing import Any

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


def name_map(path: str) -> dict[str, str]:
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


def model(text: str) -> Any:
    """The model that `text` names: FILE.keras, MODULE:MODEL, or MODULE:FUNCTION(LITERALS) that returns one.

    Raises:
      ConvertError: it cannot be found or made.
    """
    if text.endswith(".keras"):
        import keras

        try:
            return keras.saving.load_model(text)
        except Exception as error:  # of the file, or of the code that it names
            raise ConvertError(f"--model={text} cannot be loaded: {_said(error)}") from None
    module, name, arguments, keywords = parsed(text)
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:  # the module's own, too
        raise ConvertError(f"--model={text}: module {module} cannot be imported: {_said(error)}") from None
    for part in name.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, dir(found), 1)
            raise ConvertError(
                f"--model={text}: {module} has no {name}{f'; the nearest name is {near[0]}' * len(near)}"
            )
        found = getattr(found, part)
    if arguments is None and not callable(getattr(found, "save_weights", None)) and callable(found):
        arguments, keywords = [], {}
    if arguments is not None:
        try:
            found = found(*arguments, **keywords)
        except Exception as error:
            raise ConvertError(f"--model={text} cannot be made: {_said(error)}") from None
    if not callable(getattr(found, "save_weights", None)):
        raise ConvertError(f"--model={text} is {type(found).__name__}, no Keras model")
    return found


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def parsed(text: str) -> tuple[str, str, list | None, dict]:
    """Module, name, and the arguments of the call if there is one: "a.b:f(0.1, n=2)" is ("a.b", "f", [0.1], {"n": 2}).

    Raises:
      ConvertError: it is of another form.
    """
    module, _, expression = text.partition(":")
    try:
        node = ast.parse(expression, mode="eval").body
        call = node if isinstance(node, ast.Call) else None
        name = ast.unparse(call.func if call else node)
        if not re.fullmatch(r"[\w.]+", name) or not re.fullmatch(r"[\w.]+", module):
            raise ValueError
        arguments = [ast.literal_eval(a) for a in call.args] if call else None
        keywords = {k.arg or "**": ast.literal_eval(k.value) for k in call.keywords} if call else {}
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):  # the last three of what is too much
        raise ConvertError(
            f"--model={text} names no model; FILE.keras, MODULE:MODEL and MODULE:FUNCTION(ARGUMENTS) do, as "
            "'trainers.mnist_networks:sigmoid(0.001)'"
        ) from None
    return module, name, arguments, keywords
