"""Programs in the form of tf.distribute's tutorials come to the numbers that they have on one device."""

import pickle

import numpy as np
import pytest

from tests import tutorials
from tests.house.source import ROOT
from tests.jobs import run_program

pytestmark = pytest.mark.slow
LAYOUTS = {"multi": ["--workers=2"], "parameter": ["--ps=2", "--workers=2"]}


def results_of(name, directory):
    run_program(LAYOUTS[name.partition("_")[0]], "tutorials", name, directory)
    return {path.stem: pickle.loads(path.read_bytes()) for path in directory.iterdir()}


def same(ours, expected, *names):
    for name in names:
        for a, b in zip(ours[name], expected[name], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=name)


def same_history(ours, expected):
    assert ours["history"].keys() == expected["history"].keys()
    for name, values in expected["history"].items():
        np.testing.assert_allclose(ours["history"][name], values, rtol=1e-4, atol=1e-5, err_msg=name)


def test_keras_fit(tf):
    ours, expected = (tutorials.run("keras_fit", ours=each) for each in (True, False))
    same(ours, expected, "weights", "rates", "evaluated", "alone")
    same_history(ours, expected)
    assert ours["files"] == expected["files"]
    assert ours["evaluated"] == pytest.approx(ours["alone"], rel=1e-4)
    assert ours["rates"] == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4])


def test_custom_training(tf):
    ours, expected = (tutorials.run("custom_training", ours=each) for each in (True, False))
    same(ours, expected, "weights", "logs")
    assert ours["logs"][-1][0] < ours["logs"][0][0]


def test_multi_worker_fit(tf, tmp_path):
    found, expected = results_of("multi_worker_fit", tmp_path), tutorials.run("multi_worker_fit", ours=False)
    assert {*found} == {"worker-0", "worker-1"}
    for ours in found.values():
        same(ours, expected, "weights")
        same_history(ours, expected)
    same(found["worker-0"], expected, "loaded")
    assert found["worker-0"]["files"] == expected["files"]


def test_multi_worker_loop(tf, tmp_path):
    found, expected = results_of("multi_worker_loop", tmp_path), tutorials.run("multi_worker_loop", ours=False)
    assert {*found} == {"worker-0", "worker-1"}
    for ours in found.values():
        same(ours, expected, "weights", "logs", "restored")


def test_parameter_server_fit(tf, tmp_path):
    found = results_of("parameter_server_fit", tmp_path)
    assert {*found} == {"chief-0"}
    losses = found["chief-0"]["history"]["loss"]
    assert len(losses) == 5
    assert losses[-1] < losses[0] / 3
    assert found["chief-0"]["iterations"] == 100
    assert [name for name in found["chief-0"]["files"] if name.endswith(".keras")] == [
        f"{n}.keras" for n in range(1, 6)
    ]


def test_parameter_server_loop(tf, tmp_path):
    found = results_of("parameter_server_loop", tmp_path)
    assert {*found} == {"chief-0"}
    assert found["chief-0"]["accuracies"][-1] > 0.95
    assert found["chief-0"]["rows"] == 31 * 32


@pytest.mark.parametrize("name", sorted(tutorials.CHANGES))
def test_the_documentation_lists_the_changes(name):
    _, changes = tutorials.changed(name)
    documented = (ROOT / "docs" / "tutorials.md").read_text()
    section = documented.partition(f"tests/tutorials/programs/{name}.py")[2].partition("\n## ")[0]
    assert changes
    for theirs, ours in changes:
        assert f"\n- {theirs.strip()}\n" + (f"+ {ours.strip()}\n" if ours else "") in section
    assert section.count("\n- ") == len(changes)
