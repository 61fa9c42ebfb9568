"""What is left to look at afterwards: GIF, MP4, and the curve of the population. No TensorFlow."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator

import numpy as np

from tf2dist.atomic import replacing
from tf2dist.data.errors import DataError
from tf2dist.life.picture import Scale

Append = Callable[[np.ndarray], object]

_MOST_PIXELS = 2**29  # of all frames of a GIF: they are held in memory, and no one can look at more


def check_gif(path: str, generations: int, every: int, scale: Scale) -> None:
    """Finds out whether a GIF of so many generations would be of a sensible size.

    Raises:
      DataError: it would not.
    """
    height, width = scale.shape
    frames = generations // every + 2
    size = frames * height * width
    if size > _MOST_PIXELS:
        most = _MOST_PIXELS // (height * width) - 2
        raise DataError(
            f"{path} would have {frames:,} frames of {width}x{height} pixels, {size / 2**30:.1f} GiB "
            f"before compression, and {_MOST_PIXELS / 2**30} GiB are the most; --every={-(-generations // most)} fits"
        )


@contextlib.contextmanager
def gif(path: str, scale: Scale, palette: np.ndarray, fps: float) -> Iterator[Append]:
    """As `mp4`, for a GIF."""
    from PIL import Image

    images: list[Image.Image] = []

    def append(frame: np.ndarray) -> None:
        images.append(Image.fromarray(frame))
        images[-1].putpalette(palette.tobytes())

    yield append
    with replacing(os.path.realpath(path)) as (part,):
        # GIF counts in hundredths of a second. Frames that are alike are joined into one that lasts longer.
        duration = max(10, round(100 / fps) * 10)
        images[0].save(part, "GIF", save_all=True, append_images=images[1:], duration=duration, loop=0)


def check_mp4(path: str) -> None:
    """Finds out whether there is a program to make one.

    Raises:
      DataError: there is none.
    """
    if not shutil.which("ffmpeg"):
        raise DataError(f"{path} needs the program ffmpeg, and it is not on PATH; a GIF needs no program")


@contextlib.contextmanager
def mp4(path: str, scale: Scale, palette: np.ndarray, fps: float) -> Iterator[Append]:
    """Gives a function that appends a frame u8[h, w], whose values are places in the palette u8[256, 3].

    The file is there, whole, when the block has ended without an error.

    Raises:
      OSError: ffmpeg failed; with what it said.
    """
    height, width = scale.shape
    with replacing(os.path.realpath(path)) as (part,):
        command = [
            "ffmpeg", "-loglevel", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}",
            "-r", str(fps), "-i", "-", "-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p", "-f", "mp4", part,
        ]  # fmt: skip
        ffmpeg = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        pipe = ffmpeg.stdin
        assert pipe is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # it says why when it is asked for its end
                yield lambda frame: pipe.write(palette[frame].tobytes())
                pipe.flush()
        except BaseException:
            ffmpeg.kill()
            ffmpeg.wait()
            raise
        said = ffmpeg.communicate()[1].decode(errors="replace")
        if ffmpeg.returncode:
            raise OSError(f"ffmpeg failed with status {ffmpeg.returncode}: {' '.join(said.split())}")


def write_curve(path: str, first: int, parts: list[np.ndarray]) -> None:
    """Draws populations from generation `first` on, in parts i64[n], as PNG, or lists them if the path ends in .csv."""
    populations = np.concatenate(parts)
    generations = np.arange(first, first + len(populations))
    with replacing(os.path.realpath(path)) as (part,):
        if path.endswith(".csv"):
            rows = np.stack([generations, populations], 1)
            np.savetxt(part, rows, "%d", ",", header="generation,population", comments="")
            return
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 4), layout="constrained")
        axes = figure.add_subplot(xlabel="generation", ylabel="living cells")
        axes.plot(generations, populations, linewidth=1)
        axes.set_ylim(bottom=0)
        figure.savefig(part, format="png", dpi=120)
