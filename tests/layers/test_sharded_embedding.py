"""`ShardedEmbedding` does what `keras.layers.Embedding` does, with its table in several variables."""

import json

import keras
import numpy as np
import pytest

import tf2dist
from tests.conftest import every_third

ROWS, COLUMNS, BATCH = 11, 4, 8  # 11 rows: shards of different lengths
SHARDS = (1, 3)


@pytest.fixture(scope="module")
def sharded(tf):
    """The layer's class; TensorFlow's devices are made first."""
    return tf2dist.layers.ShardedEmbedding


@pytest.fixture
def table():
    """f32[11, 4]"""
    return np.random.default_rng(1).normal(size=(ROWS, COLUMNS)).astype(np.float32)


def ids_with_repeats(rows=67, length=3):
    """ids i32[67, 3], y f32[67]; few of the ids are frequent, so every batch has repeated ones."""
    random = np.random.default_rng(2)
    ids = (ROWS * random.random((rows, length)) ** 2).astype(np.int32)
    return ids, random.normal(size=rows).astype(np.float32)


class Dense(keras.layers.Layer):
    """`keras.layers.Embedding` with a dense gradient: what a table's gradient is, repeated ids summed."""

    def __init__(self, table):
        super().__init__()
        self.embeddings = self.add_weight(shape=table.shape, initializer=keras.initializers.Constant(table))

    def call(self, ids):
        return keras.ops.matmul(keras.ops.one_hot(ids, ROWS), self.embeddings)


def model_of(layer, optimizer):
    """ids i32[b, 3] -> f32[b, 1], compiled; the second layer has seeded weights."""
    dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=1))
    model = keras.Sequential([keras.Input((3,), dtype="int32"), layer, keras.layers.Flatten(), dense])
    model.compile(optimizer, "mse")
    return model


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.02),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.02),
}


@pytest.fixture(scope="module")
def expected(tf):
    """expected(name): the table after training with dense gradients on one device; each is trained once."""
    known = {}

    def train(name, start):
        if name not in known:
            with tf2dist.make_strategy("one").scope():
                layer = Dense(start)
                model = model_of(layer, OPTIMIZERS[name]())
            tf2dist.fit(model, ids_with_repeats(), batch_size=BATCH, seed=3, epochs=2)
            known[name] = keras.ops.convert_to_numpy(layer.embeddings)
        return known[name]

    return train


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_trains_as_a_dense_table(strategy, sharded, table, expected, name):
    with strategy.scope():
        layer = sharded(ROWS, COLUMNS, weights=table, shards=3)
        model = model_of(layer, OPTIMIZERS[name]())
    tf2dist.fit(model, ids_with_repeats(), batch_size=BATCH, seed=3, epochs=2)
    assert np.abs(expected(name, table) - table).max() > 0.05
    np.testing.assert_allclose(layer.get_table(), expected(name, table), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "float64"])
def test_forward_is_that_of_keras(sharded, table, shards, dtype):
    ours = sharded(ROWS, COLUMNS, weights=table, shards=shards, dtype=dtype)
    theirs = keras.layers.Embedding(ROWS, COLUMNS, weights=table, dtype=dtype)
    for ids in (np.arange(ROWS), [[10, 0, 0], [3, 10, 7]], np.zeros((2, 0), np.int64), [[1.0, 2.9]], 4):
        a, b = ours(np.asarray(ids)), theirs(np.asarray(ids))
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(a), keras.ops.convert_to_numpy(b))
    assert {v.dtype for v in ours.weights} == {v.dtype for v in theirs.weights}


@pytest.mark.parametrize("shards", SHARDS)
@every_third("jit", [True, False])
def test_gradients_are_sparse_with_each_row_once(tf, sharded, table, shards, jit):
    layer = sharded(ROWS, COLUMNS, weights=table, shards=shards)
    weight = np.random.default_rng(0).normal(size=(2, 4, COLUMNS)).astype(np.float32)

    @tf.function(jit_compile=jit)
    def gradients(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(layer(ids)) * weight)
        return tape.gradient(loss, [e.value for e in layer.embeddings])

    ids = np.array([[4, 4, 9, 0], [4, 1, 9, 10]])
    dense = np.zeros_like(table)
    np.add.at(dense, ids, 2 * table[ids] * weight)
    for shard, found in enumerate(gradients(tf.constant(ids))):
        assert isinstance(found, tf.IndexedSlices)
        used = sorted({i // shards for i in ids.ravel() if i % shards == shard})
        assert sorted(found.indices.numpy()) == used
        np.testing.assert_allclose(tf.convert_to_tensor(found).numpy(), dense[shard::shards], rtol=1e-5)


def test_ragged_ids_and_masks(tf, sharded, table):
    layer = sharded(ROWS, COLUMNS, weights=table, shards=2, mask_zero=True)
    ragged = layer(tf.ragged.constant([[1, 2], [], [10]]))
    np.testing.assert_array_equal(ragged.flat_values.numpy(), table[[1, 2, 10]])
    assert ragged.row_lengths().numpy().tolist() == [2, 0, 1]
    assert layer(np.array([[3, 0]]))._keras_mask.numpy().tolist() == [[True, False]]
    assert sharded(ROWS, COLUMNS)(np.array([[3, 0]])).shape == (1, 2, COLUMNS)
    symbolic = layer(keras.Input((None,), dtype="int32"))
    assert (symbolic.shape, symbolic.dtype) == ((None, None, COLUMNS), "float32")


@pytest.mark.parametrize("wrong", [-1, ROWS, ROWS + 1, 2**40])
def test_ids_out_of_range_are_an_error(tf, sharded, wrong):
    layer = sharded(ROWS, COLUMNS, shards=3, name="words")
    layer.build()
    for call in (layer, tf.function(layer.call)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="words: ids must be from 0 to 10, found"):
            call(tf.constant([[3, wrong]], tf.int64))


@pytest.mark.slow
def test_how_large_gradients_travel(tf, sharded):
    """What reaches `update_step`, and which operations of the table's size an update is made of, by optimizer.

    Fails when Keras's optimizers become better, or worse, than the layer's docstring says.
    """
    rows = 1009  # no other tensor has a side of this length
    found = {}
    others = {"adamw": keras.optimizers.AdamW, "ftrl": keras.optimizers.Ftrl, "adadelta": keras.optimizers.Adadelta}
    for name, make in (OPTIMIZERS | others).items():
        layer = sharded(rows, COLUMNS, shards=1)
        layer.build()
        optimizer = make()
        optimizer.build(layer.trainable_variables)
        (weight,) = layer.embeddings
        kinds = []

        def spy(gradient, variable, rate, update=optimizer.update_step, kinds=kinds):
            kinds.append(type(gradient))
            return update(gradient, variable, rate)

        optimizer.update_step = spy

        @tf.function
        def update(ids, layer=layer, optimizer=optimizer):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(ids))
            gradients = tape.gradient(loss, [e.value for e in layer.embeddings])
            optimizer.apply(gradients, layer.embeddings)

        graph = update.get_concrete_function(tf.TensorSpec([None], tf.int32)).graph
        assert kinds == [tf.IndexedSlices]
        nodes = graph.get_operations()
        handle = next(inner for outer, inner in graph.captures if outer is weight.value.handle)
        users = [n for n in nodes if any(t is handle for t in n.inputs)]
        writes = {n.type for n in users if "Scatter" in n.type or "Assign" in n.type}
        dense = {n.type for n in nodes for t in n.outputs if t.shape.rank and t.shape[0] == rows}
        found[name] = (writes, bool(dense))
    assert found["sgd"] == ({"ResourceScatterSub"}, False)
    # These write rows of the table only, but compute with all of their accumulators.
    assert found["adagrad"] == found["rmsprop"] == ({"ResourceScatterSub"}, True)
    assert found["adadelta"] == ({"ResourceScatterAdd"}, True)
    for name in ("momentum", "adam", "adamw", "ftrl"):
        writes, dense = found[name]
        assert dense
        assert writes & {"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"}


INITIALIZERS = {
    "uniform": lambda: "uniform",
    "normal": lambda: keras.initializers.RandomNormal(seed=5),
    "glorot": lambda: keras.initializers.GlorotUniform(seed=5),
    "he": lambda: keras.initializers.HeNormal(),
    "lecun": lambda: keras.initializers.LecunUniform(seed=5),
    "generator": lambda: keras.initializers.RandomNormal(seed=keras.random.SeedGenerator(5)),
}


@pytest.mark.parametrize("name", INITIALIZERS)
def test_shards_begin_as_parts_of_one_table(sharded, name):
    keras.utils.set_random_seed(1)
    initializer, rows, columns = INITIALIZERS[name](), 3000, 8
    layer = sharded(rows, columns, initializer, shards=3)
    layer.build()
    parts = [keras.ops.convert_to_numpy(e) for e in layer.embeddings]
    correlations = np.corrcoef([p.ravel() for p in parts])[np.triu_indices(3, 1)]
    assert np.abs(correlations).max() < 0.05  # 24,000 numbers: the standard error is below 0.012
    whole = keras.layers.Embedding(rows, columns, initializer)
    whole.build()
    spread = np.std(keras.ops.convert_to_numpy(whole.embeddings))
    np.testing.assert_allclose([p.std() for p in parts], spread, rtol=0.03)


class OwnInitializer(keras.initializers.Initializer):
    """Random numbers by a seed, in a class that Keras does not know."""

    def __init__(self, seed):
        self.seed = seed

    def __call__(self, shape, dtype=None):
        return np.random.default_rng(self.seed).normal(size=shape).astype(np.float32)

    def get_config(self):
        return {"seed": self.seed}


def test_shards_by_an_own_initializer_differ(sharded):
    layer = sharded(6, 2, OwnInitializer(3), shards=2)
    layer.build()
    table = layer.get_table()
    assert not np.isclose(table[0::2], table[1::2]).any()


def test_seeds_make_tables_again(sharded):
    def tables(seed):
        normal = keras.initializers.RandomNormal(seed=seed)
        layers = [sharded(ROWS, COLUMNS, normal, shards=3) for _ in range(2)]
        for layer in layers:
            layer.build()
        return [layer.get_table() for layer in layers]

    first, again = tables(7)
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - tables(8)[0]).min() > 0
    one, theirs = sharded(ROWS, COLUMNS, keras.initializers.RandomNormal(seed=7)), keras.layers.Embedding(
        ROWS, COLUMNS, keras.initializers.RandomNormal(seed=7)
    )  # fmt: skip
    one.build()
    theirs.build()
    np.testing.assert_array_equal(one.get_table(), keras.ops.convert_to_numpy(theirs.embeddings))


def test_no_initializer_is_asked_for_the_whole_table(sharded):
    shapes = []

    def zeros(shape, dtype=None):
        shapes.append(tuple(shape))
        return keras.ops.zeros(shape, dtype)

    sharded(ROWS, COLUMNS, zeros, shards=3).build()
    assert shapes == [(4, COLUMNS), (4, COLUMNS), (3, COLUMNS)]


def test_constants(sharded, table):
    for value in (0.5, table):
        layer = sharded(ROWS, COLUMNS, keras.initializers.Constant(value), shards=3)
        layer.build()
        np.testing.assert_array_equal(layer.get_table(), np.broadcast_to(np.float32(value), table.shape))


def test_regularizers_and_constraints(sharded, table):
    layers = [
        make(
            ROWS,
            COLUMNS,
            weights=table,
            embeddings_regularizer=keras.regularizers.L1L2(0.1, 0.2),
            embeddings_constraint=keras.constraints.MaxNorm(1.0, axis=1),
            **arguments,
        )
        for make, arguments in ((sharded, {"shards": 3}), (keras.layers.Embedding, {}))
    ]
    ours, theirs = [float(sum(layer.losses)) for layer in layers]
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert theirs > 1
    for layer in layers:
        optimizer = keras.optimizers.SGD(0.0)
        optimizer.apply([keras.ops.zeros(v.shape) for v in layer.weights], layer.trainable_variables)
    np.testing.assert_allclose(layers[0].get_table(), layers[1].embeddings, rtol=1e-6)
    assert np.linalg.norm(layers[0].get_table(), axis=1).max() < 1.001


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"shards": 0}, "shards must be a positive integer, found 0"),
        ({"shards": 2.0}, "shards must be a positive integer, found 2.0"),
        ({"shards": ROWS + 1}, "shards=12 are more than the 11 rows"),
        ({"input_dim": -3}, "input_dim must be a positive integer, found -3"),
        ({"output_dim": True}, "output_dim must be a positive integer, found True"),
        ({"weights": np.zeros((ROWS, 3))}, r"the table is f\[11, 4\], found shape \[11, 3\]"),
        ({"embeddings_initializer": "orthogonal"}, "makes a matrix as a whole"),
        ({"embeddings_regularizer": "orthogonal_regularizer"}, "not the sum of those of its shards"),
        ({"embeddings_constraint": "unit_norm"}, "looks at rows together"),
        (
            {"embeddings_constraint": {"class_name": "MaxNorm", "config": {"max_value": 100.0}}},
            "looks at rows together",
        ),
        ({"embeddings_constraint": {"class_name": "MaxNorm", "config": {"max_value": 0.01}}}, "looks at rows together"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(sharded, arguments, said):
    with pytest.raises(ValueError, match=said):
        sharded(**{"input_dim": ROWS, "output_dim": COLUMNS, "shards": 2} | arguments).build()


@pytest.mark.slow
def test_config_and_saving(tmp_path, sharded, table):
    layer = sharded(
        ROWS, COLUMNS, "he_normal", "l2", keras.constraints.MaxNorm(3.0, axis=1), True, shards=3,
        dtype="mixed_bfloat16", name="words", trainable=False,
    )  # fmt: skip
    assert sharded.from_config(layer.get_config()).get_config() == layer.get_config()
    assert json.loads(json.dumps(layer.get_config()))["shards"] == 3
    undecided = sharded(ROWS, COLUMNS)
    assert undecided.get_config()["shards"] is None
    undecided.build()
    assert undecided.get_config()["shards"] == 1

    model = model_of(sharded(ROWS, COLUMNS, weights=table, shards=3), "adam")
    ids, y = ids_with_repeats()
    model.fit(ids, y, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(ids, verbose=0), model.predict(ids, verbose=0))
    assert loaded.layers[0].shards == 3
    model.save_weights(tmp_path / "model.weights.h5")
    two = model_of(sharded(ROWS, COLUMNS, shards=2), "sgd")
    two.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(two.layers[0].get_table(), model.layers[0].get_table())


def test_other_tables(tmp_path, sharded, table):
    theirs = keras.layers.Embedding(ROWS, COLUMNS, weights=table)
    ours = sharded(ROWS, COLUMNS, shards=3)
    ours.set_table(theirs.embeddings * 2)
    np.testing.assert_array_equal(ours.get_table(), 2 * table)
    with pytest.raises(ValueError, match=r"words: the table is f\[10, 4\], found shape \[11, 4\]"):
        sharded(ROWS - 1, COLUMNS, name="words").set_table(table)
    model_of(ours, "sgd").save_weights(tmp_path / "ours.weights.h5")
    with pytest.raises(ValueError, match=r"shard 1 of 3 of the saved one has shape \[4, 4\], not \[3, 4\]"):
        model_of(sharded(ROWS - 1, COLUMNS, shards=2), "sgd").load_weights(tmp_path / "ours.weights.h5")
