"""The table of docs/gpu.md: every file that has to do with GPUs is in it, and the tests that it names exist."""

import re

import pytest

from tests.house.source import ROOT

ASKS = re.compile(
    r"tf\.device\(|physical_gpus|on_accelerators|worker_devices|share_gpus|gpu_options|num_gpus|memory_growth"
    r"|driver_is_open|hide_gpus|gpus\.visible|GPU_MEMORY|GPUS_SHARED_BY|nvidia|\"GPU\""
)
# What only hands on, or only tells of it in words.
ELSEWHERE = {"tf2dist/runtime/session.py", "tf2dist/migrate/concepts.py", "tf2dist/cluster/environments/slurm.py"}
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "gpu.md").read_text().split("## What was read")[1].splitlines()
    if line.startswith("| ")
][2:]


def named(cell):
    """Paths in a cell, from the root."""
    paths = re.findall(r"`([\w./]+\.py)`", cell)
    return {path if (ROOT / path).exists() else f"tf2dist/{path}" for path in paths}


def test_every_file_that_asks_for_devices_is_in_the_table():
    listed = {path for row in ROWS for path in named(row[1])}
    files = [path for top in ("tf2dist", "trainers") for path in (ROOT / top).rglob("*.py")]
    asking = {str(path.relative_to(ROOT)) for path in files if ASKS.search(path.read_text())}
    assert len(asking) > 20
    assert sorted(asking - listed - ELSEWHERE) == []
    assert [path for path in sorted(listed) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_tests_that_it_names_exist(row):
    """`test_x`, `test_y` in `tests/z.py`: both are functions of that file."""
    for names, path in re.findall(r"((?:`test_\w+`(?:, )?)+) in `([\w./]+)`", row[3]):
        source = (ROOT / path).read_text()
        assert [name for name in re.findall(r"\w+", names) if f"def {name}(" not in source] == []
    left = re.sub(r"(?:`test_\w+`(?:, )?)+ in `[\w./]+`", "", row[3])
    assert not re.search(r"`test_\w+`", left), "a test is named without its file"
    assert row[3] == "nothing on a GPU" or re.search(r"`tests/[\w./]+\.py`", row[3])
