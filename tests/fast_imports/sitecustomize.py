"""On the path of all processes that tests start: TensorFlow and Keras are imported in half of the time.

Python imports this module by itself at the start. Two things take more than half of an import of TensorFlow and of the
end of the process after it: the garbage collector, which looks through a million new objects again and again and finds
nothing, and packages that Keras, and the old one that is a part of TensorFlow, import where they are installed.
Programs that use those get them when they ask for them.
"""

import gc
import importlib.abc
import importlib.util
import sys

_SLOW = ("tensorflow", "keras")
# While one of the two is imported, it gets an ImportError for these, and goes on without them.
_LEFT_OUT = ("sklearn", "matplotlib", "pandas", "scipy")


class _Loader(importlib.abc.Loader):
    """Loads a package with the loader that is meant for it, without the collector."""

    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            self._loader.exec_module(module)
        finally:
            if was_enabled:
                gc.freeze()
                gc.enable()


class _Finder(importlib.abc.MetaPathFinder):
    """Finds what is slow with a `_Loader`, and nothing of what is left out as long as that is being imported."""

    def __init__(self):
        self._looking = False

    def find_spec(self, name, path=None, target=None):
        if name in _LEFT_OUT and any(map(_is_being_imported, _SLOW)):
            raise ModuleNotFoundError(f"{name} is left out while TensorFlow and Keras are imported", name=name)
        if name not in _SLOW or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def _is_being_imported(name):
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return getattr(spec, "_initializing", False)


sys.meta_path.insert(0, _Finder())
