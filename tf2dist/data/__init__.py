"""Image data sets: found before TensorFlow is imported, loaded as NumPy arrays; TFRecord files of images.

    from tf2dist import data
    source = data.find("auto")          # in a launcher: imports no TensorFlow, finds every error early
    (images, labels), test = data.load(source)

The names below are imported on first use, and import TensorFlow only when they need it.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tf2dist.data.errors import DataError
    from tf2dist.data.image_sources import NAMES, Source, find, load

_HOME = {
    "DataError": "errors",
    "NAMES": "image_sources",
    "Source": "image_sources",
    "find": "image_sources",
    "load": "image_sources",
}

__all__ = ["NAMES", "DataError", "Source", "find", "load"]


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__():
    return sorted([*globals(), *__all__])
