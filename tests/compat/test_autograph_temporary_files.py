"""Guards: TensorFlow leaves files of generated code when a process is killed, and ours leaves none."""

import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]

PROGRAM = """
import linecache, os, signal, sys
import tensorflow as tf
from tf2dist.compat import autograph_temporary_files
if os.environ["REMOVE"] == "1":
    autograph_temporary_files.remove_files_at_once()

@tf.function
def positive(x):
    if x > 0:
        return x
    else:
        return undefined(x)

def undefined(x):
    if x < 0:
        return -x
    raise RuntimeError("no branch for it")

try:
    positive(tf.constant(1.0))
except RuntimeError as error:
    print(str(error).splitlines()[-1].strip())
files = [m.__file__ for name, m in sys.modules.items() if name.startswith("__autograph_generated")]
print(len(files), all("def " in "".join(linecache.getlines(name)) for name in files), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def left_by(tmp_path, remove):
    env = os.environ | {"TMPDIR": str(tmp_path), "REMOVE": remove, "TF_CPP_MIN_LOG_LEVEL": "3"}
    program = tmp_path / "program.py"  # AutoGraph reads it
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program)], env=env, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == -9, done.stderr
    return sorted(name for name in os.listdir(tmp_path) if name.startswith("__autograph_generated")), done.stdout


def test_files_of_a_process_that_is_killed(tmp_path):
    directories = [tmp_path / "theirs", tmp_path / "ours"]
    for directory in directories:
        directory.mkdir()
    (theirs, said), (ours, also_said) = (left_by(d, r) for d, r in zip(directories, "01", strict=True))
    assert theirs  # else TensorFlow has mended it, and `autograph_temporary_files` may go
    assert ours == []
    assert said == also_said  # the error, and that there is source to show
    error, files = said.splitlines()
    assert error.endswith("no branch for it")
    assert files == f"{len(theirs)} True"
