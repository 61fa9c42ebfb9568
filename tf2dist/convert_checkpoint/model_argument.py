"""Which model `--model` names, and how it is made. Imports no TensorFlow until it is."""

from __future__ import annotations

import ast
import difflib
import importlib
import re
from typing import Any

from tf2dist.convert_checkpoint import ConvertError


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
