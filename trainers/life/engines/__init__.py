"""Engines that compute generations. All compute the same boards, bit for bit.

An engine holds no board: `load` converts a packed board (`trainers.life.packed_board`) to a state of its own, and
`board` converts it back. States are immutable. In a job of several processes, every process makes the same calls in the
same order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from tf2dist.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from trainers.life.rule import Rule

ENGINES = ("numpy_function", "conv", "packed")
SMALLEST = 3  # rows and columns: on a smaller torus a cell would be its own neighbour, or a neighbour twice


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


def make_engine(name: str, rule: Rule, rows: int, columns: int, edges: str, strategy: Any = None) -> Engine:
    """Makes the engine of that name, one of ENGINES, for boards of that shape whose edges are "torus" or "dead".

    Args:
      strategy: a `tf.distribute` strategy of replicas that each compute a strip of rows; "packed" only.

    Raises:
      UsageError: no such engine, or a board that it cannot compute.
    """
    check(name, rows, columns, edges)
    if name == "packed":
        from trainers.life.engines.packed import Packed

        return Packed(rule, rows, columns, edges, strategy)
    if strategy is not None and strategy.num_replicas_in_sync > 1:
        raise UsageError(f"engine {name} computes on one device; packed computes on several")
    if name == "conv":
        from trainers.life.engines.conv import Conv

        return Conv(rule, rows, columns, edges)
    from trainers.life.engines.numpy_function import NumpyFunction

    return NumpyFunction(rule, rows, columns, edges)


def check(name: str, rows: int, columns: int, edges: str, replicas: int = 1) -> None:
    """Raises UsageError for what `make_engine` refuses; needs no TensorFlow."""
    if name not in ENGINES:
        raise UsageError(f"unknown engine {name!r}; engines are {', '.join(ENGINES)}")
    if edges not in ("torus", "dead"):
        raise UsageError(f"unknown edges {edges!r}; they are torus or dead")
    if min(rows, columns) < SMALLEST:
        raise UsageError(f"a board of {rows}x{columns} is too small; {SMALLEST}x{SMALLEST} is the smallest")
    if replicas > 1 and name != "packed":
        raise UsageError(f"engine {name} computes on one device, and there are {replicas}; packed computes on several")
    if rows < replicas:
        raise UsageError(f"a board of {rows} rows is too small for {replicas} strips; each needs a row at least")
