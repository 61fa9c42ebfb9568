"""Checkpoints and their status, nearly right or not at all: they are read, or are damaged, and nothing else happens."""

import json
import os

import keras
import pytest
from hypothesis import given

from tests.hostile import bounded, changed, contents, examples
from tf2dist.errors import CheckpointError
from tf2dist.training import checkpoint_files, status_file
from tf2dist.training.checkpoint_files import DamagedError
from tf2dist.training.checkpoint_snapshot import Snapshot
from tf2dist.training.checkpoint_state import SavedProgress


@pytest.fixture(scope="module")
def saved(tf, tmp_path_factory):
    """A model, and a checkpoint of it: its directory and the content of its state."""
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1), keras.layers.Dropout(0.5)])
    model.compile("sgd", "mse")
    path = checkpoint_files.write_checkpoint(
        Snapshot(model, SavedProgress(7, [], 5)), str(tmp_path_factory.mktemp("saved"))
    )
    with open(os.path.join(path, "state.json"), "rb") as file:
        return model, path, file.read()


def read(model, path):
    try:
        with bounded():
            return checkpoint_files.read_checkpoint(model, path)
    except (DamagedError, CheckpointError) as error:
        said = str(error)
    assert "\n" not in said
    return None


def test_states(saved):
    model, path, right = saved
    no_checksum = json.dumps({**json.loads(right), "weights_sha256": None}).encode()

    @examples()
    @given(contents(right, no_checksum, b'{"position": 7, "totals": [[1.0]], "shapes": {}}'))
    def try_them(content):
        with open(os.path.join(path, "state.json"), "wb") as file:
            file.write(content)
        progress = read(model, path)
        assert progress is None or isinstance(progress.global_step, int)

    try_them()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("global_step", "Infinity"), ("global_step", "NaN"), ("global_step", "1e400"), ("global_step", "[1]"),
        ("global_step", '"x"'), ("global_step", "-1"), ("global_step", "9" * 400), ("global_step", "true"),
        ("metric_sums", "[[1], [[2]]]"), ("metric_sums", '[{"a": 1}]'), ("metric_sums", "7"),
        ("metric_sums", "[" * 90 + "]" * 90), ("seed_states", "[[1e400, 2]]"), ("seed_states", f"[[{'9' * 30}, 1]]"),
        ("seed_states", "[[1, 2, 3]]"), ("seed_states", "7"), ("seed_states", "[[-1, -1]]"),
        ("shapes", "7"), ("shapes", '{"nobody": []}'), ("shapes", '{"model": 7}'),
        ("shapes", '{"model": [7, 8]}'), ("shapes", "[]"), ("steps_per_epoch", '"x"'), ("steps_per_epoch", "-1"),
        ("steps_per_epoch", "1e400"), ("weights_sha256", "7"), ("ends_epoch", "[]"),
    ],
    ids=lambda value: value[:20],
)  # fmt: skip
def test_values_of_a_state(saved, key, value):
    model, path, right = saved
    state = {**json.loads(right), key: "HERE"}
    with open(os.path.join(path, "state.json"), "w") as file:
        file.write(json.dumps(state).replace('"HERE"', value))
    progress = read(model, path)
    assert progress is None or (isinstance(progress.global_step, int) and progress.global_step >= 0)
    assert progress is None or progress.steps_per_epoch is None or progress.steps_per_epoch > 0


def test_weights_without_a_checksum(saved, tmp_path):
    """As of older versions."""
    model, path, right = saved
    state = {key: value for key, value in json.loads(right).items() if key != "weights_sha256"}
    (tmp_path / "state.json").write_text(json.dumps(state))
    with open(os.path.join(path, "model.weights.h5"), "rb") as file:
        weights = file.read()

    @examples(40)
    @given(changed([weights]))
    def try_them(content):
        (tmp_path / "model.weights.h5").write_bytes(content)
        read(model, str(tmp_path))

    try_them()


@examples()
@given(
    contents(
        '{"state": "preempted", "time": 1.5, "writer": "process 1 of a", "stopped_at": 7}',
        '{"state": "training", "time": 2}',
    )
)
def test_status(tmp_path_factory, content):
    directory = tmp_path_factory.getbasetemp()
    (directory / "status.json").write_bytes(content)
    with bounded():
        state, when = status_file.read_status(str(directory))
        stopped = status_file.read_stopped_at(str(directory))
    assert isinstance(state, str)
    assert isinstance(when, int | float)
    assert stopped is None or (isinstance(stopped, int) and stopped >= 0)


_STATUS = ("[]", "7", '"x"', '{"state": 7, "time": "x"}', '{"state": "preempted", "time": 1, "stopped_at": 1e400}',
           "[" * 3000, '{"state": [], "time": NaN}', "\udcff")  # fmt: skip


@pytest.mark.parametrize("content", _STATUS, ids=range(len(_STATUS)))
def test_a_status_of_another_form(tmp_path, content):
    (tmp_path / "status.json").write_bytes(content.encode(errors="surrogateescape"))
    assert status_file.read_status(str(tmp_path))[0] in ("", "preempted")
    assert status_file.read_stopped_at(str(tmp_path)) is None


@pytest.mark.parametrize(
    "name", ["checkpoint-" + "9" * 200, "checkpoint-٣", "checkpoint--1", "checkpoint-1\n", ".checkpoint-1.replaced"]
)
def test_names_of_checkpoints(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-5").mkdir()
    checkpoint_files.discard_unfinished(str(tmp_path))
    found = checkpoint_files.list_checkpoints(str(tmp_path))
    assert str(tmp_path / "checkpoint-5") in found
    assert all(checkpoint_files.step_of(path) >= 0 for path in found)
