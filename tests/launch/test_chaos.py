"""`python -m launch local --chaos`: jobs that meet faults, and what is said of how they came through them."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import sampled


def test_a_wrong_command():
    done = subprocess.run(
        [sys.executable, "-m", "launch", "local", "--chaos=kill:worker-7@1s", "--", "json.tool"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "the job has no task 'worker-7'" in done.stderr


def test_options_without_chaos():
    done = subprocess.run(
        [sys.executable, "-m", "launch", "local", "--chaos_report=x", "--", "json.tool"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "launch: local: --chaos_report is for --chaos, which is not given\n")


def test_a_job_that_is_killed_says_so(run, tmp_path):
    """With a program that makes no steps."""
    report = tmp_path / "report.json"
    status, _, error = run("time.sleep(1000)", "--workers=2", "--chaos=kill:worker-1@0.5s", f"--chaos_report={report}")
    assert status == 137
    assert "launch: chaos: kill worker 1, at " in error
    assert "worker 1" in error
    assert error.splitlines()[-1].startswith("launch: chaos: the job ended with status 137 after 0 steps")
    found = json.loads(report.read_text())
    assert (found["status"], found["steps"], len(found["faults"])) == (137, 0, 1)
    assert found["faults"][0]["recovery_seconds"] is None
    assert found["faults"][0]["fault"] == "kill:worker-1@0.5s"
    assert found["never_came"] == []


@pytest.mark.slow
def test_a_task_that_has_ended_is_no_target(run):
    status, _, error = run("time.sleep(3 if me == 'worker 0' else 0)", "--workers=2", "--chaos=kill:worker-1@1.5s")
    assert status == 0
    assert "chaos: kill worker 1" not in error
    assert "launch: chaos: kill:worker-1@1.5s never came\n" in error


@pytest.mark.slow
def test_a_job_that_ends_while_a_worker_is_stopped(run):
    """It is let go, so that it can end as it is asked to: nothing would kill it before the test's time is over."""
    code = """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ends as it was asked to"))
    if me == "worker 0":
        time.sleep(2)
        sys.exit(3)
    time.sleep(1000)
    """
    status, _, error = run(code, "--workers=2", "--chaos=stop:worker-1@0.5s+500s", "--grace=200")
    assert status == 3
    assert "no step after it" in error
    assert "[worker 1] ends as it was asked to" in error


@pytest.mark.slow
def test_a_server_that_is_stopped_when_the_job_is_done(run):
    """It is let go, so that the end of the others does not wait for it."""
    code = """
    if me == "chief 0":
        time.sleep(2)
    else:
        before = time.monotonic()
        while not (here / "done").exists():
            time.sleep(0.1)
    (here / "done").touch()
    """
    status, _, error = run(code, "--ps=1", "--workers=1", "--chaos=stop:ps-0@0.5s+500s")
    assert status == 0, error
    assert "did not end within" not in error


STEPS = """
from tf2dist.system.step_file import StepFile, Steps
file = StepFile(os.environ["TF2DIST_STEP_FILE"])
for step in range(10_000):
    file.write(Steps(0, 1, step))
    time.sleep(0.1)
"""


@pytest.mark.slow
def test_a_job_that_a_time_limit_ends_had_recovered(run, tmp_path):
    """No fault has ended it."""
    report = tmp_path / "report.json"
    code = f"if me == 'worker 1': time.sleep(500)\n{STEPS}"
    status, _, error = run(
        code, "--workers=2", "--chaos=stop:worker-1@step3+0.2s", "--timeout=5", f"--chaos_report={report}"
    )
    assert status == 1
    assert "had not ended after 5 s" in error
    [effect] = json.loads(report.read_text())["faults"]
    assert 0 < effect["recovery_seconds"] < 5


@pytest.mark.slow
def test_output_that_nobody_reads_holds_up_no_fault(start):
    """Of a launcher whose pipe is full; it ends all the same when it is asked to."""
    job = start(
        "while True: print('x' * 10000, file=sys.stderr)", "--workers=1", "--chaos=stop:worker-0@1s+500s", "--grace=1"
    )
    time.sleep(3)
    job.process.terminate()
    time.sleep(1)
    job.process.terminate()  # the second time discards what nobody reads
    assert job.process.wait(60) == 128 + signal.SIGTERM
    assert job.all_gone()


def test_a_report_that_cannot_be_written(run):
    status, _, error = run("pass", "--chaos=none", "--chaos_report=/nowhere/report.json")
    assert (status, error.count("\n")) == (2, 1)
    assert "--chaos_report=/nowhere/report.json cannot be written: no such file or directory (/nowhere)" in error


FIT = """
import keras, numpy as np, tf2dist
x = np.ones((80, 2), "float32")
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
tf2dist.fit(model, x, x[:, :1], batch_size=8, epochs=2, verbose=0)
tf2dist.fit(model, x, x[:, :1], batch_size=8, epochs=5, initial_epoch=2, verbose=0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--isolate",)], ids=["plain", "isolated"])
def test_steps_of_a_program_that_joins_nothing(run, tmp_path, options):
    """Of both calls, with what a user's launcher imports before."""
    report = tmp_path / "report.json"
    status, _, error = run(FIT, "--workers=1", "--chaos=none", f"--chaos_report={report}", *options, preload=None)
    assert status == 0, error
    assert json.loads(report.read_text())["steps"] == 50


JOBS = {
    "ps": (["--ps=1", "--workers=2"], "kill:worker-1@step100..400", 0),
    "ps-server": (["--ps=1", "--workers=2", "--max_restarts=2"], "kill:ps-0@step200..400", 1),
    "multiworker": (["--workers=2", "--max_restarts=2"], "kill:worker-1@step200..400", 1),
    # Longer than what gRPC's servers wait for, and shorter than what counts as lost.
    "ps-cut": (["--ps=1", "--workers=2", "--max_restarts=2"], "cut:ps-0@step100..400+22s", 0),
    "multiworker-cut": (["--workers=2", "--max_restarts=2"], "cut:worker-1@step100..400+22s", 0),
}


@pytest.mark.parametrize("case", sampled(JOBS, (), ("ps", "multiworker", "ps-cut")))
def test_a_training_comes_through(tmp_path, case, request):
    """Every step is counted, and where the job is started again, those that are made again."""
    options, fault, restarts = JOBS[case]
    if fault.startswith("cut"):
        request.getfixturevalue("hosts")
    report, of_job = tmp_path / "chaos.json", tmp_path / "job.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "launch", "local", *options, f"--chaos={fault}", f"--chaos_report={report}", "--"),
            *("trainers.mnist", "--dataset=digits", f"--strategy={case.partition('-')[0]}", "--epochs=50"),
            f"--report={of_job}",
        ],
        capture_output=True, text=True, timeout=280, check=False, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text())
    [effect] = found["faults"]
    assert found["steps"] == json.loads(of_job.read_text())["steps"] == 600
    assert 100 <= effect["step"] <= 600
    assert effect["recovery_seconds"] > 0
    assert done.stderr.count("the job is started again") == restarts
    if restarts:  # without a checkpoint all is made again, what was under way when the fault came as well
        assert effect["step"] <= effect["lost_steps"] <= effect["step"] + 100
    else:
        assert effect["lost_steps"] == 0
