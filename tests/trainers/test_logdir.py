import pathlib

import pytest

from trainers import logdir


def test_a_model_that_cannot_be_saved_leaves_the_old_one(tmp_path):
    class Full:
        def save(self, path):
            pathlib.Path(path).write_text("half")
            raise OSError(28, "No space left on device")

    class Fine:
        def save(self, path):
            pathlib.Path(path).write_text("new")

    path = tmp_path / "model.keras"
    path.write_text("old")
    with pytest.raises(OSError, match="No space left"):
        logdir.save(Full(), str(path))
    assert path.read_text() == "old"
    logdir.save(Fine(), str(path))
    assert path.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["model.keras"]
