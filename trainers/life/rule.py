"""Outer-totalistic rules: a cell's next state depends on itself and on how many of its eight neighbours live."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tf2dist.data.errors import DataError

_BS = re.compile(r"B([0-9]*)/?S([0-9]*)", re.IGNORECASE)
_SB = re.compile(r"S([0-9]*)/?B([0-9]*)", re.IGNORECASE)
_OLD = re.compile(r"([0-9]*)/([0-9]*)")  # survival first, as programs of the 1990s write it


@dataclass(frozen=True)
class Rule:
    """How many live neighbours a dead cell is born with, and a live one survives with: subsets of 0 to 8."""

    birth: frozenset[int]
    survival: frozenset[int]

    def __str__(self) -> str:
        born, stays = ("".join(map(str, sorted(counts))) for counts in (self.birth, self.survival))
        return f"B{born}/S{stays}"

    def table(self) -> list[int]:
        """The next state, 0 or 1, at 9 * state + live neighbours; 18 entries."""
        return [int(n in counts) for counts in (self.birth, self.survival) for n in range(9)]


def parse(text: str) -> Rule:
    """The rule that "B3/S23", "b3s23", "S23/B3" or "23/3" (survival first) means.

    Raises:
      DataError: it means none.
    """
    stripped = text.strip()
    if found := _BS.fullmatch(stripped):
        birth, survival = found.groups()
    elif found := _SB.fullmatch(stripped) or _OLD.fullmatch(stripped):
        survival, birth = found.groups()
    else:
        raise DataError(
            f"rule {text!r} cannot be read; B3/S23 is Life: born with 3 live neighbours, survives with 2, 3"
        )
    if "9" in birth + survival:
        raise DataError(f"rule {text!r} speaks of 9 neighbours; a cell has 8")
    return Rule(frozenset(map(int, birth)), frozenset(map(int, survival)))


LIFE = parse("B3/S23")
