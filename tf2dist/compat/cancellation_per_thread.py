"""Calls that a coordinator makes are cancelled by the manager of their own thread, and by no other thread's."""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any

from tensorflow.python.eager import cancellation


def cancel_by_own_manager(module: ModuleType = cancellation) -> None:
    """Has each thread see only the `CancellationManager` that it has entered itself.

    TensorFlow keeps the one that is in use in a global variable (`_active_context` in
    tensorflow/python/eager/cancellation.py). A coordinator has a thread for each worker: what the main thread calls
    meanwhile is cancelled with what is scheduled, and where one thread leaves its manager, what others call then is not
    cancelled at all.

    Args:
      module: TensorFlow's, or a copy of it.
    """
    here = threading.local()

    class OwnContext:
        def __init__(self, manager: Any):
            self._manager = manager

        def __enter__(self) -> None:
            self._before = getattr(here, "manager", None)
            here.manager = self._manager

        def __exit__(self, *error: object) -> None:
            here.manager = self._before

    # pyright takes an assignment for one to what the module declares.
    vars(module).update(CancellationManagerContext=OwnContext, context=lambda: getattr(here, "manager", None))
