"""The contracts of pyproject.toml about who imports whom hold, and each one breaks when it is broken on purpose."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from tests.conftest import every_third
from tests.house.source import ROOT

PACKAGES = ("tf2dist", "launch", "trainers", "benchmarks")


def lint(directory: pathlib.Path) -> tuple[int, str]:
    """The exit status and output of `lint-imports` on the packages in a directory."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    environment = {**os.environ, "PYTHONPATH": str(directory), "COLUMNS": "200"}
    done = subprocess.run(
        [*command, "--no-cache", f"--config={ROOT / 'pyproject.toml'}"],
        cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the packages, to be broken."""
    directory = tmp_path_factory.mktemp("house")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, directory / package, ignore=shutil.ignore_patterns("__pycache__"))
    return directory


def test_contracts_hold():
    status, output = lint(ROOT)
    assert status == 0, output


BROKEN = {
    "The rooms of tf2dist import those below them only": [
        ("tf2dist/errors.py", "import tf2dist.system"),
        ("tf2dist/system/__init__.py", "import tf2dist.cluster"),
        ("tf2dist/cluster/__init__.py", "import tf2dist.compat"),
        ("tf2dist/compat/__init__.py", "import tf2dist.cluster"),
        ("tf2dist/compat/__init__.py", "import tf2dist.runtime"),
        ("tf2dist/runtime/__init__.py", "def f():\n    from tf2dist.input import arrays"),
        ("tf2dist/input/__init__.py", "import tf2dist.execution"),
        ("tf2dist/execution/__init__.py", "import tf2dist.parameter_server"),
        ("tf2dist/parameter_server/__init__.py", "import tf2dist.training"),
        ("tf2dist/layers/__init__.py", "import tf2dist.parameter_server"),
        ("tf2dist/data/__init__.py", "import tf2dist.training"),
        ("tf2dist/training/__init__.py", "import tf2dist.launch"),
        ("tf2dist/attic/__init__.py", ""),
    ],
    "The launcher needs the cluster and nothing of training": [
        ("tf2dist/launch/__init__.py", "import tf2dist.runtime"),
        ("tf2dist/launch/__init__.py", "import tf2dist.compat"),
    ],
    "No room imports the package that holds it": [("tf2dist/training/api.py", "import tf2dist")],
    "No circle, in any package": [
        ("tf2dist/system/__init__.py", "import tf2dist.training"),
        ("tf2dist/cluster/spec.py", "import tf2dist.cluster.roles"),
    ],
    "What starts and joins a job needs no TensorFlow": [
        ("tf2dist/cluster/__init__.py", "def f():\n    import tensorflow as tf"),
        ("tf2dist/system/__init__.py", "import numpy as np"),
        ("tf2dist/launch/__init__.py", "import keras"),
    ],
    "The library knows no program": [
        ("tf2dist/training/api.py", "import trainers"),
        ("tf2dist/training/api.py", "import launch"),
        ("tf2dist/training/api.py", "import tests.models"),
        ("tf2dist/training/api.py", "import benchmarks"),
    ],
    "The library needs nothing that only programs use": [("tf2dist/input/__init__.py", "import scipy.signal")],
    "The front door opens the launcher only": [("launch/__init__.py", "import trainers")],
    "Trainers know neither benchmarks nor tests": [
        ("trainers/__init__.py", "import benchmarks"),
        ("trainers/__init__.py", "from tests import models"),
    ],
}


@pytest.mark.slow
@every_third(("contract", "file", "code"), [(contract, *case) for contract, cases in BROKEN.items() for case in cases])
def test_a_broken_contract_is_seen(copy, contract, file, code):
    path = copy / file
    before = path.read_text() if path.exists() else None
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{before or ''}\n{code}\n")
    try:
        status, output = lint(copy)
    finally:
        if before is None:
            shutil.rmtree(path.parent)
        else:
            path.write_text(before)
    assert status == 1
    broken = [line for line in output.splitlines() if "BROKEN" in line]
    assert any(line.startswith(contract) for line in broken), output


def test_no_contract_goes_unproven():
    import tomllib

    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert {contract["name"] for contract in settings["contracts"]} == set(BROKEN)
