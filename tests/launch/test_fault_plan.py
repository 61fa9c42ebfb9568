"""`--chaos`: which faults a text means, and which mean none."""

import pytest
from hypothesis import given

from tests.hostile import examples, parsed, texts
from tf2dist.errors import UsageError
from tf2dist.launch.fault_plan import Fault, FaultPlan, Kind, parse

NAMES = ("chief 0", "worker 0", "worker 1", "ps 0")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kill:worker-1@10s", Fault(Kind.KILL, "worker 1", seconds=(10.0, 10.0))),
        ("term:any@0.5..60s", Fault(Kind.TERM, "any", seconds=(0.5, 60.0))),
        ("stop:ps-0@step500+20s", Fault(Kind.STOP, "ps 0", steps=(500, 500), duration=20.0)),
        ("slow:worker@step10..90", Fault(Kind.SLOW, "worker", steps=(10, 90))),
        ("cut:worker-0@10s", Fault(Kind.CUT, "worker 0", seconds=(10.0, 10.0))),
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
        ("burn:worker-1@10s", "'burn' is none of kill, term, stop, slow, cut"),
        (
            "kill:worker-2@10s",
            "the job has no task 'worker-2'; it has chief-0, worker-0, worker-1, ps-0; or say a job, as worker, or any",
        ),
        ("kill:worker-1@10s+5s", "kill takes no time"),
        ("cut:worker-1@10s+0s", "cut for no time is no fault"),
        ("cut:worker-1@every5s+5s", "it lasts 5 s, and would come again before that; add +2.5s"),
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


@pytest.mark.parametrize(
    ("text", "needed"), [("kill:any@1s,cut:any@2s", True), ("stop:any@1s", False), ("none", False)]
)
def test_when_tasks_must_be_hosts(text, needed):
    assert FaultPlan(parse(text, NAMES)).needs_hosts is needed


@examples()
@given(texts("kill:worker-1@10s", "stop:ps-0@step500+20s,slow:any@every30s", "term:any@1..2s"))
def test_hostile_faults(text):
    for fault in parsed(UsageError, parse, text, NAMES) or ():
        assert fault.task in {*NAMES, "chief", "worker", "ps", "any"}
