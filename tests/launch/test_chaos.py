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

from tests.hostile import examples, parsed, texts
from tf2dist.errors import UsageError
from tf2dist.launch.fault_injector import FaultInjector
from tf2dist.launch.fault_plan import Fault, FaultPlan, Kind, parse
from tf2dist.launch.recovery import Recovery
from tf2dist.system.step_file import StepFile, Steps

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
        (
            "kill:worker-2@10s",
            "the job has no task 'worker-2'; it has chief-0, worker-0, worker-1, ps-0; or say a job, as worker, or any",
        ),
        ("kill:worker-1@10s+5s", "kill takes no time"),
        ("kill:worker-1@soon", "'soon' is no moment"),
        ("kill:worker-1@10", "'10' is no moment"),
        ("kill:worker-1@step1.5", "is no moment"),
        ("kill:worker-1@9..5s", "a range goes from the smaller"),
        ("kill:worker-1@step9..5", "a range goes from the smaller"),
        ("kill:worker-1@every0s", "every 0.1 s at most"),
        ("stop:worker-1@every5s", "it lasts 10 s, and would come again before that; add +2.5s"),
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
    for fault in parsed(UsageError, parse, text, NAMES) or ():
        assert fault.task in {*NAMES, "chief", "worker", "ps", "any"}


def seen(*events):
    """A recovery that has seen events: (seconds, call, steps), (seconds, fault), or the status of an attempt's end."""
    recovery = Recovery()
    recovery.begin_attempt()
    earlier = {}
    for event in events:
        if isinstance(event, int):
            earlier = {}
            recovery.end_attempt(event)
            recovery.begin_attempt()
        elif isinstance(event[1], str):
            recovery.fault(event[0], Fault(Kind(event[1]), "worker 1"), "worker 1")
        else:
            earlier[event[1]] = event[2]
            before = sum(steps for call, steps in earlier.items() if call < event[1])
            recovery.observe(event[0], Steps(before, *event[1:]))
    return recovery


def outcomes(recovery):
    return [(effect.step, effect.recovery_seconds, effect.lost_steps) for effect in recovery.effects]


def test_steps_that_go_on():
    """The first ones may be of an execution that was nearly over when the fault came."""
    recovery = seen((1.0, 1, 10), (2.0, 1, 20), (2.5, "stop"), (2.6, 1, 24), (4.0, 1, 28), (5.0, 1, 32))
    assert outcomes(recovery) == [(20, 1.5, 0)]
    assert recovery.reached == 32


def test_an_execution_that_a_fault_has_held_up():
    """It was under way, and takes longer than the one before."""
    recovery = seen((1.0, 1, 10), (2.0, 1, 20), (2.5, "stop"), (5.6, 1, 24), (6.0, 1, 28))
    assert outcomes(recovery) == [(20, pytest.approx(3.1), 0)]


def test_a_job_that_is_ended_before_it_has_recovered():
    recovery = seen((1.0, 1, 10), (2.0, 1, 20), (2.5, "stop"), (2.9, 1, 24), 130)
    assert outcomes(recovery) == [(20, None, 0)]
    assert recovery.lines(130, 4.0)[0] == "stop worker 1 at 2.5 s and step 20: the job ended before it had recovered"


def test_a_fault_in_the_last_execution():
    assert outcomes(seen((1.0, 1, 10), (2.5, "stop"), (3.0, 1, 14), 0)) == [(10, 0.5, 0)]
    assert outcomes(seen((1.0, 1, 10), (2.5, "stop"), 0)) == [(10, None, 0)]


def test_steps_that_are_made_again():
    """Those of the execution under way are lost as well; none is before the next attempt has made more."""
    recovery = seen((1.0, 1, 20), (2.0, "kill"), (2.1, 1, 24), 137, (6.0, 1, 15), (7.0, 1, 24), (8.0, 1, 28))
    assert outcomes(recovery) == [(20, 6.0, 9)]


def test_a_job_that_has_saved():
    recovery = seen((1.0, 1, 20), (2.0, "term"), (2.1, 1, 24), (2.2, 1, 28), 75, (6.0, 1, 28), (7.0, 1, 32))
    assert outcomes(recovery) == [(20, 5.0, 0)]


def test_the_last_fault_ends_an_attempt():
    """The first one the job had come through; and it fails once without a fault."""
    events = (
        (0.5, 1, 16),
        (1.0, 1, 20),
        (2.0, "stop"),
        (2.1, 1, 24),
        (3.0, 1, 28),
        (4.0, "kill"),
        137,
        (6.0, 1, 16),
        (7.0, 1, 32),
    )
    assert outcomes(seen(*events)) == [(20, 1.0, 0), (28, 3.0, 12)]
    assert outcomes(seen(*events, 1, (9.0, 1, 0), (10.0, 1, 40))) == [(20, 1.0, 0), (28, 3.0, 12)]


def test_an_attempt_that_dies_before_its_first_step():
    recovery = seen((1.0, 1, 20), (2.0, "kill"), 137, (3.0, "kill"), 137, (6.0, 1, 16), (7.0, 1, 24))
    assert outcomes(recovery) == [(20, 5.0, 0), (20, 4.0, 4)]


def test_several_calls_that_are_made_again():
    """Nothing of the first, which has a checkpoint; two steps of the second."""
    recovery = seen(
        (1.0, 1, 20), (2.0, 2, 0), (3.0, 2, 7), (4.0, "kill"), 137, (5.0, 1, 20), (6.0, 2, 5), (7.0, 2, 8)
    )  # fmt: skip
    assert outcomes(recovery) == [(27, 3.0, 2)]
    assert recovery.reached == 28


def test_calls_that_are_over_between_two_looks():
    recovery = Recovery()
    recovery.begin_attempt()
    recovery.observe(1.0, Steps(0, 1, 10))
    recovery.observe(1.1, Steps(60, 4, 7))
    assert recovery.reached == 67
    recovery.fault(1.2, Fault(Kind.KILL, "worker 1"), "worker 1")
    recovery.end_attempt(137)
    recovery.begin_attempt()
    recovery.observe(2.0, Steps(60, 4, 4))
    recovery.observe(3.0, Steps(60, 4, 8))
    assert outcomes(recovery) == [(67, pytest.approx(1.8), 3)]


def test_several_calls_without_checkpoints():
    recovery = seen((1.0, 1, 20), (3.0, 2, 7), (4.0, "kill"), 137, (5.0, 1, 0), (6.0, 1, 18), (7.0, 2, 0), (8.0, 2, 9))
    assert outcomes(recovery) == [(27, None, 27)]  # the first call has stopped earlier now, with 18
    assert recovery.reached == 27


def test_a_job_that_makes_no_step_any_more():
    recovery = seen((1.0, 1, 20), (2.0, "kill"), 137, (6.0, 1, 15), 1)
    assert outcomes(recovery) == [(20, None, 5)]
    assert recovery.lines(1, 7.0)[0] == "kill worker 1 at 2.0 s and step 20: no step after it, 5 steps lost"


def test_goodput():
    """Ten steps a second for four seconds, and then half as many."""
    recovery = seen((0.5, 1, 0), (1.0, 1, 10), (3.0, 1, 30), (5.0, 1, 50), (5.0, "slow"), (9.0, 1, 70), 0)
    assert recovery.quiet_rate == 10.0
    assert recovery.goodput(0, 12.0) == pytest.approx(60 / 80)
    report = recovery.report(0, 12.0)
    assert (report["steps"], report["goodput"], report["quiet_steps_per_second"]) == (70, 0.75, 10.0)
    assert recovery.lines(0, 12.0)[-1].endswith("goodput 0.75 (of 10.0 steps/s before the first fault)")


def test_goodput_of_a_job_that_has_failed():
    """Its time counts to its end; and what it had made it has not kept if it began anew."""
    events = (0.5, 1, 0), (1.0, 1, 10), (3.0, 1, 30), (5.0, 1, 50), (5.0, "kill")
    assert seen(*events, 137).goodput(137, 41.0) == pytest.approx(40 / 400)
    assert seen(*events, 137, (20.0, 1, 0), 1).goodput(1, 41.0) == 0.0


def test_goodput_of_a_job_that_goes_on_from_an_earlier_one():
    """The steps of that one, and the seconds until the first step is compiled, do not count."""
    recovery = seen(
        (1.0, 1, 5000), (9.0, 1, 5010), (11.0, 1, 5030), (13.0, 1, 5050), (13.0, "stop"), (15.0, 1, 5070), 0
    )
    assert recovery.quiet_rate == 10.0
    assert recovery.goodput(0, 15.0) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "early", [((1.0, 1, 10), (1.5, 1, 20), (1.7, 1, 30)), ((1.0, 1, 10), (5.0, 1, 50))], ids=["seconds", "executions"]
)
def test_goodput_is_unknown_without_quiet_steps(early):
    recovery = seen((0.0, 1, 0), *early, (5.0, "kill"), (9.0, 1, 70), 0)
    assert recovery.goodput(0, 10.0) is None
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
    file.clear()
    assert file.read() is None
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
    made = FaultInjector(FaultPlan(parse(text, NAMES), seed), steps, clock)
    made.begin_attempt(lambda line: None)
    for name, process in sleepers.items():
        made.started(name, process.pid)
    return made


def state(process):
    return pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def until(process, states):
    """Waits until a process is in one of these states: T is stopped, S sleeps, R runs."""
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
    steps.write(Steps(0, 1, 499))
    chaos.tick()
    assert chaos.recovery.effects == []
    steps.write(Steps(200, 3, 312))
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
    until(sleepers["worker 0"], "SR")


def test_a_slow_process_runs_a_tenth_of_the_time(steps, sleepers):
    clock = Clock()
    chaos = injector("slow:worker-0@0s+10s", steps, sleepers, clock)
    stopped = 0
    for tick in range(0, 500, 5):  # ten seconds, with a look at each tenth of one
        clock.now = tick * 0.02
        chaos.tick()
        until(sleepers["worker 0"], "T" if tick % 25 else "SR")
        stopped += tick % 25 > 0
    assert stopped == 80  # of 100 looks; of the time in between it is 0.9
    clock.now = 10.0
    chaos.tick()
    until(sleepers["worker 0"], "SR")


def test_what_is_stopped_goes_on_when_the_job_is_ended(steps, sleepers):
    clock = Clock()
    chaos = injector("stop:worker@0s+500s,kill:any@1s", steps, sleepers, clock)
    chaos.tick()
    [held] = [name for name in ("worker 0", "worker 1") if name in chaos._held]
    until(sleepers[held], "T")
    chaos.release()
    until(sleepers[held], "SR")
    clock.now = 2.0
    chaos.tick()  # of this attempt nobody is left
    assert len(chaos.recovery.effects) == 1


def test_a_fault_waits_for_one_that_another_holds(steps, sleepers):
    clock = Clock()
    chaos = injector("stop:worker-0@0s+5s,kill:worker-0@1s", steps, sleepers, clock)
    for clock.now in (0.0, 1.0, 4.9):
        chaos.tick()
    assert len(chaos.recovery.effects) == 1
    clock.now = 5.1
    chaos.tick()
    assert sleepers["worker 0"].wait(30) == -signal.SIGKILL


def test_a_task_is_asked_to_stop_once(steps, sleepers):
    clock = Clock()
    chaos = injector("term:worker-1@0s,term:worker-1@1s", steps, sleepers, clock)
    chaos.tick()
    assert sleepers["worker 1"].wait(30) == -signal.SIGTERM
    clock.now = 2.0
    chaos.tick()
    assert len(chaos.recovery.effects) == 1


def test_what_could_not_come_in_time_is_left_out(steps, sleepers):
    clock = Clock()
    chaos = injector("stop:worker-1@every5s+1s", steps, sleepers, clock)
    chaos.ended("worker 1")
    for clock.now in (5.0, 31.0):
        chaos.tick()
    chaos.started("worker 1", sleepers["worker 1"].pid)
    for clock.now in (31.5, 32.0, 32.6, 33.0, 34.9):
        chaos.tick()
    assert [effect.seconds for effect in chaos.recovery.effects] == [31.5]
    clock.now = 35.1
    chaos.tick()
    assert len(chaos.recovery.effects) == 2
    chaos.release()


def test_moments_are_drawn_from_the_whole_range(steps):
    """A fault for the first seconds is somewhere in them, one for steps at a step, and in the time after it."""
    found = [
        FaultInjector(FaultPlan(parse("kill:any@10..60s,kill:any@step100..900", NAMES), seed), steps)._pending
        for seed in range(50)
    ]
    seconds = [moments[0].at for moments in found]
    assert 10 < min(seconds) < 20 < 50 < max(seconds) < 60
    numbers = [moments[1].step for moments in found]
    assert 100 <= min(numbers) < 200 < 800 < max(numbers) <= 900
    assert len({moments[1].delay for moments in found}) == 50


def test_a_step_of_the_attempt_before_is_no_step_of_this_one(steps, sleepers):
    clock = Clock()
    chaos = injector("kill:worker-1@step10", steps, sleepers, clock)
    chaos.ended("worker 1")
    steps.write(Steps(0, 1, 12))
    chaos.tick()
    chaos.end_attempt(137)
    chaos.begin_attempt(lambda line: None)
    chaos.started("worker 1", sleepers["worker 1"].pid)
    clock.now = 1.0
    assert steps.read() is None
    chaos.tick()


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


def test_a_task_that_has_ended_is_no_target(run):
    status, _, error = run("time.sleep(3 if me == 'worker 0' else 0)", "--workers=2", "--chaos=kill:worker-1@1.5s")
    assert status == 0
    assert "chaos: kill worker 1" not in error
    assert "launch: chaos: kill:worker-1@1.5s never came\n" in error


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
}


@pytest.mark.slow
@pytest.mark.parametrize("case", JOBS)
def test_a_training_comes_through(tmp_path, case):
    """Every step is counted, and where the job is started again, those that are made again."""
    options, fault, restarts = JOBS[case]
    report, of_job = tmp_path / "chaos.json", tmp_path / "job.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "launch", "local", *options, f"--chaos={fault}", f"--chaos_report={report}", "--"),
            *("trainers.mnist", "--dataset=digits", f"--strategy={'ps' if 'ps' in case else case}", "--epochs=50"),
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
