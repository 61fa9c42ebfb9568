"""The smallest decision that a rule needs, found once and computed on 64 cells at a time. No TensorFlow."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Protocol

from tf2dist.life.rule import Rule

Table = tuple[int | None, ...]  # the wanted bit for each value of the variables; None where it cannot matter
Node = bool | tuple  # a constant, or (variable, node where it is 0, node where it is 1)

# A cell's state and the four bits of its count of live neighbours.
VARIABLES = ("alive", "n0", "n1", "n2", "n3")


class Gates(Protocol):
    """The operations of which a circuit is made, on whatever holds the bits."""

    land: Callable[[Any, Any], Any]
    lor: Callable[[Any, Any], Any]
    xor: Callable[[Any, Any], Any]
    lnot: Callable[[Any], Any]
    constant: Callable[[bool], Any]


def solve(rule: Rule) -> Node:
    """A decision diagram for the rule's next state, over VARIABLES in the order that needs the fewest gates.

    Counts of 9 and more do not occur, so that what they would give is chosen for the diagram's sake: Life's does
    not ask for n3 at all.
    """
    wanted = rule.table()
    best: tuple[int, Node] | None = None
    for order in itertools.permutations(range(len(VARIABLES))):
        table: list[int | None] = []
        for values in itertools.product((0, 1), repeat=len(order)):
            at = dict(zip(order, values, strict=True))
            count = sum(at[1 + bit] << bit for bit in range(4))
            table.append(wanted[9 * at[0] + count] if count <= 8 else None)
        node = _diagram(tuple(table), [VARIABLES[i] for i in order])
        cost = sum(_gates(part) for part in _parts(node, set()))
        if best is None or cost < best[0]:
            best = cost, node
    assert best is not None
    return best[1]


def evaluate(node: Node, values: dict[str, Any], gates: Gates) -> Any:
    """Computes the diagram on `values` of the variables; equal parts are computed once."""
    done: dict[Node, Any] = {}

    def value(node: Node) -> Any:
        if node not in done:
            done[node] = _value(node)
        return done[node]

    def _value(node: Node) -> Any:
        if isinstance(node, bool):
            return gates.constant(node)
        name, low, high = node
        x = values[name]
        if (low, high) == (False, True):
            return x
        if (low, high) == (True, False):
            return gates.lnot(x)
        if low is False:
            return gates.land(x, value(high))
        if low is True:
            return gates.lor(gates.lnot(x), value(high))
        if high is False:
            return gates.land(gates.lnot(x), value(low))
        if high is True:
            return gates.lor(x, value(low))
        a = value(low)
        return gates.xor(a, gates.land(x, gates.xor(a, value(high))))

    return value(node)


def _diagram(table: Table, names: list[str]) -> Node:
    if len({bit for bit in table if bit is not None}) <= 1:
        return 1 in table
    half = len(table) // 2
    low, high = table[:half], table[half:]
    if all(a is None or b is None or a == b for a, b in zip(low, high, strict=True)):
        return _diagram(tuple(b if a is None else a for a, b in zip(low, high, strict=True)), names[1:])
    return names[0], _diagram(low, names[1:]), _diagram(high, names[1:])


def _parts(node: Node, seen: set[Node]) -> set[Node]:
    if node not in seen:
        seen.add(node)
        if isinstance(node, tuple):
            _parts(node[1], seen)
            _parts(node[2], seen)
    return seen


def _gates(node: Node) -> int:
    """How many gates this part costs; the highest bits of the count cost some themselves."""
    if isinstance(node, bool):
        return 0
    name, low, high = node
    own = (
        0
        if (low, high) in ((False, True), (True, False))
        else 1
        if isinstance(low, bool) or isinstance(high, bool)
        else 3
    )
    return own + (name == "n3")
