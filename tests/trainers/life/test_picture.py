"""Boards as pictures, animations, curves, and on the terminal."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from tf2dist.data.errors import DataError
from trainers.life import animation, display, packed_board, picture, population_curve

BLACK_ON_WHITE = picture.palette("black,white")


def test_small_boards_are_enlarged():
    cells = np.array([[1, 0, 0], [0, 0, 1]], np.uint8)
    scale = picture.scale(2, 3)
    assert scale.shape == (266, 399)
    pixels = picture.draw(packed_board.pack(cells), scale)
    assert (pixels[::133, ::133] == 255 * cells).all()
    assert (pixels == (255 * cells).repeat(133, 0).repeat(133, 1)).all()


def test_large_boards_are_scaled_down():
    scale = picture.scale(2500, 1300)
    assert scale.shape == (834, 434)
    board = np.zeros([2500, packed_board.width(1300)], np.uint64)
    packed_board.place(board, np.array([[0, 0], [3, 3], [3, 4], [4, 3], [2499, 1299]]), (0, 0))
    pixels = picture.draw(board, scale)
    assert pixels.shape == scale.shape
    assert pixels[1, 1] == np.ceil(255 * np.sqrt(3 / 9))
    assert pixels[0, 0] == np.ceil(255 * np.sqrt(1 / 9)), "a single cell stays visible"
    assert pixels[-1, -1] == 255, "the last pixel has one cell only, and it lives"
    assert np.count_nonzero(pixels) == 3


def test_palettes():
    assert BLACK_ON_WHITE[0].tolist() == [255, 255, 255]
    assert BLACK_ON_WHITE[255].tolist() == [0, 0, 0]
    assert picture.palette("#00ff80, navy")[[0, 255]].tolist() == [[0, 0, 128], [0, 255, 128]]
    for wrong in ("black", "black,white,red", "black,nocolour", ""):
        with pytest.raises(DataError, match="black,white"):
            picture.palette(wrong)


def test_gifs(tmp_path):
    path = str(tmp_path / "it.gif")
    frames = [np.full([4, 6], shade, np.uint8) for shade in (0, 255, 85)]
    with animation.gif(path, picture.Scale(4, 6, 1, 1), BLACK_ON_WHITE, 5.0) as append:
        for frame in frames:
            append(frame)
    with Image.open(path) as gif:
        assert (gif.size, gif.n_frames, gif.info["duration"]) == ((6, 4), 3, 200)
        for i, frame in enumerate(frames):
            gif.seek(i)
            assert (np.asarray(gif.convert("RGB")) == BLACK_ON_WHITE[frame]).all()


def test_a_gif_that_fails_leaves_the_old_one(tmp_path):
    path = tmp_path / "it.gif"
    path.write_bytes(b"old")

    def interrupted():
        with animation.gif(str(path), picture.Scale(4, 6, 1, 1), BLACK_ON_WHITE, 5.0) as append:
            append(np.zeros([4, 6], np.uint8))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


def test_gifs_of_gigabytes():
    with pytest.raises(DataError, match=r"10,002 frames of 1000x1000 pixels, 9\.3 GiB .* --every=19 fits"):
        animation.check_gif("--gif=it.gif", 10_000, 1, picture.scale(1000, 1000))
    animation.check_gif("--gif=it.gif", 10_000, 19, picture.scale(1000, 1000))


# Records what it is given in place of a film, or fails.
FFMPEG = """#!/bin/sh
for last; do :; done
[ -n "$BROKEN" ] && { echo "no such codec" >&2; exit 3; }
cat > "$last"
"""


@pytest.fixture
def ffmpeg(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "ffmpeg"
    program.parent.mkdir()
    program.write_text(FFMPEG)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


def test_what_ffmpeg_is_given(tmp_path, ffmpeg):
    path = tmp_path / "it.mp4"
    frame = np.arange(24, dtype=np.uint8).reshape(4, 6)
    animation.check_mp4("--mp4=it.mp4")
    with animation.mp4(str(path), picture.Scale(4, 6, 1, 1), BLACK_ON_WHITE, 5.0) as append:
        append(frame)
        append(255 - frame)
    written = np.frombuffer(path.read_bytes(), np.uint8).reshape(2, 4, 6, 3)
    assert (written == BLACK_ON_WHITE[np.stack([frame, 255 - frame])]).all()


def test_what_ffmpeg_says_when_it_fails(tmp_path, ffmpeg, monkeypatch):
    monkeypatch.setenv("BROKEN", "1")

    def film():
        with animation.mp4(str(tmp_path / "it.mp4"), picture.Scale(4, 6, 1, 1), BLACK_ON_WHITE, 5.0) as append:
            for _ in range(1000):
                append(np.zeros([400, 600], np.uint8))

    with pytest.raises(OSError, match="ffmpeg failed with status 3: no such codec"):
        film()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bin"]


def test_a_broken_pipe_of_the_caller_is_the_callers(tmp_path, ffmpeg):
    """Of standard output, say: it ends the program, and no film is left."""

    def film():
        with animation.mp4(str(tmp_path / "it.mp4"), picture.Scale(4, 6, 1, 1), BLACK_ON_WHITE, 5.0) as append:
            append(np.zeros([4, 6], np.uint8))
            raise BrokenPipeError(32, "Broken pipe")

    with pytest.raises(BrokenPipeError):
        film()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bin"]


def test_films(tmp_path):
    if not shutil.which("ffmpeg"):
        pytest.skip("ffmpeg is not installed; what it would be given is tested above")
    path = str(tmp_path / "it.mp4")
    scale = picture.scale(33, 77)
    with animation.mp4(path, scale, BLACK_ON_WHITE, 5.0) as append:
        for shade in (0, 255, 0):
            append(np.full(scale.shape, shade, np.uint8))
    raw = subprocess.run(
        ["ffmpeg", "-loglevel", "error", "-i", path, "-f", "rawvideo", "-pix_fmt", "gray", "-"],
        check=True, capture_output=True,
    ).stdout  # fmt: skip
    height, width = (size + size % 2 for size in scale.shape)
    frames = np.frombuffer(raw, np.uint8).reshape(-1, height, width)
    assert [round(float(frame[:100, :100].mean()) / 255) for frame in frames] == [1, 0, 1]


def test_no_ffmpeg(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(DataError, match="needs the program ffmpeg"):
        animation.check_mp4("--mp4=it.mp4")


def test_curves(tmp_path):
    parts = [np.array([5]), np.array([7, 9])]
    population_curve.write(str(tmp_path / "it.csv"), 10, parts)
    assert (tmp_path / "it.csv").read_text() == "generation,population\n10,5\n11,7\n12,9\n"
    population_curve.write(str(tmp_path / "it.png"), 10, parts)
    with Image.open(tmp_path / "it.png") as image:
        assert image.size == (960, 480)


def test_terminals():
    glider = packed_board.pack(np.array([[0, 1, 0], [0, 0, 1], [1, 1, 1]], np.uint8))
    assert picture.to_characters(glider, 3, 80, 20) == " ▀▄\n▀▀▀"
    wide = np.zeros([50, packed_board.width(200)], np.uint64)
    packed_board.place(wide, np.array([[0, 0], [49, 199]]), (0, 0))
    lines = picture.to_characters(wide, 200, 40, 20).split("\n")
    assert len(lines) == 5
    assert (lines[0], lines[-1]) == ("▀", " " * 39 + "▄")


def test_frames_in_a_terminal_keep_their_time():
    written, slept, now = [], [], [0.0]
    show = display.text(3, 4.0, write=written.append, clock=lambda: now[0], sleep=slept.append)
    board = packed_board.pack(np.eye(3, dtype=np.uint8))
    show(board, 1)
    now[0] += 0.1  # the next generation took so long
    show(board, 2)
    assert slept == [0.0, pytest.approx(0.15)]
    assert "generation 1\n▀▄" in written[0]


def test_no_window_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(RuntimeError, match=r"no window can be opened \(.*matplotlib"):
        display.window(picture.scale(3, 3), BLACK_ON_WHITE, 5.0)


def test_windows(monkeypatch):
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    with pytest.raises(RuntimeError, match="no window can be opened"):
        display.window(picture.scale(3, 3), BLACK_ON_WHITE, 5.0)
