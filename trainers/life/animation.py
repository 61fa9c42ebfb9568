"""Records frames as GIF or MP4. No TensorFlow."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator

import numpy as np

from tf2dist.data.errors import DataError
from tf2dist.system import files
from tf2dist.system.atomic_files import replacing
from trainers.life.picture import Scale

Append = Callable[[np.ndarray], object]

_MAX_GIF_PIXELS = 2**29  # of all frames together, which are held in memory


class _EarlyEnd(Exception):
    """ffmpeg does not read its input any more."""


def check_gif(path: str, generations: int, every: int, scale: Scale) -> None:
    """Checks the size of a GIF of so many generations.

    Raises:
      DataError: it is too large.
    """
    height, width = scale.shape
    frames = generations // every + 2
    size = frames * height * width
    if size > _MAX_GIF_PIXELS:
        most = _MAX_GIF_PIXELS // (height * width) - 2
        raise DataError(
            f"{path} would have {frames:,} frames of {width}x{height} pixels, {size / 2**30:.1f} GiB "
            f"before compression, and {_MAX_GIF_PIXELS / 2**30} GiB are the most; "
            f"--every={-(-generations // most)} fits"
        )


@contextlib.contextmanager
def gif(path: str, scale: Scale, palette: np.ndarray, fps: float) -> Iterator[Append]:
    """Does what `mp4` does, for a GIF."""
    from PIL import Image

    images: list[Image.Image] = []

    def append(frame: np.ndarray) -> None:
        images.append(Image.fromarray(frame))
        images[-1].putpalette(palette.tobytes())

    yield append
    with replacing(files.target(path)) as (part,):
        # GIF counts in hundredths of a second. Pillow joins equal frames into one that lasts longer.
        duration = max(10, round(100 / fps) * 10)
        images[0].save(part, "GIF", save_all=True, append_images=images[1:], duration=duration, loop=0)


def check_mp4(path: str) -> None:
    """Checks that ffmpeg is installed.

    Raises:
      DataError: it is not.
    """
    if not shutil.which("ffmpeg"):
        raise DataError(f"{path} needs the program ffmpeg, and it is not on PATH; a GIF needs no program")


@contextlib.contextmanager
def mp4(path: str, scale: Scale, palette: np.ndarray, fps: float) -> Iterator[Append]:
    """Yields a function that appends a frame u8[h, w] of indices into the palette u8[256, 3].

    The file appears, complete, when the block ends without an error.

    Raises:
      OSError: ffmpeg failed; with its message.
    """
    height, width = scale.shape
    with replacing(files.target(path)) as (part,):
        command = [
            "ffmpeg", "-loglevel", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}",
            "-r", str(fps), "-i", "-", "-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p", "-f", "mp4", part,
        ]  # fmt: skip
        ffmpeg = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        pipe = ffmpeg.stdin
        assert pipe is not None

        def write(data: bytes) -> None:
            try:
                pipe.write(data)
                pipe.flush()
            except BrokenPipeError:  # not to be taken for one of what else the caller writes to
                raise _EarlyEnd from None

        ended_early = False
        try:
            yield lambda frame: write(palette[frame].tobytes())
        except _EarlyEnd:  # its message is read below
            ended_early = True
        except BaseException:
            ffmpeg.kill()
            ffmpeg.wait()
            raise
        said = ffmpeg.communicate()[1].decode(errors="replace")
        if ffmpeg.returncode or ended_early:
            raise OSError(f"ffmpeg failed with status {ffmpeg.returncode}: {' '.join(said.split())}")
