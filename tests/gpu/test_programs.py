"""Placement, Life, π and the trainers' own programs on a GPU."""

import json
import subprocess
import sys

import numpy as np
import pytest

import tf2dist
from tests.conftest import sampled
from tests.gpu.conftest import ON_GPU
from tests.gpu.traces import hard_placement, nodes_traced
from tests.gpu_fakes import fake_nvidia_smi
from tests.house.source import ROOT
from tests.trainers.test_pi import FEW, FEW_INSIDE
from tests.trainers.test_recommender import SMALL
from tf2dist.system import gpus

pytestmark = pytest.mark.slow

_DEVICE = "gpu" if ON_GPU else "cpu"


def run(*command, status=0):
    """Runs `python -m *command`, which must end with this status; returns what it has printed, or its errors."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        capture_output=True,
        text=True,
        timeout=150,
        cwd=ROOT,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stderr if status else done.stdout


def test_hard_and_soft_placement(tmp_path):
    """What asks for a GPU that is nowhere is refused, unless TensorFlow may choose."""
    nowhere = f"/gpu:{len(gpus.visible())}" if ON_GPU else "/gpu:7"
    pinned = ("trainers.hello", f"--devices=/{_DEVICE}:0,{nowhere}", f"--report={tmp_path / 'it.json'}")
    there = "/cpu:0, /gpu:" if ON_GPU else "/cpu:0; "
    said = run(*pinned, status=2)
    assert said.count("\n") == 1
    assert said.startswith(f"hello: operation x - 66 cannot be placed on {nowhere}; the devices are {there}")
    run(*pinned, "--soft_placement")
    report = json.loads((tmp_path / "it.json").read_text())
    assert report["result"] == 238
    assert report["placement"][1] == {"op": "x + 300", "wanted": f"/{_DEVICE}:0", "got": f"/{_DEVICE}:0"}


def test_trainers_place_hard(tmp_path):
    """All that training does has a kernel where it asks to be, the lookup of rows too."""
    report = tmp_path / "it.json"
    run("trainers.mnist", "--strategy=mirrored", "--dataset=digits", "--epochs=5", f"--report={report}")
    found = json.loads(report.read_text())
    assert found["test_accuracy"] > 0.8
    assert any("GPU" in device for device in found["devices"]) == ON_GPU
    run("trainers.recommender", "--strategy=one", *SMALL[:-1], "--epochs=1", f"--report={report}")
    assert json.loads(report.read_text())["trainer"] == "recommender"


def test_make_train_on_one_gpu(tmp_path, monkeypatch):
    """What `make train` runs: two workers share the GPU, and all else leaves it alone."""
    if ON_GPU:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus.visible()[0])
    else:
        fake_nvidia_smi(tmp_path, monkeypatch, 1)
    report = tmp_path / "it.json"
    run("trainers.mnist", "--strategy=ps", "--dataset=digits", "--epochs=5", f"--report={report}")
    found = json.loads(report.read_text())
    assert found["test_accuracy"] > 0.8
    workers = {device.partition("/device")[0] for device in found["devices"] if "GPU" in device}
    assert len(workers) == (2 if ON_GPU else 0)
    assert all("/job:worker/" in worker for worker in workers)


@pytest.mark.parametrize("name", ["one", "mirrored"])
def test_life_is_the_same_bit_for_bit(tf, name):
    from tests.trainers.life.reference import generations
    from trainers.life import packed_board
    from trainers.life.engines import make_engine
    from trainers.life.rule import LIFE

    cells = np.random.default_rng(0).integers(0, 2, [64, 200], np.uint8)
    strategy = tf2dist.make_strategy(name, replicas=1 if name == "one" else 2)
    engine = make_engine("packed", LIFE, *cells.shape, "torus", strategy)
    assert engine.plan.strips == 1, "threads have a strip each, and a GPU has one"
    with hard_placement(), nodes_traced() as nodes:
        later = engine.advance(engine.load(packed_board.pack(cells)), 40)
    if name == "one":  # which asks for no device
        assert later[0].device.endswith(f"/device:{_DEVICE.upper()}:0")
    else:
        kernels = {node.device.rpartition("/device:")[2] for node in nodes if node.op.endswith("PartitionedCall")}
        assert {f"{_DEVICE.upper()}:{number}" for number in range(2)} <= kernels
    assert (packed_board.unpack(engine.board(later), 200) == generations(cells, LIFE, "torus", 40)).all()


def test_pi_counts_the_same_points(tf):
    """Those that every machine counts, as tests of the trainer have them."""
    from trainers.common import threefry

    with tf.device(f"/{_DEVICE}:0"):
        inside = threefry.inside(*(tf.constant(number, tf.int64) for number in (7, 0, FEW)))
    assert inside.device.endswith(f"/device:{_DEVICE.upper()}:0")
    assert int(inside) == FEW_INSIDE


@pytest.mark.parametrize("strategy", sampled(["one", "mirrored"], slow=["one"]))
def test_pi_counts_on_the_cpu_of_a_host_with_a_gpu(tmp_path, strategy):
    said = run(
        "trainers.pi", f"--strategy={strategy}", f"--samples={FEW}", "--seed=7", f"--report={tmp_path / 'it.json'}"
    )
    assert (" at work, on the CPU\n" in said) == ON_GPU
    report = json.loads((tmp_path / "it.json").read_text())
    assert report["inside"] == FEW_INSIDE
    assert any("GPU" in device for device in report["devices"]) == ON_GPU


def test_matmul(tmp_path):
    """Its sum is checked by the program against NumPy's in float64."""
    run("trainers.matmul", _DEVICE, "256", "--repeats=1", f"--report={tmp_path / 'it.json'}")
    (found,) = json.loads((tmp_path / "it.json").read_text())["runs"]
    assert found["device"] == f"/{_DEVICE}:0"


def test_hello_on_a_remote_device(tmp_path):
    """Operations on the second task's GPU, and the table of where they were."""
    devices = f"/job:worker/task:0/{_DEVICE}:0,/job:worker/task:1/{_DEVICE}:0"
    said = run(
        "launch", "local", "--workers=2", "--", "trainers.hello", f"--devices={devices}", "--log_device_placement",
        f"--report={tmp_path / 'it.json'}",
    )  # fmt: skip
    report = json.loads((tmp_path / "it.json").read_text())
    assert report["result"] == 238
    assert [row["got"] for row in report["placement"]] == [
        f"/job:worker/task:1/{_DEVICE}:0", *[f"/job:worker/task:0/{_DEVICE}:0"] * 2,
    ]  # fmt: skip
    assert any(line.split()[-3:] == ["Sub", *[f"/job:worker/task:1/{_DEVICE}:0"] * 2] for line in said.splitlines())
