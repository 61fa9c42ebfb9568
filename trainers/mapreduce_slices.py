"""Slices of nearly equal size. No TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload


class EvenSizes(Sequence[int]):
    """The sizes of slices that add up to `size`, the larger ones first; none is held in memory, of billions.

    Args:
      size: of all together.
      slices: how many.
    """

    def __init__(self, size: int, slices: int):
        self._slices = slices
        self._least, self._larger = divmod(size, slices)

    def __len__(self) -> int:
        return self._slices

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._slices))]
        return self._least + (range(self._slices)[index] < self._larger)
