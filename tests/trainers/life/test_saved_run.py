"""Runs on the disk, and what cannot be gone on with."""

import numpy as np
import pytest

from tf2dist.data.errors import DataError
from trainers.life import saved_run


def test_round_trip(tmp_path):
    assert saved_run.read(str(tmp_path)) is None
    board = np.arange(6, dtype=np.uint64).reshape(3, 2) << np.uint64(60)
    memory = {"seen": np.array([2**64 - 1], np.uint64), "kept": board[None]}
    saved_run.write(str(tmp_path), saved_run.SavedRun(board, 7, "rule", memory))
    again = saved_run.read(str(tmp_path))
    assert (again.generation, again.key) == (7, "rule")
    assert (again.board == board).all()
    assert again.memory.keys() == memory.keys()
    assert (again.memory["seen"] == memory["seen"]).all()


def test_what_it_began_with_and_its_populations(tmp_path):
    board = np.ones([3, 1], np.uint64)
    saved_run.write(str(tmp_path), saved_run.SavedRun(board, 2, "rule", {}, "a glider", np.array([5, 4, 3])))
    again = saved_run.read(str(tmp_path))
    assert again.beginning == "a glider"
    assert again.populations.tolist() == [5, 4, 3]


def test_a_run_of_an_older_program(tmp_path):
    np.savez(tmp_path / "life.npz", board=np.ones([3, 1], np.uint64), generation=7, key="rule")
    again = saved_run.read(str(tmp_path))
    assert (again.generation, again.key, again.beginning, again.populations) == (7, "rule", "", None)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04 cut off"])
def test_damaged(content, tmp_path):
    (tmp_path / "life.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"life\.npz is no board of a run"):
        saved_run.read(str(tmp_path))
