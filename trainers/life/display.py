"""Shows a running simulation in a window or in the terminal. No TensorFlow."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from trainers.life.picture import Scale, draw, to_characters

Show = Callable[[np.ndarray, int], object]  # shows a board u64[rows, w] and its generation


def has_display() -> bool:
    """Returns whether a window can be opened."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def window(scale: Scale, palette: np.ndarray, fps: float) -> Show:
    """Opens a window; returns a function that shows a board and waits for the duration of a frame.

    Raises:
      RuntimeError: matplotlib cannot open one.
    """
    try:
        import matplotlib
        import matplotlib.pyplot as plt
        from matplotlib.colors import ListedColormap

        plt.ion()
        figure, axes = plt.subplots(figsize=(8, 8), layout="constrained")
    except Exception as error:  # matplotlib is not installed, or what the GUI toolkit raises
        raise RuntimeError(f"no window can be opened ({error})") from None
    if matplotlib.get_backend().lower() == "agg":
        plt.close(figure)
        raise RuntimeError("no window can be opened: matplotlib has found no toolkit for one (python3-tk is one)")
    axes.set_axis_off()
    colours = ListedColormap(palette / 255.0)
    image: Any = None

    def show(board: np.ndarray, generation: int) -> None:
        nonlocal image
        pixels = draw(board, scale)
        if image is None:
            image = axes.imshow(pixels, cmap=colours, vmin=0, vmax=255, interpolation="nearest")
        image.set_data(pixels)
        axes.set_title(f"generation {generation:,}")
        plt.pause(1 / fps)

    return show


def text(columns: int, fps: float, write=None, clock=time.monotonic, sleep=time.sleep) -> Show:
    """Returns a function that shows boards of so many columns in the terminal, each in place of the one before."""
    write, due = write or sys.stdout.write, clock()

    def show(board: np.ndarray, generation: int) -> None:
        nonlocal due
        sleep(max(0.0, due - clock()))
        due = clock() + 1 / fps
        size = shutil.get_terminal_size()
        write(
            f"\x1b[H\x1b[2Jgeneration {generation:,}\n{to_characters(board, columns, size.columns, size.lines - 3)}\n"
        )
        sys.stdout.flush()

    return show
