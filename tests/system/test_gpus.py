"""Which GPUs a process may use, as nvidia-smi and CUDA_VISIBLE_DEVICES say."""

import os

import pytest

from tests.gpu_fakes import fake_nvidia_smi
from tf2dist.errors import UsageError
from tf2dist.system import gpus


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (None, ("0", "1", "2")),
        ("", ()),
        ("-1", ()),
        ("2", ("2",)),
        ("2,0", ("2", "0")),
        (" 1 , 2 ", ("1", "2")),
        ("GPU-111,0", ("GPU-111", "0")),
        ("GPU-1", ("GPU-1",)),
        ("MIG-55", ("MIG-55",)),
        ("NoDevFiles", ()),
        ("-2", ()),
        ("-1,0", ()),
        ("2,-1,0", ("2",)),
    ],
)
def test_which_a_process_may_use(tmp_path, monkeypatch, asked, found):
    fake_nvidia_smi(tmp_path, monkeypatch, 3)
    assert gpus.visible({} if asked is None else {gpus.VISIBLE: asked}) == found


@pytest.mark.parametrize(
    ("count", "asked", "said"),
    [
        (3, "3", "CUDA_VISIBLE_DEVICES=3 names GPU '3', which this machine lacks: it has 3, 0 to 2"),
        (1, "0,1", "CUDA_VISIBLE_DEVICES=0,1 names GPU '1', which this machine lacks: it has 0"),
        (2, "GPU-777", "names GPU 'GPU-777', which this machine lacks: it has 2, 0 to 1"),
        (2, "0,,1", "which this machine lacks"),
        (2, "0,zero", "names GPU 'zero'"),
        (2, "all", "names GPU 'all', which this machine lacks: it has 2, 0 to 1"),
        (2, "1.5", "names GPU '1.5'"),
        (2, "1,1", "names GPU '1' twice"),
    ],
)
def test_one_that_is_not_there(tmp_path, monkeypatch, count, asked, said):
    fake_nvidia_smi(tmp_path, monkeypatch, count)
    with pytest.raises(UsageError) as refused:
        gpus.visible({gpus.VISIBLE: asked})
    assert said in str(refused.value)


def test_one_that_is_named_where_none_is(tmp_path, monkeypatch):
    """In an image that is used on machines with and without; the launcher says so."""
    fake_nvidia_smi(tmp_path, monkeypatch, 0)
    assert gpus.visible({gpus.VISIBLE: "0"}) == ()
    assert [gpus.asked_for({gpus.VISIBLE: text}) for text in ("0", "-1", "", "NoDevFiles")] == ["0", "", "", ""]


def test_memory_by_number_and_by_uuid(tmp_path, monkeypatch):
    fake_nvidia_smi(tmp_path, monkeypatch, 2, mib=8192, free=700)
    assert gpus.memory(("1", "GPU-000"), {}) == dict.fromkeys(("1", "GPU-000"), gpus.Memory(8192, 700))
    assert gpus.memory(("MIG-9",), {}) == {}


@pytest.mark.parametrize(
    ("environ", "known"),
    [
        ({}, {"0", "GPU-111"}),
        ({gpus.VISIBLE: "0"}, {"GPU-111"}),
        ({gpus.VISIBLE: "0", gpus.ORDER: "FASTEST_FIRST"}, {"GPU-111"}),
        ({gpus.VISIBLE: "0", gpus.ORDER: "PCI_BUS_ID"}, {"0", "GPU-111"}),
    ],
)
def test_memory_of_a_number_that_may_mean_another_card(tmp_path, monkeypatch, environ, known):
    """CUDA's own numbers begin with the fastest of cards that differ."""
    fake_nvidia_smi(tmp_path, monkeypatch, 2, mib=(8192, 16384))
    assert gpus.memory(("0", "GPU-111"), environ).keys() == known


def test_the_driver_is_open_while_a_file_of_it_is(tmp_path, monkeypatch):
    assert not gpus.driver_is_open()
    there = os.readlink
    monkeypatch.setattr(gpus.os, "readlink", lambda path: there(path).replace(str(tmp_path), "/dev"))
    for device in ("nvidiactl", "dxg"):
        with open(tmp_path / device, "w"):
            assert gpus.driver_is_open()
    assert not gpus.driver_is_open()


def test_a_driver_that_nvidia_smi_does_not_reach(tmp_path, monkeypatch):
    """Then the kernel's own list counts; it names none where these tests run without a GPU."""
    fake_nvidia_smi(tmp_path, monkeypatch, 2, status=9)
    assert gpus.nvidia_smi("--list-gpus") is None
    monkeypatch.setattr(gpus.glob, "glob", lambda pattern: ["0", "1", "2"] if pattern.startswith("/dev") else [])
    assert gpus.visible({}) == ("0", "1", "2")
