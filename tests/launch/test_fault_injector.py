"""Faults are done to processes when their time has come, and to which."""

import pathlib
import signal
import subprocess
import sys
import time

import pytest

from tf2dist.launch.fault_injector import FaultInjector
from tf2dist.launch.fault_plan import FaultPlan, parse
from tf2dist.system.step_file import StepFile, Steps

NAMES = ("chief 0", "worker 0", "worker 1", "ps 0")


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


def injector(text, steps, sleepers, clock, seed=0, cut_off=lambda name, cut: None):
    made = FaultInjector(FaultPlan(parse(text, NAMES), seed), steps, clock)
    made.begin_attempt(lambda line: None, cut_off)
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


def test_a_task_is_cut_off_for_its_time(steps, sleepers):
    """And no longer than the job is under way."""
    clock, cuts = Clock(), []
    chaos = injector(
        "cut:worker-0@1s+5s,cut:ps-0@8s+500s",
        steps,
        sleepers,
        clock,
        cut_off=lambda name, cut: cuts.append((name, cut)),
    )
    seen = []
    for clock.now in (0.9, 1.0, 3.0, 5.9, 6.0, 8.0):
        chaos.tick()
        seen.append(len(cuts))
    assert seen == [0, 1, 1, 1, 2, 3]
    chaos.release()
    assert cuts == [("worker 0", True), ("worker 0", False), ("ps 0", True), ("ps 0", False)]
    assert all(state(process) in "SR" for process in sleepers.values())


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
    chaos.begin_attempt(lambda line: None, lambda name, cut: None)
    chaos.started("worker 1", sleepers["worker 1"].pid)
    clock.now = 1.0
    assert steps.read() is None
    chaos.tick()
    assert chaos.recovery.effects == []
    steps.write(Steps(0, 1, 11))
    chaos.tick()
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
