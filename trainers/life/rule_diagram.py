"""Compiles a rule to a decision diagram of bitwise operations, with few gates. No TensorFlow."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Protocol

from trainers.life.rule import Rule

Table = tuple[int | None, ...]  # the next state for each value of the variables; None for values that never occur
Node = bool | tuple  # a constant, or (variable, node where it is 0, node where it is 1)

# A cell's state and the four bits of its count of live neighbours.
VARIABLES = ("alive", "n0", "n1", "n2", "n3")


class Gates(Protocol):
    """Bitwise operations on words of any type."""

    land: Callable[[Any, Any], Any]
    lor: Callable[[Any, Any], Any]
    xor: Callable[[Any, Any], Any]
    lnot: Callable[[Any], Any]
    constant: Callable[[bool], Any]


def compile_rule(rule: Rule) -> Node:
    """Returns a decision diagram for the rule's next state, over VARIABLES in the order that needs the fewest gates.

    Counts of 9 and more do not occur, so their next states are chosen to simplify the diagram: Life's does not use n3.
    """
    table_of_rule = rule.table()
    best: tuple[int, Node] | None = None
    for order in itertools.permutations(range(len(VARIABLES))):
        table: list[int | None] = []
        for values in itertools.product((0, 1), repeat=len(order)):
            at = dict(zip(order, values, strict=True))
            count = sum(at[1 + bit] << bit for bit in range(4))
            table.append(table_of_rule[9 * at[0] + count] if count <= 8 else None)
        node = _diagram(tuple(table), [VARIABLES[i] for i in order])
        cost = sum(_gate_count(part) for part in _subdiagrams(node, set()))
        if best is None or cost < best[0]:
            best = cost, node
    assert best is not None
    return best[1]


def evaluate(node: Node, values: dict[str, Any], gates: Gates) -> Any:
    """Evaluates the diagram on `values` of the variables; equal subdiagrams are computed once."""
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


def _subdiagrams(node: Node, seen: set[Node]) -> set[Node]:
    if node not in seen:
        seen.add(node)
        if isinstance(node, tuple):
            _subdiagrams(node[1], seen)
            _subdiagrams(node[2], seen)
    return seen


def _gate_count(node: Node) -> int:
    """Returns the gates of this node; the highest bit of the count costs one more."""
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
