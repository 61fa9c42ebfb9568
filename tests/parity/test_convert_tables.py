"""Partitioned tables that TensorFlow 1 trained, in the shards of a table here, with what the optimizer kept of them."""

import keras
import numpy as np
import pytest

from tests.parity import tf1
from tests.parity.processes import alone
from tests.parity.test_convert import converted, refused

pytestmark = pytest.mark.slow

ROWS, COLUMNS = 11, 4
IDS = np.array([[0, 5], [10, 3]], np.int32)
KEPT = {
    "Adam": (lambda tf: tf.train.AdamOptimizer(0.1), {"Adam": "_momentums", "Adam_1": "_velocities"}),
    "Adagrad": (lambda tf: tf.train.AdagradOptimizer(0.1), {"Adagrad": "_accumulators"}),
    "Momentum": (lambda tf: tf.train.MomentumOptimizer(0.1, 0.9), {"Momentum": "momentums"}),
}


def table_in_tf1(directory):
    """For each optimizer, a table in three partitions that is trained and saved; what it predicts then.

    Those of Adam are looked up in both ways.
    """
    tf = tf1.begin()
    predicted = {}
    for name, (optimizer, _), lookup in [*((n, k, "div") for n, k in KEPT.items()), ("mod", KEPT["Adam"], "mod")]:
        with tf.Graph().as_default(), tf.Session() as session:
            tf.set_random_seed(3)
            step = tf.train.get_or_create_global_step()
            table = tf.get_variable("emb/table", [ROWS, COLUMNS], partitioner=tf.fixed_size_partitioner(3))
            rows = tf.reduce_sum(tf.nn.embedding_lookup(table, IDS, partition_strategy=lookup), 1)
            y = tf.matmul(rows, tf.get_variable("out/kernel", [COLUMNS, 1])) + tf.get_variable("out/bias", [1])
            train = optimizer(tf).minimize(tf.reduce_mean(tf.square(y - 1.0)), global_step=step)
            averages = tf.train.ExponentialMovingAverage(0.9)
            with tf.control_dependencies([train]):
                train = averages.apply(tf.trainable_variables())
            session.run(tf.global_variables_initializer())
            for _ in range(3):
                session.run(train)
            tf.train.Saver().save(session, f"{directory}/{name}/model.ckpt", global_step=step)
            predicted[name] = session.run(y)
    return predicted


def table_model(optimizer="Adam", decay=None, layer="sharded"):
    """A model with its table in two shards or whole, as `--model` of the command."""
    import tf2dist.layers

    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 1, decay) if decay else 0.1
    made = {
        "Adam": lambda: keras.optimizers.Adam(rate),
        "Adagrad": lambda: keras.optimizers.Adagrad(rate),
        "Momentum": lambda: keras.optimizers.SGD(rate, momentum=0.9),
    }
    ids = keras.Input((2,), dtype="int32")
    tables = {
        "sharded": lambda: tf2dist.layers.ShardedEmbedding(ROWS, COLUMNS, shards=2, name="emb"),
        "whole": lambda: keras.layers.Embedding(ROWS, COLUMNS, name="emb"),
    }
    rows = keras.ops.sum(tables[layer]()(ids), 1)
    model = keras.Model(ids, keras.layers.Dense(1, name="out")(rows))
    model.compile(made[optimizer](), "mse")
    return model


TABLE_MODEL = "tests.parity.test_convert_tables:table_model"


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tables")
    return directory, alone(table_in_tf1, str(directory))


@pytest.mark.parametrize("optimizer", KEPT)
def test_a_partitioned_table_in_shards(tf, tables, tmp_path, optimizer):
    """The partitions of TensorFlow 1 were blocks of rows; every second row of table and slots is in a shard here."""
    directory, predicted = tables
    model = converted(tmp_path, directory / optimizer, f"{TABLE_MODEL}({optimizer!r})", "--lookup=div")
    reader = tf.train.load_checkpoint(str(directory / optimizer))
    np.testing.assert_allclose(model(IDS), predicted[optimizer], rtol=1e-5)
    for slot, attribute in KEPT[optimizer][1].items():
        theirs = reader.get_tensor(f"emb/table/{slot}") * (-0.1 if slot == "Momentum" else 1)
        assert np.ptp(theirs) > 0
        for shard, kept in enumerate(getattr(model.optimizer, attribute)[:2]):
            np.testing.assert_allclose(kept, theirs[shard::2], rtol=1e-6)
    averaged = converted(tmp_path, directory / optimizer, f"{TABLE_MODEL}({optimizer!r})", "--averages", "--lookup=div")
    shadow = reader.get_tensor("emb/table/ExponentialMovingAverage")
    np.testing.assert_array_equal(averaged.get_layer("emb").get_table(), shadow)


@pytest.mark.parametrize("layer", ["sharded", "whole"])
def test_a_partitioned_table_that_was_looked_up_in_turn(tf, tables, tmp_path, capsys, layer):
    """By default TensorFlow 1 looked up row i in partition i modulo their number; the checkpoint does not say so."""
    directory, predicted = tables
    model = f"{TABLE_MODEL}(layer={layer!r})"
    said = refused(directory / "mod", tmp_path, capsys, model=model)
    assert "holds emb/table in partitions" in said
    assert "--lookup=div if tf.nn.embedding_lookup was told so, else --lookup=mod, its default" in said
    assert said.count("\n") == 1
    found = converted(tmp_path, directory / "mod", model, "--lookup=mod")
    np.testing.assert_allclose(found(IDS), predicted["mod"], rtol=1e-5)
    wrong = converted(tmp_path, directory / "mod", model, "--lookup=div")
    assert np.abs(wrong(IDS) - predicted["mod"]).max() > 1e-3
    reader = tf.train.load_checkpoint(str(directory / "mod"))
    theirs = reader.get_tensor("emb/table/Adam")  # rows 0, 3, 6, 9 are in the first partition
    ours = np.concatenate([np.asarray(m) for m in found.optimizer._momentums[:-2]])
    ours = ours if layer == "whole" else np.insert(ours[:6], range(1, 6), ours[6:], axis=0)
    np.testing.assert_allclose(ours[[0, 3, 6, 9]], theirs[:4], rtol=1e-6)
    np.testing.assert_allclose(ours[[1, 4, 7, 10]], theirs[4:8], rtol=1e-6)


def test_momentum_under_a_schedule(tf, tables, tmp_path):
    """Sums of gradients become steps by the rate of the step that comes next, not of the first."""
    directory, _ = tables
    model = converted(tmp_path, directory / "Momentum", f"{TABLE_MODEL}('Momentum', 0.5)", "--lookup=div")
    theirs = tf.train.load_checkpoint(str(directory / "Momentum")).get_tensor("out/bias/Momentum")
    np.testing.assert_allclose(model.optimizer.momentums[-1], -0.1 * 0.5**3 * theirs, rtol=1e-6)


def test_a_map_names_a_table_not_its_shards(tf, tables, tmp_path, capsys):
    directory, _ = tables
    (tmp_path / "map.json").write_text('{"emb/embeddings_0": "emb/table"}')
    said = refused(directory / "Adam", tmp_path, capsys, f"--map={tmp_path / 'map.json'}", model=TABLE_MODEL)
    assert said == "the name map's emb/embeddings_0 is no variable of the model; the nearest name is emb/embeddings\n"
