"""Every operation of a step has a kernel for GPUs in this TensorFlow, which can be asked without a GPU.

Trainers place hard unless `--soft_placement` is given, and in a replica everything asks for the replica's device.
"""

import functools

import keras
import pytest

import tf2dist
from tests.conftest import every_third, sampled
from tests.gpu.traces import nodes_of, nodes_traced
from tests.models import OPTIMIZERS, TABLE_OPTIMIZERS, classifier, data, embedder, sentences
from tf2dist.layers import ShardedEmbedding

_ANYWHERE = {"Placeholder", "NoOp", "_Arg", "_Retval", "PartitionedCall", "StatefulPartitionedCall", "While",
             "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase"}  # fmt: skip
_STAND_FOR_GPUS = "CPU:2", "CPU:3"  # of the strategies below, on which nothing runs but what a GPU would run


@functools.cache
def kernels_of(operation):
    from tensorflow.python.framework import kernels

    return list(kernels.get_registered_kernels_for_op(operation).kernel)


def takes(kernel, node):
    """Is the kernel for the types of this operation?"""
    for constraint in kernel.constraint:
        value = node.attr[constraint.name]
        types = value.list.type if value.WhichOneof("value") == "list" else [value.type]
        if not {*types} <= {*constraint.allowed_values.list.type}:
            return False
    return True


def without_gpu_kernel(nodes, stand_for_gpus=_STAND_FOR_GPUS):
    """Operations that ask for a GPU, or for no device, and have a kernel for CPUs only, with their types."""
    import tensorflow as tf

    found = set()
    for node in nodes:
        on_host = "CPU" in node.device.upper() and not node.device.upper().endswith(stand_for_gpus)
        kernels = [] if node.op in _ANYWHERE or on_host else kernels_of(node.op)
        if kernels and not any(k.device_type in ("GPU", "DEFAULT") and takes(k, node) for k in kernels):
            types = {tf.as_dtype(value.type).name for value in node.attr.values() if value.type}
            found.add(" ".join([node.op, *sorted(types)]))
    return sorted(found)


@pytest.fixture(autouse=True)
def kernels_for_gpus(tf):
    if not tf.test.is_built_with_cuda():
        pytest.skip("this TensorFlow has no kernels for GPUs")


def test_the_finder_sees(tf):
    @tf.function(input_signature=[tf.TensorSpec([2], tf.int64)])
    def shuffled(x):
        with tf.device("/cpu:0"):
            joined = tf.strings.join(["a", "b"])
        return tf.random.experimental.index_shuffle(x, [1, 2], 5), joined, tf.reduce_min(x), tf.reduce_max(x)

    found = without_gpu_kernel(nodes_of(shuffled.get_concrete_function()))
    assert found == ["Min int32 int64", "RandomIndexShuffle int32 int64"]


@pytest.fixture
def replicas(tf):
    """Two replicas, each on a device that stands for a GPU."""
    from tf2dist.compat.strategy_internals import mirrored

    return mirrored(["/cpu:2", "/cpu:3"])


def sharded(optimizer, **options):
    return embedder(optimizer, functools.partial(ShardedEmbedding, **options))


def with_layers(optimizer):
    extra = keras.layers.BatchNormalization(), keras.layers.Dropout(0.3), keras.layers.ActivityRegularization(l2=0.1)
    return classifier(optimizer, *extra)


MODELS = {
    **{name: (lambda name=name: with_layers(OPTIMIZERS[name]()), data) for name in ("sgd", "momentum", "adam")},
    "averages": (lambda: classifier(keras.optimizers.Adam(clipnorm=1.0, use_ema=True)), data),
    **{f"table, {name}": (lambda name=name: embedder(TABLE_OPTIMIZERS[name]()), sentences) for name in ("sgd", "adam")},
    **{f"shards, {name}": (lambda name=name: sharded(TABLE_OPTIMIZERS[name](), shards=3), sentences)
       for name in ("sgd", "adam")},
    "one shard": (lambda: sharded(TABLE_OPTIMIZERS["sgd"](), shards=1), sentences),
}  # fmt: skip


def nodes_of_steps(tf, strategy, make, rows):
    """The nodes of an update and an evaluation of a model, as a replica traces them."""
    from tf2dist.execution.keras_train_step import KerasTrainStep

    with strategy.scope():
        model = make()
    batch = tuple(array[:16] for array in rows)
    tf2dist.fit(model, batch, batch_size=16)  # which builds it
    step, weight = KerasTrainStep(model), tf.constant(0.5)
    arguments = [tf.constant(array) for array in batch]
    for function in (step.update, step.evaluate):
        replica = functools.partial(lambda function, *batch: function(batch, weight), function)
        traced = tf.function(lambda *batch, replica=replica: strategy.run(replica, args=batch), autograph=False)
        nodes = nodes_of(traced.get_concrete_function(*arguments))
        assert len(nodes) > 50
        yield from nodes


@pytest.mark.parametrize("name", sampled(MODELS, slow=["sgd", "averages", "shards, adam"]))
def test_a_step(tf, cpu, name):
    make, rows = MODELS[name]
    nodes = list(nodes_of_steps(tf, cpu, make, rows()))
    assert any(node.device.endswith(_STAND_FOR_GPUS) for node in nodes)
    assert without_gpu_kernel(nodes) == []


@pytest.mark.parametrize(
    "name", sampled(["momentum", "averages", "table, adam", "one shard"], slow=["momentum", "table, adam"])
)
def test_a_step_of_two_replicas(tf, replicas, name):
    """With what adds up gradients, and sums of losses."""
    make, rows = MODELS[name]
    assert without_gpu_kernel(nodes_of_steps(tf, replicas, make, rows())) == []


def test_what_peers_exchange(tf, replicas, monkeypatch):
    """Numbers of all dtypes from the first one, and bytes of each."""
    import numpy as np

    from tf2dist.runtime import collectives

    monkeypatch.setattr(collectives, "peers", lambda strategy: (2, 0))
    with nodes_traced() as nodes:
        collectives.broadcast(replicas, [np.ones(3, dtype) for dtype in (bool, np.int64, np.uint8, np.float16, float)])
        collectives.all_gather(replicas, b"some")
        tf.function(lambda: collectives.all_reduce(replicas, [tf.ones([], tf.int64), tf.ones([2])]))()
    assert len([node for node in nodes if node.op == "CollectiveReduceV2"]) >= 2 * 7
    assert without_gpu_kernel(nodes) == []


@every_third("dtype", ["float32", "bfloat16", "bool", "uint8", "int32", "uint32", "int64", "uint64", "complex64"])
def test_what_peers_predict(tf, replicas, dtype):
    """Rows of all dtypes that a model may have as its output; those of replicas may be unequally many."""
    from tf2dist.runtime import collectives

    @tf.function
    def gathered(rows):
        def first_ones(rows):
            rank = tf.distribute.get_replica_context().replica_id_in_sync_group
            return rows[rank : 3 + tf.cast(rank > 0, tf.int32)]

        return collectives.gather(replicas, replicas.run(first_ones, args=(rows,)))

    numbers = tf.constant([[0, 1], [2, 3], [-4, 5], [6, 2**40 + 1]], tf.int64)
    rows = tf.cast(numbers, dtype)
    with nodes_traced() as nodes:
        found = gathered(rows)
    assert found.dtype == rows.dtype
    assert (found.numpy() == tf.concat([rows[:3], rows[1:]], 0).numpy()).all()
    # tf.distribute leaves int32, and what travels as int32, to the host.
    on_host = dtype in ("bool", "uint8", "int32", "uint32")
    assert ("CollectiveGatherV2" in {node.op for node in nodes}) != on_host
    assert without_gpu_kernel([node for node in nodes if node.device]) == []


@pytest.mark.parametrize("edges", sampled(["torus", "dead"], slow=["torus"]))
def test_life_of_two_replicas(tf, replicas, edges):
    from trainers.life import packed_board
    from trainers.life.engines import make_engine
    from trainers.life.rule import LIFE

    engine = make_engine("packed", LIFE, 12, 200, edges, replicas)
    with nodes_traced() as nodes:
        state = engine.load(packed_board.random(12, 200, seed=1))
        later, _, _ = engine.advance_observed(engine.advance(state, 3), 2)
        assert not engine.equal(later, state)
        engine.observe(later)
        engine.board(later)
    assert {"CollectiveReduceV2", "CollectiveGatherV2"} <= {node.op for node in nodes}
    assert without_gpu_kernel(nodes) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adagrad", "rmsprop"])
def test_what_keras_computes_of_sparse_gradients_on_cpus_only(tf, cpu, name):
    """docs/gpu.md says that these want soft placement; when Keras has mended it, they join the models above."""
    found = without_gpu_kernel(nodes_of_steps(tf, cpu, lambda: embedder(TABLE_OPTIMIZERS[name]()), sentences()))
    assert found == ["ScatterNd bool int64"]


def test_sums_between_replicas_and_peers(tf, replicas):
    """Of sparse gradients too, those of peers on the host."""
    from tf2dist.compat.replica_sparse_gradients import _exchange, sum_slices

    values, rows = tf.TensorSpec([None, 4]), tf.TensorSpec([None], tf.int64)

    @tf.function(input_signature=[values, rows])
    def added(values, rows):
        slices = tf.IndexedSlices(values, rows, tf.constant([50, 4], tf.int64))
        both = replicas.run(lambda: slices)
        (total,), ((one, _),) = sum_slices(replicas, [both]), _exchange([[slices]], 2)
        return total.values, total.indices, one.values, one.indices

    nodes = nodes_of(added.get_concrete_function())
    assert without_gpu_kernel([node for node in nodes if node.op != "IteratorGetNext"]) == []
    gathers = [node for node in nodes if node.op.startswith("Collective")]
    assert {node.op for node in gathers} == {"CollectiveGatherV2"}
    assert all("CPU:0" in node.device.upper() for node in gathers)
    assert {node.attr["communication_hint"].s for node in gathers} == {b"ring"}
