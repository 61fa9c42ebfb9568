"""`python -m benchmarks scale`: workers that wait for their input, and one that is lost."""

import json

import pytest

from benchmarks import scale
from tests.benchmarks.commands import run
from tests.conftest import every_third, sampled


@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", sampled(("--kill", "--stopped"), (), ("--kill",)))
def test_two_workers(tmp_path, how):
    """They make twice the batches of one; all updates are there once, and the one that is left goes on."""
    report = tmp_path / "report.json"
    done = run("scale", "--workers=1,2", "--seconds=2", how, f"--report={report}")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 4
    (one,), (two,) = json.loads(report.read_text())["by_workers"].values()
    assert 5 < one["rate"] < 11  # ten batches a second, less on a busy machine
    assert two["rate"] > 1.2 * one["rate"]
    assert one["others"] is None
    assert two["others"] > 0.4
    assert two["cores"] < 1
    if how == "--stopped":
        assert one["lost"] == two["lost"] == 0.0
    for found in (one, two):
        assert found["asked"] == found["applied"]


FOUND = {
    "asked": 40,
    "counted": 40,
    "applied": 40.0,
    "before": {"rates": [8.0, 10.0, 9.0], "cores": 0.25},
    "after": {"rates": [9.0, 0.0, 1.0], "cores": 0.5},
}


def test_the_others_are_all_but_the_last():
    figures = {"rate": 27.0, "cores": 0.25, "asked": 40, "applied": 40.0, "others": 0.5, "lost": 1.0}
    assert scale.summary(FOUND) == figures
    assert scale.summary({name: value for name, value in FOUND.items() if name != "after"})["others"] is None


@pytest.mark.parametrize("wrong", [{"counted": 39}, {"applied": 41.0}])
def test_counts_that_are_not_exact_end_it(wrong):
    with pytest.raises(SystemExit, match="asked for 40 updates, counted"):
        scale.summary(FOUND | wrong)


WRONG = {
    **dict.fromkeys(
        [
            "--workers=",
            "--workers=1,x",
            "--workers=0",
            "--seconds=0",
            "--servers=0",
            "--batch_ms=0",
            "--batch_ms=nan",
            "--gbit=0",
            "--gbit=inf",
            "--latency_us=-1",
            "--megabytes=nan",
        ],
        "must be",
    ),
    "--report=/nowhere/it": "cannot be written",
}


@every_third("argument", WRONG)
def test_a_wrong_command_gets_one_line(argument):
    done = run("scale", argument)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert f"{argument} {WRONG[argument]}" in done.stderr
