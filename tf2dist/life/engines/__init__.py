"""Engines: what computes generations. All give the same boards, bit for bit.

An engine holds no board. It turns the host's words (`tf2dist.life.words`) into a state of its own with `load`, computes
with it, and gives words back. States are never changed in place, so that keeping one costs its memory and nothing else.
In a job of several processes every process makes the same calls in the same order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    from tf2dist.life.rule import Rule

ENGINES = ("numpy_function", "conv", "packed")
SMALLEST = 3  # rows and columns: on a smaller torus a cell would be its own neighbour, or twice somebody's


class Engine(Protocol):
    """What all engines can do."""

    def load(self, words: np.ndarray) -> Any:
        """The state of the board u64[rows, w]."""
        ...

    def words(self, state: Any) -> np.ndarray:
        """The board u64[rows, w]."""
        ...

    def advance(self, state: Any, generations: int) -> Any:
        """The state so many generations later, without waiting for it."""
        ...

    def watched(self, state: Any, generations: int) -> tuple[Any, np.ndarray, np.ndarray]:
        """As `advance`, and each generation's hash of the board u64[generations] and population i64[generations].

        Equal boards have equal hashes; they mean nothing to another engine.
        """
        ...

    def look(self, state: Any) -> tuple[int, int]:
        """The hash that `watched` gives of this board, and its population."""
        ...

    def same(self, one: Any, other: Any) -> bool:
        """Are the boards equal?"""
        ...


def make_engine(name: str, rule: Rule, rows: int, columns: int, edges: str, strategy: Any = None) -> Engine:
    """The engine of that name, one of ENGINES, for boards of that shape whose edges are "torus" or "dead".

    Args:
      strategy: a `tf.distribute` strategy of replicas that each compute a strip of rows; "packed" only.

    Raises:
      ValueError: no such engine, or a board that it cannot compute.
    """
    check(name, rows, columns, edges)
    if name == "packed":
        from tf2dist.life.engines.packed import Packed

        return Packed(rule, rows, columns, edges, strategy)
    if strategy is not None and strategy.num_replicas_in_sync > 1:
        raise ValueError(f"engine {name} computes on one device; packed computes on several")
    if name == "conv":
        from tf2dist.life.engines.conv import Conv

        return Conv(rule, rows, columns, edges)
    from tf2dist.life.engines.numpy_function import NumpyFunction

    return NumpyFunction(rule, rows, columns, edges)


def check(name: str, rows: int, columns: int, edges: str, replicas: int = 1) -> None:
    """Raises the ValueError that `make_engine` would; needs no TensorFlow."""
    if name not in ENGINES:
        raise ValueError(f"unknown engine {name!r}; engines are {', '.join(ENGINES)}")
    if edges not in ("torus", "dead"):
        raise ValueError(f"unknown edges {edges!r}; they are torus or dead")
    if min(rows, columns) < SMALLEST:
        raise ValueError(f"a board of {rows}x{columns} is too small; {SMALLEST}x{SMALLEST} is the smallest")
    if replicas > 1 and name != "packed":
        raise ValueError(f"engine {name} computes on one device, and there are {replicas}; packed computes on several")
    if rows < replicas:
        raise ValueError(f"a board of {rows} rows is too small for {replicas} strips; each needs a row at least")
