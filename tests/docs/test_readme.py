"""The README's own script does what the README says."""

import pathlib
import re
import subprocess
import sys

import pytest

README = pathlib.Path(__file__).parents[2] / "README.md"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "layout"), [("ps", ["--ps=1", "--workers=2"]), ("mirrored", [])])
def test_script_for_your_own_model(tmp_path, name, layout):
    script, *_ = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    path = tmp_path / "my_script.py"
    path.write_text(script.replace('join("ps")', f'join("{name}")'))
    launcher = ["-m", "launch", "local", *layout, "--"] if layout else []
    done = subprocess.run(
        [sys.executable, *launcher, str(path)], capture_output=True, text=True, timeout=150, cwd=README.parent
    )
    assert done.returncode == 0, done.stderr
    (accuracy,) = re.findall(r"'accuracy': ([\d.]+)", done.stdout)
    assert float(accuracy) > 0.85
