"""Attributes of other packages that are replaced for as long as a block runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any


class Patch:
    """Replaces attributes of an object while at least one block is inside of `applied()`.

    The replicas of a `MirroredStrategy` are traced in threads that wait for each other in the middle of a step, so
    blocks overlap; the attributes come back when the last of them ends. A replacement must behave as the original
    does for threads that are in no such block.

    Args:
      owner: a module or class.
      replacements: by the attribute's name.
    """

    def __init__(self, owner: Any, replacements: Mapping[str, Any]):
        self._owner = owner
        self._replacements = dict(replacements)
        self._originals: dict[str, Any] = {}  # while a block is inside
        self._lock = threading.Lock()
        self._inside = 0

    @property
    def replaces(self) -> list[str]:
        """The names of the attributes that are replaced."""
        return [f"{self._owner.__name__}.{name}" for name in self._replacements]

    def original(self, name: str) -> Any:
        """What the attribute was before the blocks that are inside."""
        return self._originals[name]

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Replaces the attributes while the block runs."""
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._originals = {name: getattr(self._owner, name) for name in self._replacements}
                self._set(self._replacements)
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if self._inside == 0:
                    self._set(self._originals)

    def _set(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            setattr(self._owner, name, value)
