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
        ("MIG-00", ("MIG-00",)),
        ("MIG-GPU-111/3/0", ("MIG-GPU-111/3/0",)),
        ("NoDevFiles", ()),
        ("-2", ()),
        ("-1,0", ()),
        ("2,-1,0", ("2",)),
    ],
)
def test_which_a_process_may_use(tmp_path, monkeypatch, asked, found):
    fake_nvidia_smi(tmp_path, monkeypatch, 3, parts=1)
    assert gpus.visible({} if asked is None else {gpus.VISIBLE: asked}) == found


@pytest.mark.parametrize(
    ("count", "asked", "said"),
    [
        (3, "3", "CUDA_VISIBLE_DEVICES=3 names GPU '3', which this machine lacks: it has 3, numbers 0 to 2"),
        (1, "0,1", "CUDA_VISIBLE_DEVICES=0,1 names GPU '1', which this machine lacks: it has 1, number 0"),
        (2, "GPU-777", "names GPU 'GPU-777', which this machine lacks: it has 2, numbers 0 to 1"),
        (2, "0,,1", "CUDA_VISIBLE_DEVICES=0,,1 has an empty name in it, a comma too many"),
        (2, "0,", "a comma too many"),
        (2, "0,zero", "names GPU 'zero'"),
        (2, "all", "names GPU 'all', which this machine lacks: it has 2, numbers 0 to 1"),
        (2, "1.5", "names GPU '1.5'"),
        (2, "1,1", "names GPU '1' twice, and CUDA would show none"),
        (2, "1,01", "names GPU '1' and '01', which is the same, and CUDA would show none"),
        (2, "0,GPU-00", "names GPU '0' and 'GPU-00', which is the same"),
        (2, "GPU-111,GPU-11", "names GPU 'GPU-111' and 'GPU-11', which is the same"),
        (2, "GPU-", "names GPU 'GPU-', which several begin with: GPU-000, GPU-111"),
        (2, "１", "names GPU '１', which this machine lacks"),
        (2, "MIG-00", "names GPU 'MIG-00', which this machine lacks"),
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
        ({gpus.ORDER: "FASTEST_FIRST"}, {"GPU-111"}),
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
    assert gpus.driver_failure().startswith("nvidia-smi fails: GPU 0: NVIDIA Fake")
    monkeypatch.setattr(gpus.glob, "glob", lambda pattern: ["0", "1", "2"] if pattern.startswith("/dev") else [])
    assert gpus.visible({}) == ("0", "1", "2")


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("echo No devices were found; exit 6", ""),
        ("echo 'Failed to initialize NVML: Unknown Error'; exit 255", "nvidia-smi fails: Failed to initialize NVML"),
        ("exit 9", "nvidia-smi fails: status 9"),
        ("exec sleep 100", "nvidia-smi does not answer within 0.5 s"),
    ],
)
def test_why_no_gpu_is_told_of(tmp_path, monkeypatch, program, why):
    fake_nvidia_smi(tmp_path, monkeypatch, 1)
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{program}\n")
    monkeypatch.setattr(gpus, "_PATIENCE", 0.5)
    assert gpus.driver_failure().startswith(why)
    assert bool(gpus.driver_failure()) == bool(why)


def test_nvidia_smi_of_windows_is_not_on_every_path(tmp_path, monkeypatch):
    fake_nvidia_smi(tmp_path, monkeypatch, 2)
    monkeypatch.setattr(gpus, "_OF_WSL", str(tmp_path / "nvidia-smi"))
    monkeypatch.setattr(gpus.shutil, "which", lambda name: None)
    assert gpus.visible({}) == ("0", "1")


def test_an_nvidia_smi_that_hangs_is_asked_once(tmp_path, monkeypatch):
    """The doctor asks it for several things, and would wait each time."""
    fake_nvidia_smi(tmp_path, monkeypatch, 1)
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\necho asked >> {tmp_path}/asked\nexec sleep 100\n")
    monkeypatch.setattr(gpus, "_PATIENCE", 0.5)
    for _ in range(3):
        assert gpus.driver_failure() == "nvidia-smi does not answer within 0.5 s"
    assert gpus.identifiers() == ()
    assert (tmp_path / "asked").read_text() == "asked\n"
