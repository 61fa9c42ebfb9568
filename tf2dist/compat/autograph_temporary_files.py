"""Python code that AutoGraph generates, without the files that a process which is killed leaves behind."""

from __future__ import annotations

import contextlib
import linecache
import os
from types import ModuleType

from tensorflow.python.autograph.pyct import loader

_load_from_file = loader.load_source


def remove_files_at_once() -> None:
    """Removes each file of generated code as soon as it is imported.

    TensorFlow writes the code of each function that it converts to a file in the directory for temporary files, and
    removes it when the process exits (`load_source` in tensorflow/python/autograph/pyct/loader.py); one that is killed
    leaves dozens there. Tracebacks and `inspect` read the source from `linecache`, as that of a notebook.
    """
    loader.load_source = _load_without_file


def _load_without_file(source: str, delete_on_exit: bool) -> tuple[ModuleType, str]:
    module, name = _load_from_file(source, False)
    if delete_on_exit:
        linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
        with contextlib.suppress(OSError):
            os.remove(name)
    return module, name
