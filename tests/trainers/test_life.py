"""The Game of Life as a user runs it."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from PIL import Image

from tests.conftest import every_third
from trainers.life import pattern_files, saved_run

LIFE = "trainers.life"
GUN = "--pattern=gosper", "--size=70x90", "--generations=100"
WAYS = {
    "numpy_function": ["--engine=numpy_function"],
    "conv": ["--engine=conv"],
    "packed": ["--engine=packed"],
    "mirrored": ["--strategy=mirrored", "--replicas=3"],
    "multiworker": ["--strategy=multiworker", "--workers=2"],
}


@pytest.fixture
def life(run):
    """life(*arguments): runs the trainer; without a display."""
    return lambda *arguments, **env: run(*arguments, module=LIFE, env={"DISPLAY": "", "WAYLAND_DISPLAY": "", **env})


@pytest.mark.exhaustive
def test_one_process_and_two_find_the_same_cycle_of_the_default_board(life, tmp_path):
    reports, boards = [], []
    for arguments in ([], ["--strategy=multiworker", "--workers=2"]):
        done = life("--stop_on_cycle", "--generations=100000", "--report=it.json", "--out=it.rle", *arguments)
        assert done.status == 0, done
        report = json.loads((tmp_path / "it.json").read_text())
        assert (report["trainer"], report["replicas"]) == ("life", 1 + len(reports))
        assert (report["rows"], report["columns"], report["edges"], report["rule"]) == (50, 50, "torus", "B3/S23")
        assert report["generations"] == report["cycle_from"] + report["period"] < 100_000
        assert report["cells_per_second"] > 0
        assert f"comes back, with period {report['period']:,}" in done.out
        reports.append([report[key] for key in ("population", "period", "cycle_from")])
        boards.append((tmp_path / "it.rle").read_bytes())
    assert reports[0] == reports[1]
    assert boards[0] == boards[1]
    assert len(pattern_files.read(str(tmp_path / "it.rle")).cells) == reports[0][0]


@pytest.mark.slow
def test_going_on_finds_what_one_run_finds(life, tmp_path):
    glider = "--pattern=glider", "--size=20x30", "--stop_on_cycle", "--report=it.json"
    assert life(*glider, "--generations=150", "--logdir=logs").status == 0
    assert saved_run.read(str(tmp_path / "logs")).generation == 150
    done = life(*glider, "--generations=1000", "--logdir=logs", "--strategy=mirrored", "--replicas=3")
    assert "going on from generation 150" in done.out, done
    report = json.loads((tmp_path / "it.json").read_text())
    assert (report["generations"], report["cycle_from"], report["period"]) == (240, 0, 240)
    assert saved_run.read(str(tmp_path / "logs")).generation == 240


@pytest.mark.exhaustive
def test_every_way_to_compute_gives_the_same_board(life, tmp_path):
    boards, reports = {}, {}
    for name, arguments in WAYS.items():
        done = life(*GUN, *arguments, f"--out={name}.rle", f"--report={name}.json", "--logdir=logs" + name)
        assert done.status == 0, done
        assert "Traceback" not in done.err
        boards[name] = (tmp_path / f"{name}.rle").read_bytes()
        reports[name] = json.loads((tmp_path / f"{name}.json").read_text())
    assert len(set(boards.values())) == 1
    last = pattern_files.read(str(tmp_path / "conv.rle"))
    assert last.board == (70, 90, "torus")
    for name, report in reports.items():
        assert (report["trainer"], report["generations"], report["period"]) == ("life", 100, None)
        assert report["population"] == len(last.cells) > 36
        assert report["replicas"] == {"mirrored": 3, "multiworker": 2}.get(name, 1)
    # Nothing is left to compute, and the board is still there.
    done = life(*GUN[:2], "--generations=50", "--engine=conv", "--logdir=logsconv")
    assert f"generation 100: {len(last.cells)} cells live" in done.out


@pytest.mark.parametrize(
    ("arguments", "frames"),
    [([], "None said: no toolkit; --gif=FILE makes an animation"), (["--gif=it.gif"], "frames said: no toolkit; ")],
    ids=str,
)
def test_frames_that_nobody_sees_are_not_made(arguments, frames, tmp_path):
    """A board is fetched for each, so that the run would go on a generation at a time."""
    program = """
        import contextlib, sys
        from types import SimpleNamespace
        from absl import flags
        from trainers.life import __main__ as life, display

        def window(*args):
            raise RuntimeError("no toolkit")

        flags.FLAGS(sys.argv)
        display.window, display.has_display = window, lambda: True
        said = []
        run = SimpleNamespace(shared=SimpleNamespace(strategy="one"), leads=True, say=said.append)
        frames = life._frames(run, life._game(), contextlib.ExitStack())
        print("frames" if frames else frames, "said:", *said)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith(frames), done


@pytest.mark.slow
def test_what_one_sees(life, tmp_path):
    done = life(
        *GUN, "--every=30", "--fps=10", "--gif=it.gif", "--curve=it.csv", "--view=terminal", "--colours=red,#000030"
    )
    assert done.status == 0, done
    assert [f"generation {g}\n" in done.out for g in (0, 30, 60, 90)] == [True] * 4
    assert "generation 100: " in done.out
    with Image.open(tmp_path / "it.gif") as gif:
        assert (gif.n_frames, gif.size, gif.info["duration"]) == (4, (360, 280), 100)
        colours = {tuple(c) for c in np.asarray(gif.convert("RGB")).reshape(-1, 3).tolist()}
    assert colours == {(255, 0, 0), (0, 0, 48)}
    rows = (tmp_path / "it.csv").read_text().split()
    assert (rows[0], rows[1], len(rows)) == ("generation,population", "0,36", 102)


@pytest.mark.slow
def test_an_interrupted_run_leaves_what_was_there(start, tmp_path, tree):
    (tmp_path / "it.rle").write_text("old")
    (tmp_path / "it.gif").write_text("old")
    before = tree()
    trainer = start("--generations=1000000000", "--every=1000000", "--gif=it.gif", "--out=it.rle", module=LIFE)
    line = trainer.process.stdout.readline()
    assert "rule B3/S23" in line
    time.sleep(0.5)  # not to be awaited: it computes, or is about to
    trainer.process.send_signal(signal.SIGINT)
    assert trainer.finish().status == 130
    assert tree() == before


BAD = {
    ("--mixed_precision",): "a board has none",
    ("--engine=conv", "--xla"): "packed is compiled by XLA always",
    ("--strategy=ps",): "--strategy=ps has no place for a board",
    ("--engine=fast",): "numpy_function|conv|packed",
    ("--engine=conv", "--strategy=mirrored"): "engine conv computes on one device, and there are 2",
    ("--size=3x50", "--strategy=mirrored", "--replicas=4"): "3 rows is too small for 4 strips",
    ("--size=3x50", "--strategy=multiworker", "--workers=4"): "3 rows is too small for 4 strips",
    ("--rule=life",): "rule 'life' cannot be read",
    ("--edges=open",): "torus|dead",
    ("--pattern=bad.rle",): "bad.rle, line 2, column 3: found zb!, expected b, o, $ or !",
    ("--pattern=glider", "--size=9x9", "--at=7,0"): "--at=7,0 leaves no room for the pattern; 6,6 is the last",
    ("--generations=-1",): "--generations=-1",
    ("--gif=it.gif", "--size=2000x2000", "--generations=100000"): "93.1 GiB before compression",
    ("--gif=nowhere/it.gif",): "--gif=nowhere/it.gif cannot be written: no such file",
    ("--gif=/dev/null",): "--gif=/dev/null is no regular file",
    ("--out=it.txt",): "--out=it.txt must end in .rle, .lif, .cells",
    ("--out=folder.rle",): "--out=folder.rle is a directory",
    ("--colours=black",): "colours 'black' cannot be read",
    ("--view=window",): "--view=window needs a display",
    ("--mp4=it.mp4",): "--mp4=it.mp4 needs the program ffmpeg",
    ("--logdir=other",): "--logdir=other holds a run of rule B36/S23",
    ("--logdir=gs://bucket/x",): "--logdir=gs://bucket/x is a URL",
    ("--pattern=new://bucket/x.rle",): "--pattern=new://bucket/x.rle is a URL of an unknown scheme",
    **{
        (f"--{flag}=new://bucket/{name}",): f"--{flag}=new://bucket/{name} is a URL of an unknown scheme"
        for flag, name in (("out", "it.rle"), ("gif", "it.gif"), ("curve", "it.csv"))
    },
    ("--logdir=damaged",): "life.npz is no board of a run",
    ("--logdir=seeded",): "holds a run that began with a random board of seed 7, and this one begins with a random "
    "board of seed 1; give the same --pattern, --at and --seed",
    ("--logdir=seeded", "--pattern=glider", "--size=50x50", "--at=3,4"): "this one begins with 5 living cells at 3,4",
    ("--logdir=seeded", "--seed=7", "--curve=old.csv"): "--curve=old.csv is there and would get the generations from 7",
    # Runs that go on: something else is wrong.
    ("--logdir=seeded", "--seed=7", "--view=window"): "--view=window needs a display",
    ("--logdir=older", "--view=window"): "--view=window needs a display",
}


@every_third("arguments", BAD, rarely=pytest.mark.exhaustive, quickly=6, ids=" ".join)
def test_refused_before_tensorflow_is_imported(arguments, life, tree, tmp_path, no_tensorflow):
    (tmp_path / "bad.rle").write_text("x = 3, y = 3\nbozb!")
    (tmp_path / "old.csv").write_text("generation,population")
    for folder in ("folder.rle", "other", "damaged", "seeded", "older"):
        (tmp_path / folder).mkdir()
    (tmp_path / "damaged" / "life.npz").write_bytes(b"damaged")
    saved_run.write(str(tmp_path / "other"), saved_run.SavedRun(np.zeros([50, 1], np.uint64), 7, "rule B36/S23"))
    key, board = "rule B3/S23, 50x50 cells, edges torus, engine packed", np.zeros([50, 1], np.uint64)
    saved_run.write(str(tmp_path / "seeded"), saved_run.SavedRun(board, 7, key, {}, "a random board of seed 7"))
    np.savez(tmp_path / "older" / "life.npz", board=board, generation=7, key=key)
    before = tree()
    said = life(*arguments, PATH="/nowhere", **no_tensorflow).refused()
    assert said.startswith("life: ")
    assert BAD[arguments] in said
    assert tree() == before
