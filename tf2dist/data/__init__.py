"""Images to train on, found before TensorFlow is imported and loaded as NumPy arrays; and their TFRecord form.

    from tf2dist import data
    source = data.find("auto")          # a launcher does this: no TensorFlow, every error early
    (images, labels), test = data.load(source)

The names below are imported when they are first used, and none of them imports TensorFlow before it has to.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tf2dist.data.errors import DataError
    from tf2dist.data.images import NAMES, Source, find, load

_HOME = {"DataError": "errors", "NAMES": "images", "Source": "images", "find": "images", "load": "images"}

__all__ = ["NAMES", "DataError", "Source", "find", "load"]


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__():
    return sorted([*globals(), *__all__])
