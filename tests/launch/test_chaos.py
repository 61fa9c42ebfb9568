"""`--chaos`: faults that a job is to meet, when they come, and what is said of how it came through them."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given

from tests.hostile import bounded, examples, texts
from tf2dist.errors import UsageError
from tf2dist.launch.fault_injector import FaultInjector
from tf2dist.launch.fault_plan import Fault, FaultPlan, Kind, parse
from tf2dist.launch.recovery import Recovery
from tf2dist.system.step_file import StepFile

NAMES = ("chief 0", "worker 0", "worker 1", "ps 0")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kill:worker-1@10s", Fault(Kind.KILL, "worker 1", seconds=(10.0, 10.0))),
        ("term:any@0.5..60s", Fault(Kind.TERM, "any", seconds=(0.5, 60.0))),
        ("stop:ps-0@step500+20s", Fault(Kind.STOP, "ps 0", steps=(500, 500), duration=20.0)),
        ("slow:worker@step10..90", Fault(Kind.SLOW, "worker", steps=(10, 90))),
        ("stop:any@every5s+1.5s", Fault(Kind.STOP, "any", seconds=(5.0, 5.0), every=5.0, duration=1.5)),
    ],
)
def test_a_fault(text, fault):
    assert parse(text, NAMES) == (fault,)
    assert parse(f"{text}, {text}", NAMES) == (fault, fault)


def test_no_fault():
    assert parse("none", NAMES) == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no fault; write KIND:TASK@WHEN"),
        ("kill", "is no fault"),
        ("kill:worker-1", "is no fault"),
        ("burn:worker-1@10s", "'burn' is none of kill, term, stop, slow"),
        ("kill:worker-2@10s", "the job has no task 'worker-2'; it has chief-0, worker-0, worker-1, ps-0; or `any`"),
        ("kill:worker-1@10s+5s", "kill takes no time"),
        ("kill:worker-1@soon", "'soon' is no moment"),
        ("kill:worker-1@10", "'10' is no moment"),
        ("kill:worker-1@step1.5", "is no moment"),
        ("kill:worker-1@9..5s", "a range goes from the smaller"),
        ("kill:worker-1@step9..5", "a range goes from the smaller"),
        ("kill:worker-1@every0s", "every 0.1 s at most"),
        ("kill:worker-1@10s,", "'' is no fault"),
        ("kill:worker-1@10s,none", "'none' is no fault"),
        ("kill:worker-1@\u0661s", "is no moment"),
    ],
)
def test_what_is_no_fault(text, said):
    with pytest.raises(UsageError) as error:
        parse(text, NAMES)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@examples()
@given(texts("kill:worker-1@10s", "stop:ps-0@step500+20s,slow:any@every30s", "term:any@1..2s"))
def test_hostile_faults(text):
    with bounded():
        try:
            faults = parse(text, NAMES)
        except UsageError as error:
            assert "\n" not in str(error)
        else:
            assert all(fault.task in {*NAMES, "chief", "worker", "ps", "any"} for fault in faults)


def seen(*steps):
    """A recovery that has seen (seconds, call, steps), and faults where those are a name."""
    recovery = Recovery()
    for seconds, *found in steps:
        if isinstance(found[0], str):
            recovery.fault(seconds, found[0], "worker 1")
        else:
            recovery.observe(seconds, tuple(found))
    return recovery


def test_steps_that_go_on():
    recovery = seen((1.0, 1, 10), (2.0, 1, 20), (2.5, "stop"), (4.0, 1, 21), (5.0, 1, 30))
    [effect] = recovery.effects
    assert (effect.step, effect.recovery_seconds, effect.lost_steps) == (20, 1.5, 0)
    assert recovery.steps == 30


def test_steps_that_are_lost():
    recovery = seen((1.0, 1, 20), (2.0, "kill"), (6.0, 1, 15), (7.0, 1, 20), (8.0, 1, 21))
    [effect] = recovery.effects
    assert (effect.step, effect.recovery_seconds, effect.lost_steps) == (20, 6.0, 5)


def test_steps_over_several_calls():
    """The second call began after 20 steps; a job that is started again makes the first one's again."""
    recovery = seen((1.0, 1, 20), (2.0, 2, 0), (3.0, 2, 7), (4.0, "kill"), (5.0, 1, 12), (6.0, 2, 0), (7.0, 2, 8))
    [effect] = recovery.effects
    assert (effect.step, effect.recovery_seconds, effect.lost_steps) == (27, 3.0, 15)
    assert recovery.steps == 28


def test_a_job_that_makes_no_step_any_more():
    recovery = seen((1.0, 1, 20), (2.0, "kill"), (6.0, 1, 15))
    [effect] = recovery.effects
    assert (effect.recovery_seconds, effect.lost_steps) == (None, 5)
    assert recovery.lines(1, 7.0)[0] == "kill worker 1 at 2.0 s and step 20: no step after it"


def test_goodput():
    """Ten steps a second for four seconds, and then half as many."""
    recovery = seen((1.0, 1, 10), (3.0, 1, 30), (5.0, 1, 50), (5.0, "slow"), (9.0, 1, 70))
    assert recovery.quiet_rate == 10.0
    assert recovery.goodput == pytest.approx(60 / 80)
    report = recovery.report(0, 10.0)
    assert (report["steps"], report["goodput"], report["quiet_steps_per_second"]) == (70, 0.75, 10.0)
    assert recovery.lines(0, 10.0)[-1].endswith("goodput 0.75 (of 10.0 steps/s before the first fault)")


def test_goodput_is_unknown_without_quiet_steps():
    recovery = seen((1.0, 1, 10), (1.5, 1, 20), (2.0, "kill"), (9.0, 1, 70))
    assert recovery.goodput is None
    assert "goodput unknown" in recovery.lines(0, 10.0)[-1]


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def steps(tmp_path):
    (tmp_path / "steps").touch()
    file = StepFile(str(tmp_path / "steps"))
    assert file.read() is None
    yield file
    file.close()


@pytest.fixture
def sleepers():
    """Processes by their names."""
    found = {name: subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]) for name in NAMES}
    yield found
    for process in found.values():
        process.kill()
        process.wait()


def injector(text, steps, sleepers, clock, seed=0):
    made = FaultInjector(FaultPlan(parse(text, NAMES), seed), steps, lambda line: None, clock)
    for name, process in sleepers.items():
        made.started(name, process.pid)
    return made


def state(process):
    return pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def until(process, *states):
    deadline = time.monotonic() + 30
    while state(process) not in states:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_kill_at_its_time_and_not_before(steps, sleepers):
    clock = Clock()
    chaos = injector("kill:worker-1@10s", steps, sleepers, clock)
    clock.now = 9.9
    chaos.tick()
    assert chaos.recovery.effects == []
    clock.now = 10.0
    chaos.tick()
    assert sleepers["worker 1"].wait(30) == -signal.SIGKILL
    chaos.tick()
    assert len(chaos.recovery.effects) == 1
    assert [p.poll() for p in sleepers.values()].count(None) == 3


def test_a_kill_at_a_step(steps, sleepers):
    chaos = injector("kill:ps@step500", steps, sleepers, Clock())
    steps.write(1, 499)
    chaos.tick()
    assert chaos.recovery.effects == []
    steps.write(1, 512)
    chaos.tick()
    assert sleepers["ps 0"].wait(30) == -signal.SIGKILL
    assert chaos.recovery.effects[0].step == 512


def test_a_fault_waits_for_a_task_that_does_not_run(steps, sleepers):
    clock = Clock()
    chaos = injector("kill:worker-1@10s", steps, sleepers, clock)
    chaos.ended("worker 1")
    clock.now = 11.0
    chaos.tick()
    assert chaos.recovery.effects == []
    chaos.started("worker 1", sleepers["worker 1"].pid)
    chaos.tick()
    assert sleepers["worker 1"].wait(30) == -signal.SIGKILL


def test_a_stop_ends(steps, sleepers):
    clock = Clock()
    chaos = injector("stop:worker-0@1s+5s", steps, sleepers, clock)
    clock.now = 1.0
    chaos.tick()
    until(sleepers["worker 0"], "T")
    clock.now = 5.9
    chaos.tick()
    assert state(sleepers["worker 0"]) == "T"
    clock.now = 6.0
    chaos.tick()
    until(sleepers["worker 0"], "S", "R")


def test_a_slow_process_runs_a_tenth_of_the_time(steps, sleepers):
    clock = Clock()
    chaos = injector("slow:worker-0@0s+100s", steps, sleepers, clock)
    stopped = []
    for tick in range(500):  # ten seconds
        clock.now = tick * 0.02
        chaos.tick()
        stopped.append(chaos._held["worker 0"].stopped)
    assert 0.85 < sum(stopped) / len(stopped) < 0.95
    chaos.release()
    until(sleepers["worker 0"], "S", "R")


def test_what_is_stopped_goes_on_when_the_job_is_ended(steps, sleepers):
    clock = Clock()
    chaos = injector("stop:worker@0s+500s,kill:any@1s", steps, sleepers, clock)
    chaos.tick()
    [held] = [name for name in ("worker 0", "worker 1") if name in chaos._held]
    until(sleepers[held], "T")
    chaos.release()
    until(sleepers[held], "S", "R")
    clock.now = 2.0
    chaos.tick()  # of this attempt nobody is left
    assert len(chaos.recovery.effects) == 1


def test_what_is_drawn_follows_from_the_seed(steps, sleepers):
    def drawn(seed):
        clock = Clock()
        chaos = injector("stop:any@every1s+0.1s", steps, sleepers, clock, seed)
        for tick in range(100):
            clock.now = tick * 0.1
            chaos.tick()
        chaos.release()
        return [effect.task for effect in chaos.recovery.effects]

    assert drawn(0) == drawn(0) != drawn(1)
    assert len(drawn(0)) == 9


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
    status, _, error = run(
        "time.sleep(1000)", "--workers=2", "--chaos=kill:worker-1@0.5s", f"--chaos_report={report}"
    )
    assert status == 137
    assert "launch: chaos: kill worker 1, at " in error
    assert "worker 1" in error
    assert error.splitlines()[-1].startswith("launch: chaos: the job ended with status 137 after 0 steps")
    found = json.loads(report.read_text())
    assert (found["status"], found["steps"], len(found["faults"])) == (137, 0, 1)
    assert found["faults"][0]["recovery_seconds"] is None


def test_a_job_that_ends_while_a_worker_is_stopped(run):
    """It is let go, so that the job's end does not wait for it."""
    status, _, error = run(
        "if me == 'worker 0': time.sleep(2); sys.exit(3)\ntime.sleep(1000)", "--workers=2",
        "--chaos=stop:worker-1@0.5s+500s",
    )  # fmt: skip
    assert status == 3
    assert "no step after it" in error


def test_a_report_that_cannot_be_written(run):
    status, _, error = run("pass", "--chaos=none", "--chaos_report=/nowhere/report.json")
    assert status == 0
    assert "--chaos_report=/nowhere/report.json cannot be written: no such file or directory" in error


JOBS = {
    "ps": (["--ps=1", "--workers=2"], "kill:worker-1@step100..400", 0),
    "ps-server": (["--ps=1", "--workers=2", "--max_restarts=2"], "kill:ps-0@step200..400", 1),
    "multiworker": (["--workers=2", "--max_restarts=2"], "kill:worker-1@step200..400", 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", JOBS)
def test_a_training_comes_through(tmp_path, case):
    """Every step is counted; and no more are made again than were made since the last checkpoint."""
    options, fault, restarts = JOBS[case]
    report, of_job = tmp_path / "chaos.json", tmp_path / "job.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "launch", "local", *options, f"--chaos={fault}", f"--chaos_report={report}", "--"),
            *("trainers.mnist", "--dataset=digits", f"--strategy={'ps' if 'ps' in case else case}", "--epochs=50"),
            *(f"--logdir={tmp_path / 'log'}", f"--report={of_job}"),
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
    if restarts:
        assert effect["recovery_seconds"] > 0.5  # processes were started
    else:
        assert effect["lost_steps"] == 0
