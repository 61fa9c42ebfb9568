"""Which engine is made for a board, and what each of them refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tf2dist.errors import UsageError

if TYPE_CHECKING:
    from trainers.life.engines.engine import Engine
    from trainers.life.rule import Rule

ENGINES = ("numpy_function", "conv", "packed")
SMALLEST = 3  # rows and columns: on a smaller torus a cell would be its own neighbour, or a neighbour twice


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
