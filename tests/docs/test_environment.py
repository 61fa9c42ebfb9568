"""docs/environment.md has every environment variable of ours."""

import re

import pytest

from tests.house.source import ROOT

TABLE = (ROOT / "docs" / "environment.md").read_text()
OURS = re.compile(r"\bTF2DIST_[A-Z][A-Z_]*[A-Z]\b")
OF_PLATFORMS = re.compile(r"[\"'](TF_CONFIG|CLUSTER_SPEC|(?:SM|SLURM)_[A-Z_]+)[\"']")


def names(pattern, *tops):
    """Names in the Python sources below some directories."""
    return {name for top in tops for path in (ROOT / top).rglob("*.py") for name in pattern.findall(path.read_text())}


def rows():
    """Names in the first columns of the tables."""
    cells = [line.split("|")[1] for line in TABLE.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def test_every_variable_of_ours_is_in_a_table():
    found = names(OURS, "tf2dist", "trainers", "launch", "benchmarks", "tests")
    assert len(found) > 5
    assert found - rows() == set()


def test_no_variable_of_ours_is_made_up():
    files = [path for path in (ROOT / ".ci" / "run", ROOT / "Makefile") if path.exists()]
    elsewhere = {name for path in files for name in OURS.findall(path.read_text())}
    assert {name for name in rows() if OURS.fullmatch(name)} <= names(OURS, "tf2dist", "trainers", "tests") | elsewhere


def test_every_variable_of_a_platform_is_in_a_table():
    found = names(OF_PLATFORMS, "tf2dist/cluster")
    assert {"TF_CONFIG", "SM_HOSTS", "SLURM_PROCID"} <= found
    assert found - rows() == set()


@pytest.mark.parametrize("name", ["TF_CPP_MIN_LOG_LEVEL", "GRPC_VERBOSITY", "GRPC_FAIL_FAST"])
def test_what_is_set_for_tensorflow_is_in_a_table(name):
    from tf2dist.system.environment_variables import TENSORFLOW_DEFAULTS

    assert set(TENSORFLOW_DEFAULTS) <= rows()
    (row,) = [line for line in TABLE.splitlines() if line.startswith(f"| `{name}` |")]
    assert f"| {TENSORFLOW_DEFAULTS[name]} |" in row
