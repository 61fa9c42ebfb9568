"""Where nothing may be left out, a skipped test is one that has failed."""

import os
import subprocess
import sys

import pytest

from tests.house.source import ROOT

TESTS = """
import pytest

def test_there():
    pass

def test_left_out():
    pytest.skip("no such program here")

@pytest.mark.skipif(True, reason="no such file here")
def test_marked():
    pass

@pytest.fixture
def missing():
    pytest.skip("no such device here")

def test_by_a_fixture(missing):
    pass

@pytest.mark.xfail(strict=True)
def test_known_to_fail():
    assert False
"""
MODULE = "import pytest\npytest.skip('nothing of this here', allow_module_level=True)\n"


@pytest.mark.parametrize(
    ("value", "counts"),
    [pytest.param("0", "1 passed, 4 skipped, 1 xfailed", marks=pytest.mark.slow), ("1", "3 errors")],
)
def test_skips_are_failures_if_wanted(tmp_path, value, counts):
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_module.py").write_text(MODULE)
    # The hooks alone: what else the conftest does takes TensorFlow.
    hooks = (ROOT / "tests" / "conftest.py").read_text().partition('NO_SKIP = "')
    (tmp_path / "conftest.py").write_text("import os\nimport pytest\n\n" + hooks[1] + hooks[2])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    done = subprocess.run(
        [*command, f"--rootdir={tmp_path}", str(tmp_path)], env={**os.environ, "TF2DIST_TESTS_NO_SKIP": value},
        capture_output=True, text=True, timeout=60, cwd=tmp_path,
    )  # fmt: skip
    assert counts in done.stdout
    if value == "1":
        assert "1 failed, 1 passed, 1 xfailed, 3 errors" in done.stdout
        for reason in ("no such program here", "no such file here", "no such device here", "nothing of this here"):
            assert f"TF2DIST_TESTS_NO_SKIP is set, and this was left out: Skipped: {reason}" in done.stdout
