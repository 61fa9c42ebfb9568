"""Draws boards as pixels or characters; enlarges small boards, scales large ones down. No TensorFlow."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tf2dist.data.errors import DataError
from trainers.life import packed_board

_MAX_PIXELS = 1000  # of the longer side
_MIN_PIXELS = 400  # of the longer side, about


@dataclass(frozen=True)
class Scale:
    """A pixel shows `cells` x `cells` cells, or a cell takes `pixels` x `pixels` pixels; one of the two is 1."""

    rows: int
    columns: int
    cells: int
    pixels: int

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return -(-self.rows // self.cells) * self.pixels, -(-self.columns // self.cells) * self.pixels


def scale(rows: int, columns: int, largest: int = _MAX_PIXELS, smallest: int = _MIN_PIXELS) -> Scale:
    """Returns the scale at which the longer side has at most `largest` pixels, and about `smallest` at least."""
    longer = max(rows, columns)
    return Scale(rows, columns, -(-longer // largest), max(1, smallest // longer))


def draw(board: np.ndarray, scale: Scale) -> np.ndarray:
    """Draws a board u64[rows, w] as u8[height, width], 0 for dead and 255 for alive.

    A pixel of several cells shows the square root of their density, so that sparse patterns stay visible.
    """
    if scale.cells == 1:
        shades = 255 * packed_board.unpack(board, scale.columns)
        return shades.repeat(scale.pixels, 0).repeat(scale.pixels, 1)
    width = -(-scale.columns // scale.cells)
    lines = []
    for first in range(0, scale.rows, scale.cells):
        cells = packed_board.unpack(board[first : first + scale.cells], scale.columns)
        total = cells.sum(0, dtype=np.int64)
        sums = np.add.reduceat(total, np.arange(0, scale.columns, scale.cells))
        sizes = np.full(width, scale.cells)
        sizes[-1] = scale.columns - scale.cells * (width - 1)
        lines.append(np.sqrt(sums / (sizes * len(cells))))
    return np.ceil(255 * np.stack(lines)).astype(np.uint8)


def palette(colours: str) -> np.ndarray:
    """Returns the colours u8[256, 3] from dead to alive, of "alive,dead": "black,white" or "#00ff80,#001020".

    Raises:
      DataError: the text is not two colours.
    """
    from PIL import ImageColor

    names = colours.split(",")
    try:
        alive, dead = (np.array(ImageColor.getrgb(name.strip())[:3], float) for name in names)
    except ValueError:
        raise DataError(f"colours {colours!r} cannot be read; black,white draws living cells black on white") from None
    part = np.linspace(0, 1, 256)[:, None]
    return np.rint(part * alive + (1 - part) * dead).astype(np.uint8)


def to_characters(board: np.ndarray, columns: int, width: int, height: int) -> str:
    """Draws a board in at most `width` by `height` characters, each of two pixels, one above the other."""
    fitting = max(math.ceil(columns / width), math.ceil(len(board) / (2 * height)))
    live = draw(board, Scale(len(board), columns, fitting, 1)) > 0
    if len(live) % 2:
        live = np.concatenate([live, np.zeros_like(live[:1])])
    letters = np.array([" ", "▀", "▄", "█"])[live[::2] + 2 * live[1::2]]
    return "\n".join("".join(line).rstrip() for line in letters)
