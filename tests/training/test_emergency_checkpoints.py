"""What servers save of a training whose coordinator is lost."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.jobs import run_program
from tests.lost_server_cases import CASES, EPOCHS, PER_EPOCH, arguments, outcome

slow = [pytest.mark.timeout(600), pytest.mark.slow]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What `tests.programs.emergency` has found, in one process."""
    directory = tmp_path_factory.mktemp("emergency")
    command = [sys.executable, "-m", "tests.programs.emergency", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


class TestOfAContext:
    def test_variables_are_read_and_assigned(self, found):
        assert found["read"] == [2.5, 3.5]
        assert found["assigned"] == [7.0, 8.0]

    @pytest.mark.parametrize(
        ("what", "says"),
        [
            ("dropped", "has not done StagePeek: DEADLINE_EXCEEDED"),
            ("another context", "has not done StagePeek: ABORTED: Unable to find a context_id"),
            ("no server", "127.0.0.1:1 has not done StagePeek: UNAVAILABLE"),
            ("cannot write", "has not done SaveV2: NOT_FOUND: /proc/numbers"),
        ],
    )
    def test_what_cannot_be_done_is_said(self, found, what, says):
        assert says in found[what]


class TestOfATraining:
    def test_all_variables_are_saved(self, found):
        state = found["in an epoch"]["state"]
        assert found["in an epoch"]["new"] == ["checkpoint-7"]
        assert (found["step"], found["equal"]) == (7, True)
        assert state["seed_states"] == found["seeds"] == [[3, 1]]

    def test_an_optimizers_count_is_as_a_callback_has_left_it(self, found):
        """Where one server has all, which counts it with the update."""
        assert found["iterations"] == 5

    def test_no_update_is_made_any_more(self, found):
        assert min(found["tokens"]) >= 1 << 62

    @pytest.mark.parametrize(
        ("when", "step", "sums", "flags"),
        [
            ("in an epoch", 7, [3.0, [[1.0, 2.0], [3.0, 4.0]]], ()),
            ("at an end", 10, [3.0, [[1.0, 2.0], [3.0, 4.0]]], ("ends_epoch", "stops")),
            ("at a beginning", 10, [0.0, [[0.0, 0.0], [0.0, 0.0]]], ("begins_epoch",)),
            ("at another one", 20, [0.0, [[0.0, 0.0], [0.0, 0.0]]], ("begins_epoch",)),
        ],
    )
    def test_the_place_in_the_epoch(self, found, when, step, sums, flags):
        state = found[when]["state"]
        assert (state["global_step"], state["metric_sums"]) == (step, sums)
        assert [name for name in ("ends_epoch", "begins_epoch", "stops") if state[name]] == [*flags]
        assert f"is saved at update {step} in" in found[when]["said"][-1]

    def test_logs_that_lack_updates_are_said(self, found):
        assert "results of updates that are lost, for the logs of this epoch: 1" in found["in an epoch"]["said"][0]
        assert len(found["at an end"]["said"]) == 1

    def test_one_of_the_same_step_is_replaced(self, found):
        assert found["once more"]["new"] == []
        assert found["learning rate"] == [7, pytest.approx(0.01)]

    @pytest.mark.parametrize(
        ("when", "why"),
        [
            ("between", "callbacks were being called between two epochs, after update 9"),
            ("of another epoch", "callbacks were being called between two epochs, after update 12"),
            ("under way", "1 updates were begun and did not end in 1 s"),
            ("not seen", "/.progress, the training's journal, is not to be seen here, or another's"),
            ("not there any more", "Unable to find a context_id"),
        ],
    )
    def test_what_cannot_be_saved_is_said(self, found, when, why):
        assert found[when]["new"] == []
        (line,) = found[when]["said"]
        assert "the updates since the last checkpoint are lost with the coordinator: " in line
        assert why in line

    def test_nothing_is_saved_when_training_is_over(self, found):
        assert (found["nothing"]["new"], found["nothing"]["said"]) == ([], [])

    def test_nothing_is_held_after_an_error(self, found):
        """Which else would keep the variables alive."""
        kept, said = found["after an error"]
        assert not kept
        assert "DEADLINE_EXCEEDED" in said

    def test_nothing_is_left(self, found):
        assert found["in an epoch"]["left"] == found["between"]["left"] == found["under way"]["left"] == []


class TestOfAJob:
    """Coordinators are killed while they train, and the job is started again each time."""

    pytestmark = slow

    @pytest.mark.parametrize(
        ("layout", "name"),
        [
            pytest.param(["--workers=1", "--ps=1"], "layers, dataset, sharded", id="one worker"),
            pytest.param(["--workers=2", "--ps=2"], "sync, averaged, sharded", id="synchronous"),
            pytest.param(["--workers=2", "--ps=1", "--no-chief"], "sync", id="worker 0 leads"),
            *(
                pytest.param(["--workers=2", "--ps=2"], name, marks=pytest.mark.exhaustive)
                if name.startswith("sync")
                else pytest.param(["--workers=1", "--ps=1"], name, marks=pytest.mark.exhaustive)
                for name in CASES
                if name not in ("local steps", "own step")
            ),
        ],
    )
    def test_nothing_is_lost(self, tmp_path, monkeypatch, layout, name):
        """Weights, and the optimizer's variables, are those of Keras; no update that was made is made again."""
        monkeypatch.setenv("TF2DIST_ONE_SERVER_BYTES", "1")
        result = trained(tmp_path, layout, name, "step")
        begun, reached = result["begun"], result["reached"]
        assert len(begun) == 3
        assert all(after >= known for after, known in zip(begun[1:], reached, strict=True)), (begun, reached)
        make, rows, _, _ = CASES[name]
        model = make()
        expected = outcome(model, model.fit(**arguments(rows()), epochs=EPOCHS, verbose=0))
        for what in ("weights", "optimizers"):
            for value, wanted in zip(result[what], expected[what], strict=True):
                np.testing.assert_allclose(value, wanted, rtol=2e-4, atol=2e-5, err_msg=what)
        for key, values in expected["history"].items():
            ours = result["history"][key]
            np.testing.assert_allclose(ours[1:], values[len(values) - len(ours) + 1 :], rtol=2e-4, atol=2e-5)

    @pytest.mark.parametrize("update", ["sync", "async"])
    def test_no_update_is_saved_in_part(self, tmp_path, update):
        """What a server has begun to apply it applies, and counts, before all is saved."""
        layout = ["--workers=1", "--ps=1", "--grace=60"]
        command = [
            sys.executable,
            "-m",
            "launch",
            "local",
            *layout,
            "--",
            "tests.programs.slow_updates",
            tmp_path,
            update,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 137
        path = max((tmp_path / "saved").glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
        step = int(path.name.rpartition("-")[2])
        assert step >= 3, done.stderr
        saved = tf.train.load_checkpoint(str(path / "variables-0-of-1"))
        values = [saved.get_tensor(name) for name in saved.get_variable_to_shape_map()]
        assert sorted(map(float, values))[:2] == [-step, -step]
        assert step in values  # the optimizer's count

    def test_between_two_epochs_the_last_checkpoint_counts(self, tmp_path):
        """Callbacks may have changed the learning rate, say, which they would change once more."""
        result = trained(tmp_path, ["--workers=2", "--ps=1"], "local steps", "epoch")
        assert result["begun"] == [0, 0, 0]
        assert len(result["epochs"]) == EPOCHS

    def test_several_workers(self, tmp_path):
        result = trained(tmp_path, ["--workers=2", "--ps=1"], "local steps", "step")
        assert all(after >= known for after, known in zip(result["begun"][1:], result["reached"], strict=True))


def trained(directory, layout, name, when):
    """What `tests.programs.lost_coordinator` has found, with two coordinators killed."""
    run_program([*layout, "--max_restarts=100"], "lost_coordinator", directory, 0, 2, when, name, limit=500)
    result = json.loads((directory / "result.json").read_text())
    assert result["updates"] == EPOCHS * PER_EPOCH
    left = sorted(os.listdir(directory / "saved"))
    assert left[-1] == "status.json"
    assert all(each.startswith("checkpoint-") for each in left[:-1])
    return result
