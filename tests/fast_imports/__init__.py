"""Puts `sitecustomize` on the path of the processes that tests start, and does in this one what it does in those."""

import os

_HERE = os.path.dirname(__file__)
if _HERE not in (path := os.environ.get("PYTHONPATH", "").split(os.pathsep)):  # the processes of pytest-xdist have it
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_HERE, *path]))
    from tests.fast_imports import sitecustomize  # noqa: F401
