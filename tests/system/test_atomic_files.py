import os
import pathlib

import pytest

from tf2dist.system.atomic_files import replacing, save


def fill(parts, text="new"):
    for part in parts:
        with open(part, "w") as file:
            file.write(text)


def test_puts_all_in_place(tmp_path):
    paths = [str(tmp_path / name) for name in "ab"]
    (tmp_path / "a").write_text("old")
    with replacing(*paths) as parts:
        fill(parts)
        assert (tmp_path / "a").read_text() == "old"
        assert not (tmp_path / "b").exists()
        assert all(os.path.basename(part).startswith(".") for part in parts)
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]
    assert [(tmp_path / name).read_text() for name in "ab"] == ["new", "new"]


def test_keeps_the_usual_permissions(tmp_path):
    (tmp_path / "plain").touch()
    with replacing(str(tmp_path / "file")) as parts:
        fill(parts)
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_failure_changes_nothing(tmp_path, error):
    (tmp_path / "a").write_text("old")

    def body():
        with replacing(str(tmp_path / "a"), str(tmp_path / "b")) as parts:
            fill(parts[:1])
            raise error

    with pytest.raises(error):
        body()
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_a_part_that_was_not_written(tmp_path):
    with pytest.raises(FileNotFoundError), replacing(str(tmp_path / "a"), str(tmp_path / "b")) as parts:
        fill(parts[:1])
    assert os.listdir(tmp_path) == []


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
        save(Full(), str(path))
    assert path.read_text() == "old"
    save(Fine(), str(path))
    assert path.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["model.keras"]
