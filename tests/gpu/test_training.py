"""Training, evaluation and prediction on a GPU, and on two logical devices of one, against a CPU."""

import keras
import numpy as np
import pytest

import tf2dist
from tests.gpu.conftest import ON_GPU, assert_close, skip_without_bfloat16
from tests.gpu.traces import functions_traced, is_for_xla, where_computed
from tests.models import OPTIMIZERS, classifier, data, weights

pytestmark = pytest.mark.slow


def fitted(strategy, statistics=False, jit_compile="auto"):
    """A classifier after two passes, and its history."""
    with strategy.scope():
        extra = [keras.layers.BatchNormalization(momentum=0.8)] if statistics else []
        model = classifier(OPTIMIZERS["momentum"](), *extra)
        model.compile(model.optimizer, model.loss, metrics=["accuracy"], jit_compile=jit_compile)
    history = tf2dist.fit(model, data(), batch_size=16, seed=3, epochs=2, validation_data=data(1))
    return model, history.history


def test_trains_as_a_cpu_does(strategy, cpu, kind):
    # Statistics are of each replica's slice, so only one replica has those of the CPU.
    statistics = strategy.num_replicas_in_sync == 1
    (model, history), (expected, expected_history) = (fitted(where, statistics) for where in (strategy, cpu))
    replicas = [f"{kind}:{number}" for number in range(strategy.num_replicas_in_sync)]
    assert where_computed(strategy, model, data()[0]) == replicas
    in_host = "CentralStorage" in type(strategy).__name__
    copies = strategy.experimental_local_results(model.trainable_variables[0].value)
    assert [v.device.rpartition("/device:")[2] for v in copies] == (["CPU:0"] if in_host else replicas)
    assert_close(weights(model), weights(expected))
    assert history.keys() == expected_history.keys()
    assert_close([history[name] for name in history], [expected_history[name] for name in history])


def test_xla(strategy, cpu, kind):
    """Compiled for the GPU as for the CPU, on what keeps its variables with the replicas; and only if it is asked for.

    What is marked for XLA is compiled for the device that it is called on, or ends with an error.
    """
    if "CentralStorage" in type(strategy).__name__:
        with pytest.raises(ValueError, match="which XLA cannot read"):
            fitted(strategy, jit_compile=True)
        return
    with functions_traced() as functions:
        model, _ = fitted(strategy, jit_compile=True)
    assert any(map(is_for_xla, functions))
    assert where_computed(strategy, model, data()[0]) == [f"{kind}:{n}" for n in range(strategy.num_replicas_in_sync)]
    with functions_traced() as functions:
        expected, _ = fitted(cpu)
    assert not any(map(is_for_xla, functions))
    assert_close(weights(model), weights(expected))


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(tf, cpu, kind, policy):
    """Weights stay float32, float16's loss is scaled; losses are a CPU's in the same precision, to a twentieth."""
    if policy == "mixed_bfloat16":
        skip_without_bfloat16()
    keras.config.set_dtype_policy(policy)
    found = []
    try:
        for where, there in (
            (tf2dist.make_strategy("mirrored", replicas=2), [f"{kind}:0", f"{kind}:1"]),
            (cpu, ["CPU:3"]),
        ):
            with where.scope():
                model = classifier(OPTIMIZERS["sgd"]())
            assert {layer.compute_dtype for layer in model.layers} == {policy.removeprefix("mixed_")}
            assert where_computed(where, model, data()[0]) == there
            history = tf2dist.fit(model, data(), batch_size=16, seed=3, epochs=2).history["loss"]
            scale = getattr(model.optimizer, "dynamic_scale", None)
            found.append((history, scale is not None and float(keras.ops.convert_to_numpy(scale))))
            assert {v.dtype for v in model.trainable_variables} == {"float32"}
            assert tf2dist.updates(model) == 2 * 7
    finally:
        keras.config.set_dtype_policy("float32")
    (ours, our_scale), (theirs, their_scale) = found
    assert bool(our_scale) == (policy == "mixed_float16")
    assert our_scale == their_scale
    assert ours[1] < ours[0]
    assert_close([ours], [theirs], rtol=0.05)


def test_batches_wait_on_the_device(tf, kind):
    """What a replica takes, its own slice, is on its device already, and strings do not get in the way."""
    from tf2dist.execution.replica_dispatcher import ReplicaDispatcher
    from tf2dist.input.make_adapter import make_data_adapter

    strategy, rows = tf2dist.make_strategy("mirrored", replicas=2), data()[0]
    batches = tf.data.Dataset.from_tensor_slices((rows, [str(n) for n in range(103)])).batch(16)
    stream = ReplicaDispatcher(strategy).open_stream(make_data_adapter(batches), 0)
    (numbers, names), _ = next(stream.iterator)
    numbers, names = map(strategy.experimental_local_results, (numbers, names))
    assert [part.device.rpartition("/device:")[2] for part in numbers] == [f"{kind}:0", f"{kind}:1"]
    assert [part.numpy()[0] for part in names] == [b"0", b"8"]
    assert_close(numbers, [rows[:8], rows[8:16]], rtol=0, atol=0)


@pytest.mark.parametrize("as_dataset", [False, True])
def test_evaluates_and_predicts_as_a_cpu_does(tf, strategy, cpu, as_dataset):
    x, y = data()
    models = []
    for where in (strategy, cpu):
        with where.scope():
            models.append(classifier(OPTIMIZERS["sgd"]()))
    rows = tf.data.Dataset.from_tensor_slices((x, y)).batch(16) if as_dataset else (x, y)
    size = {} if as_dataset else {"batch_size": 16}
    ours, theirs = (list(tf2dist.evaluate(model, rows, return_dict=True, **size).values()) for model in models)
    assert_close([ours], [theirs])
    x = tf.data.Dataset.from_tensor_slices(x).batch(16) if as_dataset else x
    ours, theirs = (tf2dist.predict(model, x, **size) for model in models)
    assert_close([ours], [theirs])


def test_data_does_not_go_to_the_device_whole(tf):
    """Three hundred megabytes are evaluated and trained on with some of the GPU's; on CPUs it only runs."""
    rows = np.random.default_rng(0).normal(size=(6_000_000 if ON_GPU else 20_000, 12)).astype(np.float32)
    with tf2dist.make_strategy("one").scope():
        model = classifier(OPTIMIZERS["sgd"]())
    labels = np.zeros(len(rows), np.int64)
    if ON_GPU:
        tf.config.experimental.reset_memory_stats("GPU:0")
    before = tf.config.experimental.get_memory_info("GPU:0")["current"] if ON_GPU else 0
    tf2dist.evaluate(model, (rows, labels), batch_size=4000)
    tf2dist.fit(model, (rows, labels), batch_size=4000, steps_per_epoch=20)
    if ON_GPU:
        assert (
            tf.config.experimental.get_memory_info("GPU:0")["peak"] - before < rows.nbytes / 2
        )  # cuBLAS too wants some


@pytest.mark.parametrize("sharded", [False, True])
def test_a_checkpoint_of_a_gpu_goes_on_on_a_cpu(tmp_path, strategy, cpu, sharded):
    models = []
    for where, epochs in ((strategy, 1), (cpu, 2)):
        with where.scope():
            models.append(classifier(OPTIMIZERS["adam"]()))
        callback = tf2dist.Checkpoint(tmp_path, sharded=sharded)
        tf2dist.fit(models[-1], data(), batch_size=16, seed=3, epochs=epochs, callbacks=[callback])
    with cpu.scope():
        expected = classifier(OPTIMIZERS["adam"]())
    tf2dist.fit(expected, data(), batch_size=16, seed=3, epochs=2)
    assert tf2dist.updates(models[-1]) == 2 * 7
    assert_close(weights(models[-1]), weights(expected))


def test_a_table_in_the_hosts_memory(tf, cpu):
    """`central` keeps shards of a table on the host, and looks rows up for the devices."""

    def trained(strategy):
        with strategy.scope():
            table = tf2dist.layers.ShardedEmbedding(11, 4, shards=2, embeddings_initializer="zeros")
            dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=1))
            model = keras.Sequential([keras.Input((3,), dtype="int32"), table, keras.layers.Flatten(), dense])
            model.compile(keras.optimizers.Adagrad(0.1), "mse")
        random = np.random.default_rng(2)
        rows = random.integers(0, 11, (67, 3)).astype(np.int32), random.normal(size=67).astype(np.float32)
        tf2dist.fit(model, rows, batch_size=8, seed=3, epochs=2)
        return table

    table = trained(tf2dist.make_strategy("central", replicas=2))
    assert all("CPU" in shard.value.device for shard in table.trainable_variables)
    assert_close([table.get_table()], [trained(cpu).get_table()])
