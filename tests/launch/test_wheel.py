"""The wheel: what is in it, and that it does its work away from the clone."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def call(*command, cwd, status=0):
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    directory, source = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):  # a copy: setuptools reuses what lies in ./build
        shutil.copy(ROOT / name, source)
    for name in ("tf2dist", "trainers", "launch", "benchmarks"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    call(*pip, "wheel", "--no-deps", "--quiet", "--wheel-dir", directory, source, cwd=directory)
    [path] = directory.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The bin directory of a new environment with the wheel in it, whose dependencies are those of this one."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory, with_pip=False)
    python = directory / "bin" / "python"
    packages = pathlib.Path(call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd="/")[:-1])
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", f"--python={python}"]
    call(*pip, "install", "--no-deps", "--quiet", "--ignore-installed", wheel, cwd=directory)
    assert call(python, "-c", "import tf2dist; print(tf2dist.__file__)", cwd="/").startswith(str(packages))
    return python.parent


def test_the_wheel_holds_tf2dist_alone(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"tf2dist"}
    assert "tf2dist/py.typed" in names
    in_clone = {str(path.relative_to(ROOT)) for path in (ROOT / "tf2dist").rglob("*.py")}
    assert in_clone == {name for name in names if name.endswith(".py")}


def test_the_console_command(installed, tmp_path):
    assert "convert-checkpoint" in call(installed / "tf2dist", "--help", cwd=tmp_path)
    assert re.match(r"tf2dist \d.*tensorflow \d", call(installed / "tf2dist", "version", cwd=tmp_path))
    assert "nothing is in the way" in call(installed / "tf2dist", "doctor", cwd=tmp_path)
    call(installed / "tf2dist", "bogus", cwd=tmp_path, status=2)


def test_a_script_of_ones_own_on_a_cluster(installed, tmp_path):
    """The README's, in another directory."""
    script, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "my_script.py").write_text(script)
    command = ["launch", "local", "--ps=1", "--workers=2", "--", "my_script.py"]
    (accuracy,) = re.findall(r"'accuracy': ([\d.]+)", call(installed / "tf2dist", *command, cwd=tmp_path))
    assert float(accuracy) > 0.85
