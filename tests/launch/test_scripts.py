"""The launch scripts to copy, in launch/scripts."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from tf2dist.cluster import environments
from tf2dist.launch import free_ports
from tf2dist.launch.command_line import main

SCRIPTS = pathlib.Path(__file__).parents[2] / "launch" / "scripts"


@pytest.mark.parametrize("kind", ["jobset", "tfjob"])
def test_manifests_are_what_the_command_in_their_first_line_prints(kind, capsys):
    first, _, rest = (SCRIPTS / f"{kind}.yaml").read_text().split("\n", 2)
    assert main(shlex.split(first.removeprefix("# python -m launch "))) == 0
    assert capsys.readouterr().out == rest


@pytest.mark.parametrize("name", ["tf_config.sh", "job.sbatch"])
def test_shell_scripts_can_be_parsed(name):
    subprocess.run(["bash", "-n", SCRIPTS / name], check=True)


def test_the_batch_script_gives_every_task_its_place():
    text = (SCRIPTS / "job.sbatch").read_text()
    count = int(re.search(r"--ntasks=(\d+)", text)[1])
    tasks = re.search(r"TF2DIST_TASKS=(\S+)", text)[1]
    assert sum(int(part.partition(":")[2]) for part in tasks.split(",")) == count


def test_the_service_calls_the_script_with_job_and_index(tmp_path):
    text = (SCRIPTS / "tf2dist-task@.service").read_text()
    command = re.search(r"^ExecStart=(.*)$", text, re.MULTILINE)[1]
    # What systemd makes of it for the instance worker-1.
    command = command.replace("%%", "\0").replace("%i", "worker-1").replace("\0", "%").replace("$$", "$")
    shutil.copy(SCRIPTS / "tf_config.sh", tmp_path)
    (tmp_path / "my_script.py").write_text("import os; print(os.environ['TF_CONFIG'])")
    done = subprocess.run(
        shlex.split(command), cwd=tmp_path, env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True
    )
    place = environments.from_environment({"TF_CONFIG": done.stdout})
    assert (str(place.task), len(place.tasks)) == ("worker 1", 4), done.stderr


@pytest.mark.slow
def test_two_processes_that_were_started_by_hand(tmp_path):
    (tmp_path / "my_script.py").write_text("import tf2dist\nprint(tf2dist.join('multiworker').num_replicas_in_sync)\n")
    root = str(SCRIPTS.parents[1])
    with free_ports.hold(2) as ports:
        cluster = f'"worker": ["127.0.0.1:{ports[0]}", "127.0.0.1:{ports[1]}"]'
        env = {**os.environ, "PYTHON": sys.executable, "CLUSTER": cluster, "PYTHONPATH": root}
        command = [SCRIPTS / "tf_config.sh", "worker"]
        jobs = [
            subprocess.Popen(
                [*command, str(i), "my_script.py"], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True
            )
            for i in range(2)
        ]
        assert [job.communicate(timeout=200)[0] for job in jobs] == ["2\n", "2\n"]
