"""Jobs of several processes on GPUs: workers of parameter servers, and peers that share one or have one each.

Without a GPU an `nvidia-smi` tells of one that is not there, so that the launcher divides it as it would.
"""

import json

import pytest

import tf2dist
from tests.conftest import sampled
from tests.gpu.conftest import ON_GPU, assert_close
from tests.gpu_fakes import fake_nvidia_smi
from tests.jobs import run_program
from tests.models import weights
from tests.programs import on_gpus

pytestmark = pytest.mark.slow
NO_NCCL = "tf2dist: replicas share a GPU, which NCCL refuses: gradients are added by TensorFlow's ring"


@pytest.fixture(autouse=True)
def float32(monkeypatch):
    """In all processes of a job, also in those that run nothing but a server."""
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")


@pytest.fixture
def one_gpu(tmp_path, monkeypatch):
    """The first GPU alone is to be used."""
    if ON_GPU:
        from tf2dist.system import gpus

        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus.visible()[0])
    else:
        fake_nvidia_smi(tmp_path, monkeypatch, 1)


def expected(cpu, way):
    """What the same training on one CPU comes to: weights and losses of validation."""
    _, make, _ = on_gpus.WAYS[way]
    with cpu.scope():
        model, rows = make()
    history = tf2dist.fit(model, rows(), batch_size=16, seed=3, epochs=2, validation_data=rows(1))
    return weights(model), history.history["val_loss"]


def run(layout, way, out):
    """Runs the job; returns what each process that trains has saved, by its task."""
    run_program(layout, "on_gpus", way, out, limit=200)
    return {path.stem: json.loads(path.read_text()) for path in out.glob("*.json")}


def assert_trained(found, cpu, way):
    wanted, losses = expected(cpu, way)
    assert_close(found["weights"], wanted)
    assert_close([found["history"]["val_loss"]], [losses])
    assert found["updates"] == 2 * 7


# Asynchronous workers take turns that nobody foresees; one alone makes the updates of one device.
@pytest.mark.parametrize(
    ("way", "workers"),
    sampled([("ps", 2), ("asynchronous", 1), ("local steps", 1), ("shards", 1)], slow=[("ps", 2), ("shards", 1)]),
)
def test_gpu_workers_of_a_parameter_server(cpu, kind, one_gpu, tmp_path, way, workers):
    """Weights and tables are in the server's memory, steps on the workers' GPU, and the coordinator sees none."""
    found = run(["--ps=1", f"--workers={workers}"], way, tmp_path)["chief0"]
    assert_trained(found, cpu, way)
    assert {device.partition("/task:")[0] for device in found["variables"]} == {"/job:ps/replica:0"}
    assert all(device.endswith("/device:CPU:0") for device in found["variables"])
    assert found["gpus"] == "-1"
    assert found["steps"] == [asked_of_workers(kind, way)]
    if ON_GPU:
        gpus = [name for name in found["devices"] if "GPU" in name]
        assert {name.partition("/device")[0] for name in gpus} == {
            f"/job:worker/replica:0/task:{index}" for index in range(workers)
        }


def asked_of_workers(kind, way):
    """The device that a step asks for on its worker; local steps leave it to TensorFlow."""
    return "" if way == "local steps" else f"/device:{kind}:0"


def test_several_asynchronous_workers(cpu, kind, one_gpu, tmp_path):
    """All updates are made, and the loss falls."""
    found = run(["--ps=1", "--workers=2"], "asynchronous", tmp_path)["chief0"]
    assert found["steps"] == [asked_of_workers(kind, "asynchronous")]
    assert found["updates"] == 2 * 7
    assert found["history"]["loss"][1] < found["history"]["loss"][0]


@pytest.mark.parametrize("way", sampled(["peers", "peers with a table", "peers on parts"], slow=["peers on parts"]))
def test_peers_that_share_a_gpu(cpu, kind, one_gpu, tmp_path, way):
    """As processes, or as parts of it in each: by TensorFlow's ring, which is said, to the weights of one device."""
    peers = run(["--workers=2"], way, tmp_path)
    parts = on_gpus.PARTS if way == "peers on parts" else 1
    assert peers.keys() == {"worker0", "worker1"}
    for index, found in enumerate(peers[f"worker{n}"] for n in range(2)):
        assert_trained(found, cpu, way)
        assert (found["implementation"], found["said"]) == ("RING", [NO_NCCL])
        task = f"/job:worker/replica:0/task:{index}"
        assert found["replicas"] == found["steps"] == [f"{task}/device:{kind}:{part}" for part in range(parts)]
        assert found["gpus"] is not None
    assert peers["worker0"]["weights"] == peers["worker1"]["weights"]


def test_a_gpu_each(cpu, kind, tmp_path):
    """Where there are two: NCCL within one process, and CUDA_VISIBLE_DEVICES for each of two."""
    from tf2dist.system import gpus

    if ON_GPU and len(gpus.visible()) < 2:
        pytest.skip("this machine shows one GPU, and this needs two")
    if ON_GPU:  # on CPUs there is no NCCL
        peers = run(["--workers=2", "--gpus_per_worker=1"], "peers", tmp_path)
        assert [peers[f"worker{index}"]["gpus"] for index in range(2)] == list(gpus.visible())[:2]
        for found in peers.values():
            assert_trained(found, cpu, "peers")
            assert (found["implementation"], found["said"]) == ("NCCL", [])
            assert found["replicas"] == found["steps"]
            assert all(device.endswith("/device:GPU:0") for device in found["steps"])
    found = run(["--workers=1", *(["--gpus_per_worker=2"] if ON_GPU else [])], "mirrored", tmp_path)["worker0"]
    assert_trained(found, cpu, "mirrored")
    assert found["replicas"] == found["steps"]
    assert [device.rpartition("/device:")[2] for device in found["steps"]] == [f"{kind}:0", f"{kind}:1"]
