"""What the doctor says of GPUs: what is wanted, what is found, and what would mend it."""

import types

import pytest

from tests.gpu_fakes import fake_nvidia_smi
from tf2dist import doctor
from tf2dist.system import cuda_libraries

WANTED = {"cuda": "12.5.1", "cudnn": "9.3.0.75", "nccl": "2.27.7", "capabilities": "sm_60 sm_70 compute_90"}
FOUND = {"cuda": "12.9.79", "cudnn": "9.10.2", "nccl": "2.27.7"}
TOPOLOGY = """\
\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\x1b[0m
GPU0\t X \tNV18\tPIX\t0-15
GPU1\tNV18\t X \tSYS\t0-15
NIC0\tPIX\tSYS\t X
"""


PEERS = """\
 \t\x1b[4mGPU0\tGPU1\x1b[0m
 GPU0\tX\tOK
 GPU1\tOK\tX

Legend:

  X    = Self
  OK   = Status Ok
  TNS  = Topology not supported
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """machine(count, used, ...): what `_gpus` finds out and complains of on a machine with so many GPUs."""

    def look(count, used, wanted=WANTED, found=FOUND, missing=(), cards=(), visible=None, **smi):
        fake_nvidia_smi(tmp_path, monkeypatch, count, **smi)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        monkeypatch.setattr(doctor, "_wanted_libraries", lambda: wanted)
        monkeypatch.setattr(cuda_libraries, "library_versions", lambda: found)
        monkeypatch.setattr(cuda_libraries, "libraries_missing", lambda: list(missing))
        monkeypatch.setattr(cuda_libraries, "cards_in_slots", lambda: list(cards))
        problems = []
        return doctor._gpus(used, problems), problems

    return look


def test_two_that_are_used(machine):
    report, problems = machine(2, 2, topology=TOPOLOGY, peers=PEERS)
    assert problems == []
    assert doctor._gpu_lines(report) == [
        "gpus       driver 550.54.14; CUDA 12.5.1 wanted, 12.9.79 found; cuDNN 9.3.0.75 wanted, 9.10.2 found; "
        "NCCL 2.27.7 wanted, 2.27.7 found",
        "gpu 0      NVIDIA Fake, 16.0 GiB (15.7 free), compute capability 8.0",
        "gpu 1      NVIDIA Fake, 16.0 GiB (15.7 free), compute capability 8.0",
        "gpu links  GPU0-GPU1 NV18 with peer access (NV: NVLink, PIX to PHB: PCIe, NODE and SYS: through processors)",
    ]


@pytest.mark.parametrize(
    ("peers", "said"), [("", "GPU0-GPU1 NV18 ("), (PEERS.replace("OK\n", "TNS\n"), "NV18 without peer access (TNS) (")]
)
def test_two_that_do_not_read_each_others_memory(machine, peers, said):
    report, problems = machine(2, 2, topology=TOPOLOGY, peers=peers)
    assert problems == []
    assert said in doctor._gpu_lines(report)[-1]


def test_a_machine_without_any(machine):
    assert machine(0, 0) == (None, [])
    report, problems = machine(0, 0, visible="0")
    assert report is None
    mends = "`unset CUDA_VISIBLE_DEVICES`, or mend the driver"
    assert problems == [f"CUDA_VISIBLE_DEVICES=0 names a GPU, and none is found: {mends}"]
    assert machine(0, 0, status=9, visible="0")[1] == [
        f"CUDA_VISIBLE_DEVICES=0 names a GPU, and none is found (nvidia-smi fails: status 9): {mends}"
    ]


def test_a_driver_that_fails_is_in_the_way(machine, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    report, problems = machine(0, 0, status=9)
    assert report is None
    assert problems == ["nvidia-smi fails: status 9: mend NVIDIA's driver, or remove it where there is no GPU"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"status": 9, "cards": ["0000:01:00.0"]},
         "there is an NVIDIA GPU (PCI 0000:01:00.0), and its driver does not answer: install it"),
        ({"visible": "5"}, "CUDA_VISIBLE_DEVICES=5 names GPU '5', which this machine lacks"),
        ({"wanted": {}}, "this TensorFlow is built without CUDA: `pip install 'tensorflow[and-cuda]'`"),
        ({"driver": "470.82.01"}, "the driver is 470.82.01, and CUDA 12.5.1 needs 525.60.13 or later: update it"),
        ({"found": {**FOUND, "cuda": ""}}, "CUDA's runtime 12.5.1 is wanted and not found: `pip install 'tensorflow"),
        ({"found": {**FOUND, "cudnn": "8.9.7"}}, "cuDNN 9.3.0.75 is wanted, and 8.9.7 is found: `pip install 'ten"),
        ({"found": {**FOUND, "cudnn": "9.1.0"}}, "TensorFlow sees 0 of 2 GPUs; its own log says why:"),
        ({"wanted": {**WANTED, "capabilities": "sm_90"}},
         "GPU 0, NVIDIA Fake, has compute capability 8.0, and this TensorFlow is built for 9.0 and later"),
        ({}, "TensorFlow sees 0 of 2 GPUs; its own log says why: `TF_CPP_MIN_LOG_LEVEL=0 python -c"),
    ],
)  # fmt: skip
def test_why_one_is_not_used(machine, options, said):
    _, problems = machine(0 if "status" in options else 2, 0, **options)
    assert problems
    assert problems[0].startswith(said)


@pytest.mark.parametrize(("visible", "used", "hidden"), [("1", 1, 1), ("-1", 0, 2)])
def test_one_that_the_user_hides_is_no_problem(machine, visible, used, hidden):
    report, problems = machine(2, used, visible=visible)
    assert problems == []
    said = f"           CUDA_VISIBLE_DEVICES='{visible}' hides {hidden} of 2: `unset CUDA_VISIBLE_DEVICES` shows all"
    assert said in doctor._gpu_lines(report)


def test_one_that_the_user_shows_and_tensorflow_does_not_see(machine):
    assert machine(2, 0, visible="1")[1][0].startswith("TensorFlow sees 0 of 1 that CUDA_VISIBLE_DEVICES shows; its")


def test_a_library_without_which_tensorflow_uses_none(machine):
    _, problems = machine(1, 0, missing=["cuBLAS", "cuFFT"])
    assert [problem.partition(": `")[0] for problem in problems] == ["cuBLAS, cuFFT are wanted and not all found"]
    _, problems = machine(1, 0, missing=["cuBLAS"])
    assert problems[0].startswith("cuBLAS is wanted and not found: `pip")


def test_a_driver_that_tells_no_compute_capability(machine):
    report, problems = machine(1, 0, driver="470.182.03")
    assert report["driver"] == "470.182.03"
    assert doctor._gpu_lines(report)[1] == "gpu 0      NVIDIA Fake, 16.0 GiB (15.7 free)"
    assert len(problems) == 1
    assert problems[0].startswith("the driver is 470.182.03, and CUDA 12.5.1 needs")


def test_nccl_is_for_several(machine):
    assert machine(1, 1, found={**FOUND, "nccl": ""})[1] == []
    said = "NCCL, by which GPUs add up gradients, 2.27.7 is wanted and"
    assert machine(2, 2, found={**FOUND, "nccl": ""})[1][0].startswith(f"{said} not found: `pip")
    assert machine(2, 2, found={**FOUND, "nccl": "2.18.3"})[1][0].startswith(f"{said[:-4]}, and 2.18.3 is found: `pip")


def test_an_older_cudnn_is_in_the_way_of_gpus_that_are_used(machine):
    """TensorFlow loads it, finds the GPUs, and refuses it when the first convolution comes."""
    said = "cuDNN, without which convolutions fail, 9.3.0.75 is wanted, and 9.1.0 is found: `pip install 'tensor"
    for used in (1, 2):
        _, problems = machine(2, used, found={**FOUND, "cudnn": "9.1.0"})
        assert problems[-1].startswith(said)
        assert len(problems) == 3 - used


class Library:
    """As `ctypes.CDLL`; one in a directory called `old` is of an older version."""

    def __init__(self, file):
        self.old = "/old/" in file

    def __getattr__(self, name):
        if name == "cudnnGetVersion":
            number = 90100 if self.old else 90300
            return type("", (), {"restype": None, "__call__": lambda self: number})()
        number = 12050 if name == "cudaRuntimeGetVersion" else 22707
        return lambda reference: setattr(reference._obj, "value", number) or 0


@pytest.fixture
def no_wheels(monkeypatch):
    def none(name):
        raise cuda_libraries.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(cuda_libraries.importlib.metadata, "version", none)


def test_versions_that_libraries_tell(monkeypatch, no_wheels):
    monkeypatch.setattr(cuda_libraries.ctypes, "CDLL", Library)
    assert cuda_libraries.library_versions({}) == {"cuda": "12.5", "cudnn": "9.3.0", "nccl": "2.27.7"}

    def gone(file):
        raise OSError(file)

    monkeypatch.setattr(cuda_libraries.ctypes, "CDLL", gone)
    assert cuda_libraries.library_versions({}) == {"cuda": "", "cudnn": "", "nccl": ""}


def test_libraries_beside_tensorflow(tmp_path, monkeypatch, no_wheels):
    """As a copy of its wheels that pip knows nothing of; and none of the system's."""
    asked = []

    def load(file):
        asked.append(file)
        if not file.startswith(str(tmp_path)):
            raise OSError(file)
        return Library(file)

    file = tmp_path / "nvidia" / "cudnn" / "lib" / "libcudnn.so.9"
    file.parent.mkdir(parents=True)
    file.touch()
    spec = types.SimpleNamespace(submodule_search_locations=[str(tmp_path / "tensorflow")])
    monkeypatch.setattr(cuda_libraries.importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(cuda_libraries.ctypes, "CDLL", load)
    assert cuda_libraries.library_versions({}) == {"cuda": "", "cudnn": "9.3.0", "nccl": ""}
    assert str(file) in asked


def test_other_libraries_that_tensorflow_loads(tmp_path, monkeypatch, no_wheels):
    """Both files of cuBLAS; in `LD_LIBRARY_PATH`, beside TensorFlow, or where the system's loader finds them."""
    (tmp_path / "libcublas.so.12").touch()
    (tmp_path / "libcufft.so.11").touch()
    found = {"libcublasLt.so.12", "libcusolver.so.11"}

    def load(file):
        if file not in found:
            raise OSError(file)
        return Library(file)

    monkeypatch.setattr(cuda_libraries.ctypes, "CDLL", load)
    assert cuda_libraries.libraries_missing({"LD_LIBRARY_PATH": str(tmp_path)}) == ["cuSPARSE"]
    assert cuda_libraries.libraries_missing({}) == ["cuBLAS", "cuFFT", "cuSPARSE"]
    monkeypatch.setattr(cuda_libraries.importlib.metadata, "requires", lambda name: None)
    assert cuda_libraries.libraries_missing({}) == []


def test_an_older_library_that_comes_first(tmp_path, monkeypatch):
    """One of the user's `LD_LIBRARY_PATH` is loaded in place of that of TensorFlow's wheels."""
    old = tmp_path / "old"
    old.mkdir()
    (old / "libcudnn.so.9").touch()
    monkeypatch.setattr(cuda_libraries.ctypes, "CDLL", Library)
    monkeypatch.setattr(cuda_libraries.importlib.metadata, "version", lambda name: "9.10.2")
    assert cuda_libraries.library_versions({})["cudnn"] == "9.10.2"
    assert cuda_libraries.library_versions({"LD_LIBRARY_PATH": f"/nowhere:{old}"})["cudnn"] == "9.1.0"


@pytest.mark.parametrize(
    ("name", "wanted", "found", "right"),
    [
        ("cuda", "12.5.82", "12.2", True), ("cuda", "12.5.82", "13.0", False), ("cuda", "12.5.82", "11.8", False),
        ("cudnn", "9.3.0.75", "9.10.2", True), ("cudnn", "9.3.0.75", "9.1.0", False), ("cudnn", "9", "9.1.0", True),
        ("nccl", "2.27.7", "2.27.3", True), ("nccl", "2.27.7", "2.18.3", False), ("nccl", "2.27.7", "3.0", False),
    ],
)  # fmt: skip
def test_versions_that_fit(name, wanted, found, right):
    assert cuda_libraries.fits(name, wanted, found) is right


@pytest.mark.parametrize(
    ("found", "unusable", "failing"),
    [
        ("9.3.1", "", ""),
        ("9.1.0", "", "cuDNN 9.3 is wanted, and 9.1.0 is found: convolutions will fail, and so may XLA"),
        ("8.9.7", "cuDNN 9.3 is wanted, and 8.9.7 is found", None),
        ("", "cuDNN 9.3 is not found", None),
    ],
)
def test_what_is_loaded_and_fails_later(monkeypatch, found, unusable, failing):
    monkeypatch.setattr(cuda_libraries, "wanted_versions", lambda: WANTED)
    monkeypatch.setattr(cuda_libraries, "library_versions", lambda: {**FOUND, "cudnn": found})
    monkeypatch.setattr(cuda_libraries, "libraries_missing", list)
    assert cuda_libraries.why_unusable() == unusable
    if not unusable:
        assert cuda_libraries.what_will_fail() == failing


def test_what_this_tensorflow_was_built_for(tf):
    """The names in TensorFlow's build information are those that are read."""
    build, wanted = tf.sysconfig.get_build_info(), doctor._wanted_libraries()
    assert bool(wanted) == build["is_cuda_build"]
    if wanted:
        assert cuda_libraries.driver_too_old("1.0", wanted["cuda"])
        assert {name: cuda_libraries.version_numbers(wanted[name])[0] for name in ("cudnn", "nccl")} == {
            "cudnn": cuda_libraries.version_numbers(build["cudnn_version"])[0], "nccl": 2,
        }  # fmt: skip
        assert all(60 <= doctor._capability(text) < 200 for text in wanted["capabilities"].split())
