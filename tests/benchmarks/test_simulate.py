"""`python -m benchmarks simulate`: beside what can be computed, and what was measured."""

import dataclasses
import json

import pytest

from benchmarks.simulate import COSTS, POINTS, Costs, Point, Setting, compare, fit, read_points, simulate
from tests.benchmarks.commands import run
from tests.conftest import every_third

FREE = Costs(execution=0.0, step=0.0, update=0.0, byte=0.0)


@pytest.mark.parametrize("workers", [1, 7, 50])
def test_workers_that_wait_for_their_input(workers):
    """It is read while a step is made, so that the slower of both counts."""
    setting = Setting(workers, batch_seconds=0.05, compute_seconds=0.03)
    assert simulate(setting, FREE).rate == pytest.approx(workers / 0.05, rel=0.02)
    setting = dataclasses.replace(setting, batch_seconds=0.02)
    assert simulate(setting, FREE).rate == pytest.approx(workers / 0.03, rel=0.02)


@pytest.mark.parametrize("servers", [1, 2, 10])
def test_links_of_servers_that_are_full(servers):
    """As many bytes go through as they carry, in each direction."""
    setting = Setting(40, servers, compute_seconds=0.01, megabytes=20.0, bandwidth=1e8)
    assert simulate(setting, FREE).rate == pytest.approx(servers * 1e8 / 20e6, rel=0.1)


def test_the_link_of_a_worker_that_is_full():
    """However many servers there are: a step fetches all weights and sends all gradients."""
    setting = Setting(1, 50, megabytes=20.0, bandwidth=1e8)
    assert simulate(setting, FREE).rate == pytest.approx(1e8 / 20e6 / 2, rel=0.1)


def test_cores_that_are_busy():
    """Two, in one machine; 500 bytes are sent twice and received twice."""
    costs = Costs(execution=0.0, step=3e-3, update=1e-3, byte=1e-6)
    setting = Setting(12, megabytes=5e-4, cores=2, together=True)
    found = simulate(setting, costs)
    assert found.rate == pytest.approx(2 / (3e-3 + 1e-3 + 4 * 500e-6), rel=0.02)
    assert found.server == pytest.approx(found.rate * (1e-3 + 2 * 500e-6), rel=0.02)


def test_the_coordinator_of_many():
    """With the tuner of training it hands out some fifty executions a second, and two and a half for each of a few."""
    costs = dataclasses.replace(FREE, execution=4e-3)
    few, many = (simulate(Setting(w, compute_seconds=0.01), costs, seconds=20.0) for w in (4, 64))
    assert few.coordinator == pytest.approx(4 / 0.4 * 4e-3, rel=0.1)
    assert many.coordinator == pytest.approx(50 * 4e-3, rel=0.1)


def test_messages_that_take_a_while():
    """Weights are asked for and come, gradients go and are answered."""
    setting = Setting(3, compute_seconds=0.01, latency=0.005)
    assert simulate(setting, FREE).rate == pytest.approx(3 / (0.01 + 4 * 0.005), rel=0.02)


def test_points_that_were_left_out_of_the_fit():
    """A machine that is asked for three times what it can is slower than one that is asked for twice as much."""
    points = read_points(POINTS)
    assert {point.setting.workers for point in points} >= {1, 64}
    left_out = [(point, found) for point, found in compare(points, COSTS) if not point.fitted]
    assert len(left_out) == 7
    for point, found in left_out:
        asked = point.setting.workers / point.setting.batch_seconds
        assert found.rate == pytest.approx(point.rate, rel=0.15 if asked < 3 * point.rate else 0.25), point.setting


@pytest.mark.slow
def test_the_costs_that_points_come_from_are_found():
    costs = Costs(execution=6e-3, step=8e-4, update=5e-4, byte=2e-9)
    settings = [Setting(w, 1, 0.05, megabytes=m, together=True) for w in (4, 40, 100) for m in (0.0, 1.0)]
    points = []
    for setting in settings:
        found = simulate(setting, costs, 2.0)
        points.append(Point(setting, found.rate, found.coordinator, fitted=True))
    found = fit(points, Costs(execution=3e-3, step=3e-4, update=3e-4, byte=1e-9))
    assert found.execution == pytest.approx(6e-3, rel=0.2)
    # Which of them a core has worked for is not to be told from what was made.
    assert found.step + found.update == pytest.approx(1.3e-3, rel=0.15)
    assert found.byte == pytest.approx(2e-9, rel=0.3)


@pytest.mark.slow
def test_other_machines(tmp_path):
    """More servers carry more; of what is asked for a picture is drawn."""
    report, picture = tmp_path / "report.json", tmp_path / "rate.svg"
    done = run(
        "simulate",
        "--workers=1,20",
        "--servers=1,4",
        "--megabytes=50",
        "--gbit=1",
        f"--plot={picture}",
        f"--report={report}",
    )
    assert done.returncode == 0, done.stderr
    rates = {(s["workers"], s["servers"]): f["rate"] for s, f in json.loads(report.read_text())["simulated"]}
    assert rates[20, 1] == pytest.approx(2.5, rel=0.1)
    assert rates[20, 4] == pytest.approx(10, rel=0.1)
    assert picture.read_text().startswith("<?xml")


WRONG = dict.fromkeys(
    [
        "--servers=0",
        "--gbit=0",
        "--compute_ms=0",
        "--points=/nowhere",
        "--megabytes=nan",
        "--plot=/nowhere/it.svg",
        "--plot=x",
        "--cores=0",
    ]
)


@every_third("option", WRONG)
def test_an_option_that_is_wrong(option):
    done = run("simulate", option)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert option.partition("=")[0] in line
