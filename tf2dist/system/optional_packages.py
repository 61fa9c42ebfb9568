"""Packages of the extra `trainers`, which a plain installation lacks."""

from __future__ import annotations

import importlib.util

_DISTRIBUTIONS = {
    "PIL": "pillow",
    "matplotlib": "matplotlib",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
    "tensorflow_datasets": "tensorflow-datasets",
}


def missing(module: str) -> str:
    """Returns how to install an absent module's package, in a few words; empty if it can be imported. Imports nothing.

    Args:
      module: the name to import.
    """
    if importlib.util.find_spec(module) is not None:
        return ""
    return f"{_DISTRIBUTIONS.get(module, module)} is not installed (pip install 'tf2dist[trainers]')"
