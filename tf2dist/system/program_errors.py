"""Who explains the error that a user's program ends with: the session of the job that it has joined, if it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class ErrorExplainer(Protocol):
    """What a process that has joined a job knows about errors."""

    def fail(self) -> None:
        """Notes that the program has failed, so that the job does not count as done."""
        ...

    def explain(self, error: BaseException) -> tuple[int, str] | None:
        """Returns an exit status and a line that says what was wrong; None for an error that is the program's own."""
        ...


_explainer: Callable[[], ErrorExplainer] | None = None


def set_explainer(explainer: Callable[[], ErrorExplainer]) -> None:
    """Makes `explainer()` the one who is asked; who runs programs imports nothing of what they may have joined."""
    global _explainer
    _explainer = explainer


def explainer() -> ErrorExplainer | None:
    """Returns who explains the errors of this process; None if its program has imported nothing that does."""
    return _explainer() if _explainer else None
