"""How a job has come through faults, by what it says of its steps: recovery, steps lost, goodput."""

import pytest

from tf2dist.launch.fault_plan import Fault, Kind
from tf2dist.launch.recovery_report import Recovery
from tf2dist.system.step_file import Steps


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


def test_steps_that_are_made_again_in_the_same_attempt():
    """It has said more of its steps after the fault, but those were lost, too."""
    lost = (1.0, 1, 20), (2.0, "kill"), (2.1, 1, 24), (2.2, 1, 28), (5.0, 1, 10), (6.0, 1, 27)
    recovery = seen(*lost)
    assert outcomes(recovery) == [(20, None, 18)]
    recovery = seen(*lost, (7.0, 1, 30))
    assert outcomes(recovery) == [(20, 5.0, 18)]
    assert (recovery.reached, recovery.steps) == (30, 30)


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
