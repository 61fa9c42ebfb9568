"""A board as a picture of a sensible size: small boards enlarged, large ones scaled down. No TensorFlow."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tf2dist.data.errors import DataError
from tf2dist.life import words as host

_LARGEST = 1000  # pixels, either way
_SMALLEST = 400  # pixels that the longer side has at least


@dataclass(frozen=True)
class Scale:
    """How cells become pixels: `cells` cells to a pixel's side, or `pixels` pixels to a cell's; one of the two is 1."""

    rows: int
    columns: int
    cells: int
    pixels: int

    @property
    def shape(self) -> tuple[int, int]:
        """Pixels from top to bottom and from left to right."""
        return -(-self.rows // self.cells) * self.pixels, -(-self.columns // self.cells) * self.pixels


def scale(rows: int, columns: int, largest: int = _LARGEST, smallest: int = _SMALLEST) -> Scale:
    """The scale at which the longer side of the picture has `largest` pixels at most and about `smallest` at least."""
    longer = max(rows, columns)
    return Scale(rows, columns, -(-longer // largest), max(1, smallest // longer))


def draw(board: np.ndarray, scale: Scale) -> np.ndarray:
    """The picture u8[height, width] of a board u64[rows, w], 0 for dead and 255 for alive.

    A pixel of several cells shows how many of them live, by the square root, so that sparse patterns stay visible.
    """
    if scale.cells == 1:
        shades = 255 * host.unpack(board, scale.columns)
        return shades.repeat(scale.pixels, 0).repeat(scale.pixels, 1)
    width = -(-scale.columns // scale.cells)
    lines = []
    for first in range(0, scale.rows, scale.cells):
        cells = host.unpack(board[first : first + scale.cells], scale.columns)
        total = cells.sum(0, dtype=np.int64)
        sums = np.add.reduceat(total, np.arange(0, scale.columns, scale.cells))
        sizes = np.full(width, scale.cells)
        sizes[-1] = scale.columns - scale.cells * (width - 1)
        lines.append(np.sqrt(sums / (sizes * len(cells))))
    return np.ceil(255 * np.stack(lines)).astype(np.uint8)


def palette(colours: str) -> np.ndarray:
    """The colours u8[256, 3] from dead to alive, of the text "alive,dead", as "black,white" or "#00ff80,#001020".

    Raises:
      DataError: these are no two colours.
    """
    from PIL import ImageColor

    names = colours.split(",")
    try:
        alive, dead = (np.array(ImageColor.getrgb(name.strip())[:3], float) for name in names)
    except ValueError:
        raise DataError(f"colours {colours!r} cannot be read; black,white draws living cells black on white") from None
    part = np.linspace(0, 1, 256)[:, None]
    return np.rint(part * alive + (1 - part) * dead).astype(np.uint8)


def terminal(board: np.ndarray, columns: int, width: int, height: int) -> str:
    """The board in `width` by `height` characters of a terminal at most, each of two pixels, one above the other."""
    fitting = max(math.ceil(columns / width), math.ceil(len(board) / (2 * height)))
    live = draw(board, Scale(len(board), columns, fitting, 1)) > 0
    if len(live) % 2:
        live = np.concatenate([live, np.zeros_like(live[:1])])
    letters = np.array([" ", "▀", "▄", "█"])[live[::2] + 2 * live[1::2]]
    return "\n".join("".join(line).rstrip() for line in letters)
