"""The interface of all engines that compute generations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np


class Engine(Protocol):
    """The interface of all engines."""

    def load(self, board: np.ndarray) -> Any:
        """Returns the state of a packed board u64[rows, w]."""
        ...

    def board(self, state: Any) -> np.ndarray:
        """Returns the packed board u64[rows, w] of a state."""
        ...

    def advance(self, state: Any, generations: int) -> Any:
        """Returns the state so many generations later, without waiting for the device."""
        ...

    def advance_observed(self, state: Any, generations: int) -> tuple[Any, np.ndarray, np.ndarray]:
        """Advances; also returns each generation's hash u64[generations] and population i64[generations].

        Equal boards have equal hashes; hashes of different engines differ.
        """
        ...

    def observe(self, state: Any) -> tuple[int, int]:
        """Returns the hash and the population of a state."""
        ...

    def equal(self, one: Any, other: Any) -> bool:
        """Returns whether two states have the same board."""
        ...
