"""`ShardedEmbedding` on two parameter servers: placed on both, and the same numbers as a dense table in one process."""

import json

import keras
import numpy as np
import pytest

import tf2dist
from tests.jobs import run_program
from tests.models import LENGTH, ROWS, TABLE_OPTIMIZERS, WORDS, sentences

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Where the program's results are; it ran once."""
    out = tmp_path_factory.mktemp("cluster") / "results.json"
    run_program(["--ps=2", "--workers=1"], "sharding", out)
    return out


@pytest.fixture(scope="module")
def results(out):
    return json.loads(out.read_text())


class Table(keras.layers.Layer):
    """Looks words up by a matrix product, so that its gradient is dense."""

    def __init__(self, table):
        super().__init__()
        self.table = self.add_weight(shape=table.shape, initializer=keras.initializers.Constant(table))

    def call(self, words):
        return keras.ops.matmul(keras.ops.one_hot(words, WORDS), self.table)


@pytest.mark.parametrize("name", TABLE_OPTIMIZERS)
def test_trains_as_a_dense_table_in_one_process(tf, results, name):
    begin = np.random.default_rng(1).normal(size=(WORDS, 4)).astype(np.float32)
    with tf2dist.make_strategy("one").scope():
        table = Table(begin)
        dense = keras.layers.Dense(3, kernel_initializer=keras.initializers.GlorotUniform(seed=1))
        layers = [keras.Input((LENGTH,), dtype="int64"), table, keras.layers.GlobalAveragePooling1D(), dense]
        model = keras.Sequential(layers)
        model.compile(TABLE_OPTIMIZERS[name](), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    tf2dist.fit(model, sentences(), batch_size=16, seed=3, epochs=2)
    trained = keras.ops.convert_to_numpy(table.table)
    assert np.abs(trained - begin).max() > 0.01
    np.testing.assert_allclose(results["tables"][name], trained, rtol=2e-4, atol=2e-5)
    assert results["updates"][name] == 2 * -(-ROWS // 16)


def test_shards_and_their_slots_are_on_different_servers(results):
    devices = results["devices"]
    assert {d.partition("/task:")[0] for d in devices} == {"/job:ps/replica:0"}
    assert len(set(devices)) == len(devices) == 2
    assert results["slots"] == [[d, d] for d in devices]  # Adam's two moments


def test_shards_begin_differently(results):
    first, second = (np.array(b) for b in results["begins"])
    assert first.shape == second.shape == (WORDS // 2, 4)
    assert np.abs(first - second).min() > 0


def test_a_model_of_two_servers_loads_in_keras(tf, out, results):
    assert tf2dist.layers.ShardedEmbedding  # Keras finds the class once it is imported
    model = keras.saving.load_model(out.with_suffix(".keras"))
    assert model.get_layer("words").shards == 2
    np.testing.assert_allclose(model.predict(sentences()[0], verbose=0), results["outputs"], rtol=1e-5, atol=1e-6)


def test_an_id_out_of_range_is_an_error_with_its_reason(results):
    assert results["error"].startswith("InvalidArgumentError")
    assert f"words: ids must be from 0 to {WORDS - 1}, found some from] [{WORDS}] [to] [{WORDS}]" in results["error"]
