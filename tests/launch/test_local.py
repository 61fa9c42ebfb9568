"""The command line, and the cluster that it makes."""

import json
import os
import resource
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import every_third
from tf2dist.errors import UsageError
from tf2dist.launch.backends import local


def launch(*arguments, **kwargs):
    done = subprocess.run(
        [sys.executable, "-m", "launch", *arguments], capture_output=True, text=True, timeout=60, check=False, **kwargs
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        ([], ["worker 0"]),
        (["--workers", "3"], ["worker 0", "worker 1", "worker 2"]),
        (["--ps=1", "--workers=2"], ["chief 0", "worker 0", "worker 1", "ps 0"]),
        (["--ps=2", "--no-chief"], ["worker 0", "ps 0", "ps 1"]),
        (["--chief"], ["chief 0", "worker 0"]),
    ],
)
def test_every_task_gets_its_place_in_the_cluster(run, options, tasks):
    status, out, err = run("print(os.environ['TF_CONFIG'])", *options)
    assert (status, err) == (0, "")
    configs = {line[1:].partition("] ")[0]: json.loads(line.partition("] ")[2]) for line in out.splitlines()}
    assert sorted(configs) == sorted(tasks)
    for name, config in configs.items():
        assert f"{config['task']['type']} {config['task']['index']}" == name
    [cluster] = {json.dumps(config["cluster"]) for config in configs.values()}
    addresses = [address for job in json.loads(cluster).values() for address in job]
    assert len(set(addresses)) == len(tasks)
    assert all(address.startswith("127.0.0.1:") for address in addresses)


def test_the_time_of_the_command_is_handed_down(run):
    before = time.time()
    status, out, _ = run("print(os.environ['TF2DIST_LAUNCHED_AT'])")
    assert status == 0
    assert before - 0.1 < float(out.split()[-1]) < time.time()
    assert run("print(os.environ['TF2DIST_LAUNCHED_AT'])", env={"TF2DIST_LAUNCHED_AT": "5.0"})[1].endswith(" 5.0\n")


@pytest.mark.slow
def test_the_tasks_of_a_job_and_no_others_have_its_name(run):
    code = """
    print(os.environ["TF2DIST_JOB_ID"])
    if me == "worker 1" and not (here / "failed").exists():
        (here / "failed").touch()
        sys.exit(1)
    if me == "worker 1":
        (here / "back").touch()
    wait_for("back")
    """
    jobs = []
    for again in (1, 0):  # of the first job a task is started again
        status, out, err = run(code, "--ps=1", "--workers=2", env={"TF2DIST_JOB_ID": "outer"})
        assert status == 0, err
        assert out.count("\n") == 4 + again
        jobs += {line.split()[-1] for line in out.splitlines()}
    assert len(jobs) == len({*jobs, "outer"}) - 1 == 2


def test_tensorflow_is_told_to_be_quiet_unless_the_user_wants_it_otherwise(run):
    code = "print(os.environ['TF_CPP_MIN_LOG_LEVEL'], os.environ['GRPC_FAIL_FAST'], os.environ['GRPC_VERBOSITY'])"
    assert run(code)[1] == "[worker 0] 3 use_caller ERROR\n"
    assert run(code, env={"TF_CPP_MIN_LOG_LEVEL": "0"})[1] == "[worker 0] 0 use_caller ERROR\n"


def test_the_programs_own_arguments_are_left_alone(run):
    arguments = ("--workers=7", "--", "-h", "", "two words", "ü")
    _, out, _ = run("print(sys.argv[1:])", arguments=arguments)
    assert out == f"[worker 0] {list(arguments)}\n"


@every_third(
    ("arguments", "said"),
    [
        (["nowhere"], "there is no launcher 'nowhere'"),
        (["local"], "no program"),
        (["local", "--"], "no program"),
        (["local", "x.py"], "unrecognized arguments: x.py; the program comes after --, as in: "),
        (["local", "--nonsense", "--", "x.py"], "unrecognized arguments: --nonsense"),
        (["local", "json.tool"], "json.tool"),
        (["local", "--workers=two", "--", "json.tool"], "'two' is neither a number of workers nor MIN:MAX"),
        (["local", "--workers=0", "--", "json.tool"], "workers is 0; it must be 1 or more"),
        (["local", "--ps=-1", "--", "json.tool"], "parameter servers is -1; it must be 0 or more"),
        (["local", "--timeout=-1", "--", "json.tool"], "timeout is -1 s"),
        (["local", "--timeout=nan", "--", "json.tool"], "timeout is nan s"),
        (["local", "--wrkers=1", "--", "json.tool"], "--wrkers"),
        (["local", "--", "no_such_module"], "no module 'no_such_module'"),
        (["local", "--", "json.no_such_module"], "no module 'json.no_such_module'"),
        (["local", "--", "json"], "package without a __main__"),
        (["local", "--", "no_such_script.py"], "no script 'no_such_script.py'"),
        (["local", "--", "./no_such_script"], "no script './no_such_script'"),
        (["local", "--", ""], "no module ''"),
        (["local", "--", "__main__"], "no module '__main__'"),
    ],
)
def test_a_wrong_command_is_answered_in_one_line(arguments, said):
    status, out, err = launch(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("launch: ")
    assert said in err
    assert err.count("\n") == 1


def test_without_a_launcher_there_is_a_short_usage():
    status, out, err = launch()
    assert (status, out) == (2, "")
    assert err.startswith("usage: python -m launch NAME")
    assert "local" in err


def test_help():
    assert launch("--help")[0] == 0
    status, out, err = launch("local", "--help")
    assert (status, err) == (0, "")
    for option in ("--ps", "--workers", "--chief", "--grace", "--timeout", "MODULE_OR_SCRIPT"):
        assert option in out


def test_a_script_without_a_suffix_is_a_script(tmp_path):
    (tmp_path / "train").write_text("print('trained')")
    assert launch("local", "--preload=", "--", "train", cwd=tmp_path) == (0, "[worker 0] trained\n", "")


def test_wrong_numbers_are_refused_in_python_too():
    with pytest.raises(UsageError, match="workers is 0"):
        local.run(["json.tool"], workers=0)


def test_the_launcher_itself_never_imports_tensorflow():
    code = """
import sys
import launch, launch.__main__, tf2dist.launch.command_line as command, tf2dist.launch.backends.local
import tf2dist.launch.fork_server
assert command.main(["local", "--preload=", "--", "this"]) == 0
print([name for name in ("tensorflow", "keras", "numpy", "absl") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_job_of_a_shell_that_ignores_the_ends_of_its_children(run):
    """Which is inherited: the kernel would reap them, and nobody would know how they have ended."""
    ignores = lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # noqa: E731
    code = "print(subprocess.run(['sh', '-c', 'exit 3']).returncode); sys.exit(7)"
    status, out, err = run(code, preexec_fn=ignores)
    assert (status, out) == (7, "[worker 0] 3\n"), err


@pytest.mark.slow
def test_more_tasks_than_the_usual_number_of_open_files_allows(run):
    few = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (32, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))  # noqa: E731
    status, out, err = run(
        "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])", "--workers=20", preexec_fn=few
    )
    assert (status, err) == (0, "")
    assert sorted(out.splitlines()) == sorted(f"[worker {number}] 32" for number in range(20))


def test_a_directory_that_is_gone(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    leave = (
        "import os, sys; os.rmdir(os.getcwd()); from tf2dist.launch import command_line; sys.exit(command_line.run())"
    )
    done = subprocess.run(
        [sys.executable, "-c", leave, "local", "--", "json.tool"],
        cwd=gone, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "launch: the working directory is gone; go to one that is there\n"


@pytest.mark.parametrize("backend", ["local", "slurm"])
def test_a_directory_whose_name_is_no_text(tmp_path, backend):
    odd = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(odd)
    done = subprocess.run(
        [sys.executable, "-m", "launch", backend, "--dry_run", "--", "json.tool"],
        cwd=odd, env={**os.environ, "PYTHONIOENCODING": "utf-8"}, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"cd '" + odd + b"' " in done.stdout
