"""What this process does with its GPUs, with a `tf.config` that tells of GPUs which are not there."""

import types

import pytest

import tf2dist
from tf2dist import Cluster, Task
from tf2dist.runtime import choose_all_reduce, devices, tensorflow_config_proto
from tf2dist.runtime.choose_all_reduce import Reduction, choose


class FakeConfig:
    """The GPUs of a machine as `tf.config` has them before TensorFlow makes its devices."""

    def __init__(self, gpus, visible=None, parts=None):
        self.gpus = [types.SimpleNamespace(name=f"/physical_device:GPU:{n}") for n in range(gpus)]
        self.visible = [self.gpus[n] for n in (range(gpus) if visible is None else visible)]
        self.parts = {self.gpus[n].name: [object()] * count for n, count in (parts or {}).items()}
        self.growth, self.made = [], False

    def install(self, tf, monkeypatch):
        monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind=None: list(self.visible))
        monkeypatch.setattr(tf.config, "get_logical_device_configuration", lambda gpu: self.parts.get(gpu.name))
        monkeypatch.setattr(tf.config, "set_logical_device_configuration", self._divide)
        monkeypatch.setattr(tf.config, "set_visible_devices", self._show)
        monkeypatch.setattr(tf.config.experimental, "set_memory_growth", self._grow)
        return self

    def _change(self):
        if self.made:
            raise RuntimeError("Physical devices cannot be modified after being initialized")

    def _grow(self, gpu, enabled):
        self._change()
        assert enabled
        self.growth.append(gpu.name[-1])

    def _divide(self, gpu, parts):
        self._change()
        self.parts[gpu.name] = parts

    def _show(self, shown, kind):
        self._change()
        self.visible = shown


@pytest.mark.parametrize(
    ("gpus", "processes", "shared_by", "means"),
    [
        ([], 1, 1, Reduction.DEFAULT),
        ([], 3, 2, Reduction.DEFAULT),
        ([0], 1, 1, Reduction.DEFAULT),
        ([0, 1], 1, 1, Reduction.NCCL),
        ([0, 0], 1, 1, Reduction.ONE_DEVICE),
        ([0, 1, 1], 1, 1, Reduction.ONE_DEVICE),
        ([0], 2, 1, Reduction.NCCL),
        ([0, 1], 2, 1, Reduction.NCCL),
        ([0], 2, 2, Reduction.RING),
        ([0, 0], 2, 1, Reduction.RING),
    ],
)
def test_nccl_only_where_no_two_replicas_are_on_one_gpu(gpus, processes, shared_by, means):
    assert choose(gpus, processes, shared_by) is means


def test_every_gpu_that_is_visible_and_every_part_of_one(tf, monkeypatch):
    FakeConfig(3, visible=[1, 2], parts={2: 2}).install(tf, monkeypatch)
    assert devices.replica_devices(None) == ["/gpu:0", "/gpu:1", "/gpu:2"]
    assert devices.physical_gpus(["/gpu:0", "/gpu:1", "/gpu:2"]) == [0, 1, 1]
    assert devices.physical_gpus(["/cpu:0"]) == []
    with pytest.raises(ValueError, match="4 replicas need 4 GPUs, and there are 3; CUDA_VISIBLE_DEVICES='' uses CPUs"):
        devices.replica_devices(4)


def test_gpus_that_the_program_has_hidden_are_not_used(tf, monkeypatch):
    FakeConfig(2, visible=[]).install(tf, monkeypatch)
    monkeypatch.setattr(devices, "make_virtual_cpus", lambda count: None)
    assert devices.replica_devices(2) == ["/cpu:0", "/cpu:1"]


def test_memory_is_taken_as_it_is_needed_or_up_to_a_limit(tf, monkeypatch):
    grown = FakeConfig(3, parts={1: 2}).install(tf, monkeypatch)
    devices.replica_devices(1)
    assert grown.growth == ["0", "2"]  # the program has divided the other one itself
    limited = FakeConfig(2).install(tf, monkeypatch)
    monkeypatch.setenv("TF2DIST_GPU_MEMORY", "4000")
    devices.replica_devices(1)
    assert limited.growth == []
    assert [[part.memory_limit for part in parts] for parts in limited.parts.values()] == [[4000], [4000]]
    monkeypatch.setenv("TF2DIST_GPU_MEMORY", "4 GB")
    with pytest.raises(ValueError, match="TF2DIST_GPU_MEMORY is '4 GB'; it must be a whole number above 0"):
        devices.replica_devices(1)


def test_a_program_that_has_used_its_gpus_already(tf, monkeypatch):
    """Its memory stays as it is; but a coordinator would keep the memory that its workers need."""
    FakeConfig(1).install(tf, monkeypatch).made = True
    assert devices.replica_devices(1) == ["/gpu:0"]
    with pytest.raises(ValueError, match=r"has taken this process's GPUs already.*call tf2dist.join"):
        devices.hide_gpus()


def test_a_coordinator_hides_them(tf, monkeypatch):
    """Before its strategy is made, which lists devices and so takes memory."""
    from tf2dist.runtime import make_strategy

    seen, config = [], FakeConfig(2).install(tf, monkeypatch)
    monkeypatch.setattr(tensorflow_config_proto, "use", lambda cluster: None)
    for name in ("use_own_executors", "cancel_by_own_manager", "run_operations_without_functions"):
        monkeypatch.setattr(make_strategy, name, lambda: None)
    for name in ("coordinator_of", "place_by_bytes"):
        monkeypatch.setattr(make_strategy, name, lambda strategy, *rest: None)
    monkeypatch.setattr(make_strategy, "release_gil_in_remote_calls", lambda timeout: None)
    monkeypatch.setattr(tf.distribute, "ParameterServerStrategy", lambda resolver: seen.append(list(config.visible)))
    cluster = Cluster({"chief": ("a:1",), "worker": ("b:1",), "ps": ("c:1",)}, Task("chief", 0))
    make_strategy.make_strategy("ps", cluster=cluster)
    assert seen == [[]]


def test_servers_grow_or_have_a_limit_and_a_ps_has_no_gpu(tf, monkeypatch):
    FakeConfig(2).install(tf, monkeypatch)
    cluster = Cluster({"chief": ("a:1",), "worker": ("b:1",), "ps": ("c:1",)}, Task("worker", 0))
    options = tensorflow_config_proto.make_for_server(cluster).gpu_options
    assert options.allow_growth
    assert not options.experimental.virtual_devices
    monkeypatch.setenv("TF2DIST_GPU_MEMORY", "4000")
    limits = tensorflow_config_proto.make_for_server(cluster).gpu_options.experimental.virtual_devices
    assert [list(gpu.memory_limit_mb) for gpu in limits] == [[4000.0], [4000.0]]
    ps = tensorflow_config_proto.make_for_server(cluster.at(Task("ps", 0)))
    assert (ps.device_count["GPU"], len(ps.gpu_options.experimental.virtual_devices)) == (0, 0)


@pytest.mark.parametrize(
    ("gpus", "parts", "shared_by", "accelerators", "implementation", "said"),
    [
        (0, {}, "", {}, "AUTO", 0),
        (2, {}, "", {"GPU": 2}, "NCCL", 0),
        (1, {}, "2", {"GPU": 1}, "RING", 1),
        (1, {0: 2}, "", {"GPU": 2}, "RING", 1),
        (1, {0: 2}, "2", {"GPU": 2}, "RING", 1),
    ],
)
def test_peers_train_on_their_gpus(tf, monkeypatch, caplog, gpus, parts, shared_by, accelerators, implementation, said):
    """TensorFlow counts none by itself with its resolver of a given cluster."""
    from tf2dist.runtime import make_strategy

    made = {}
    FakeConfig(gpus, parts=parts).install(tf, monkeypatch)
    monkeypatch.setattr(devices, "make_virtual_cpus", lambda count: None)
    monkeypatch.setattr(tensorflow_config_proto, "use", lambda cluster: None)
    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", lambda **options: made.update(options))
    monkeypatch.setenv("TF2DIST_GPUS_SHARED_BY", shared_by)
    cluster = Cluster({"worker": ("a:1", "b:1")}, Task("worker", 1))
    with caplog.at_level("INFO", "tf2dist"):
        make_strategy.make_strategy("multiworker", cluster=cluster)
    assert made["cluster_resolver"].num_accelerators() == accelerators
    assert made["communication_options"].implementation.value == implementation
    assert (
        caplog.text.count("replicas share a GPU, which NCCL refuses: gradients are added by TensorFlow's ring") == said
    )


@pytest.mark.parametrize(("parts", "operations"), [({}, type(None)), ({0: 2}, "ReductionToOneDevice")])
def test_mirrored_on_parts_of_one_gpu(tf, monkeypatch, caplog, parts, operations):
    FakeConfig(2, parts=parts).install(tf, monkeypatch)
    with caplog.at_level("INFO", "tf2dist"):
        found = choose_all_reduce.within_process(["/gpu:0", "/gpu:1"])
    if parts:
        assert type(found).__name__ == operations
        assert "gradients are added by a reduction on one device" in caplog.text
    else:
        assert found is None


@pytest.mark.slow
def test_gradients_added_on_one_device(tf, monkeypatch):
    """As on parts of one GPU, here of a CPU: the numbers of one device."""
    import numpy as np

    from tests.models import OPTIMIZERS, classifier, data, weights
    from tf2dist.runtime import make_strategy

    def trained(strategy):
        with strategy.scope():
            model = classifier(OPTIMIZERS["momentum"]())
        tf2dist.fit(model, data(), batch_size=16, seed=3, epochs=2, verbose=0)
        return weights(model)

    expected = trained(tf2dist.make_strategy("one"))
    monkeypatch.setattr(devices, "physical_gpus", lambda replicas: [0] * len(replicas))
    strategy = make_strategy._mirrored.__wrapped__("/cpu:0", "/cpu:1")
    assert isinstance(strategy.extended._cross_device_ops, tf.distribute.ReductionToOneDevice)
    for ours, theirs in zip(trained(strategy), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)
