"""python -m tests.matrix [--pairs=2.18.1+3.10.0,...] [--python=3.12] [--numprocesses=2] [-- PYTEST ARGUMENTS]

Trains the models of the zoo with other versions of TensorFlow and Keras, each pair in an environment of its own that is
thrown away: in one process and in clusters, compared with that Keras alone. Prints a line for each pair, and exits with
1 if one of them failed. `make matrix` installs uv, which makes the environments.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

# Each TensorFlow with an old and a new Keras; the newest of both is what all other tests run on.
PAIRS = (
    ("2.18.1", "3.10.0"), ("2.18.1", "3.12.4"), ("2.18.1", "3.15.1"),
    ("2.19.1", "3.10.0"), ("2.19.1", "3.15.1"),
    ("2.20.0", "3.11.3"), ("2.20.0", "3.15.1"),
    ("2.21.0", "3.12.4"), ("2.21.0", "3.13.2"), ("2.21.0", "3.14.1"),
)  # fmt: skip
_ROOT = pathlib.Path(__file__).parents[1]
_TESTS = ("tests/training/test_conformance.py", "tests/training/test_conformance_jobs.py")
# Not those that notice when a newer version has mended, or has, something, nor those of the tests' own tolerances.
_CHOSEN = ("-m", "not exhaustive", "-k", "not upstream and not every_optimizer_and_metric and not bands")
_LIMIT = 1200.0  # seconds for the tests of a pair


def _pairs(text: str) -> list[tuple[str, str]]:
    found = [tuple(pair.split("+")) for pair in text.split(",")]
    if any(len(pair) != 2 for pair in found):
        raise argparse.ArgumentTypeError(f"{text!r} is not TENSORFLOW+KERAS,..., such as 2.18.1+3.10.0")
    return found  # type: ignore[return-value]


def run_pair(tensorflow: str, keras: str, python: str, arguments: Sequence[str], directory: str) -> tuple[bool, str]:
    """Makes an environment with these versions in `directory`, and runs the tests there.

    Returns:
      Whether all passed, and what there is to say: pytest's summary, or the end of what failed.
    """
    uv = [sys.executable, "-m", "uv"]
    inside = f"{directory}/bin/python"
    wanted = ["--editable", f"{_ROOT}[test]", f"tensorflow=={tensorflow}", f"keras=={keras}"]
    commands = (
        [*uv, "venv", "--quiet", "--python", python, directory],
        [*uv, "pip", "install", "--quiet", "--python", inside, *wanted],
        [inside, "-m", "pytest", "-q", "-p", "no:cacheprovider", *_CHOSEN, *arguments, *_TESTS],
    )
    done = None
    for command in commands:
        try:
            done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=_LIMIT)
        except subprocess.TimeoutExpired:
            return False, f"{command[0]} has not ended within {_LIMIT:.0f} s"
        if done.returncode != 0:
            return False, "\n".join((done.stdout + done.stderr).splitlines()[-30:])
    assert done is not None
    return True, done.stdout.splitlines()[-1].strip("= ")


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__.partition("\n\n")[2])
    parser.add_argument("--pairs", type=_pairs, default=PAIRS, help="TENSORFLOW+KERAS,...")
    parser.add_argument("--python", default=sys.executable, help="of the environments; this one if not given")
    parser.add_argument("--numprocesses", type=int, default=os.cpu_count() or 1)
    parser.add_argument("rest", nargs="*", metavar="PYTEST ARGUMENTS")
    given = parser.parse_args(arguments)
    tests = [f"--numprocesses={given.numprocesses}", "--dist=loadfile", "--max-worker-restart=0", *given.rest]
    failed = 0
    for tensorflow, keras in given.pairs:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="matrix-") as directory:
            passed, said = run_pair(tensorflow, keras, given.python, tests, directory)
        failed += not passed
        seconds = time.monotonic() - began
        verdict = re.sub(r" in [\d.]+s.*", "", said) if passed else f"FAILED\n{said}"
        print(f"TensorFlow {tensorflow}, Keras {keras}: {verdict} ({seconds:.0f} s)", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
