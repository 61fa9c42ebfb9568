"""A wrong command is told in one line, whichever it is."""

import os
import subprocess
import sys

import pytest

from tf2dist import __main__ as command
from tf2dist.system import commands


@pytest.mark.parametrize(
    "command",
    [
        "tf2dist.convert_checkpoint gs://bucket/x out.keras --model=x.keras",
        "tf2dist.convert_checkpoint . gs://bucket/x.keras --model=x.keras",
        "launch local --logs=gs://bucket/x -- trainers.hello",
    ],
)
def test_urls_are_refused_in_one_line(command, tmp_path):
    env = os.environ | {"PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-m", *command.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path, env=env)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert "gs://bucket/x" in done.stderr
    assert " is a URL, and files are read and written on local" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command", ["tf2dist.data.tfrecord --dataset=synthetic --out=new://x/y", "benchmarks fit --report=new://x/y"]
)
def test_unknown_schemes_are_refused_in_one_line(command, tmp_path):
    env = os.environ | {"PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-m", *command.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path, env=env)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert "new://x/y is a URL of an unknown scheme; file://, s3://" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    ["tf2dist.migrate", "tf2dist.doctor", "tf2dist.data.tfrecord", "tf2dist.convert_checkpoint", "benchmarks"],
)
def test_a_wrong_command_gets_one_line(command):
    command = [sys.executable, "-m", command, "--nonsense"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert done.stderr.startswith(f"python -m {command[2]}: error: ")
    assert done.stderr.endswith("; see --help\n")


@pytest.mark.parametrize("argument", ["-h", "--help"])
def test_help_on_a_command_without_arguments(argument, capsys):
    assert command.main(["version", argument]) == 0
    assert capsys.readouterr().out.startswith("usage: tf2dist version\n")
    assert command.main(["version", argument, "more"]) == 2


# What is printed has a character that ASCII has not, and is more than a pipe holds.
PROGRAM = "import tensorflow as tf\ntf.train.Server('\N{SNOWMAN}')\n" + "tf.device('/job:\N{SNOWMAN}')\n" * 5000
COMMANDS = ["tf2dist migrate", "tf2dist.migrate"]


@pytest.mark.parametrize("command", COMMANDS)
def test_output_in_ascii(command, tmp_path):
    """Whichever way a command is called."""
    (tmp_path / "\N{SNOWMAN}.py").write_text(PROGRAM, "utf-8")
    command = [sys.executable, "-m", *command.split(), str(tmp_path)]
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u2603.py:2: tf.train.Server  [server]" in done.stdout


@pytest.mark.parametrize(
    "command",
    [*COMMANDS, "tf2dist --help", "tf2dist migrate --help", "tf2dist version", "launch --help",
     "tf2dist.convert_checkpoint --help", "tf2dist.doctor --help"],
)  # fmt: skip
def test_output_that_nobody_reads(command, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM, "utf-8")
    arguments = [str(tmp_path)] if command in COMMANDS else []
    command = [sys.executable, "-m", *command.split(), *arguments]
    env = {
        name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"
    }  # argparse hides errors then
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert (process.stderr.read(), process.wait(timeout=60)) == ("", 141)


def test_a_value_that_argparse_drops(capsys):
    parser = commands.Parser("command")
    parser.add_argument("--out")
    with pytest.raises(SystemExit):
        parser.parse_args(["--out=--"])
    assert capsys.readouterr().err == "command: error: argument --out: expected another value than --; see --help\n"


def test_arguments_with_ends_of_lines_are_refused_in_one(capsys):
    with pytest.raises(SystemExit):
        commands.Parser("command").parse_args(["a\nb\x1b[2J"])
    assert capsys.readouterr().err == "command: error: unrecognized arguments: a\\nb\\x1b[2J; see --help\n"
    with pytest.raises(SystemExit):
        commands.Parser("command").parse_args(["\x1b" * 100_000])
    assert len(capsys.readouterr().err) < 5000
