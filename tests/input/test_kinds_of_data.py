"""Everything that `fit`, `evaluate` and `predict` take as data, on the strategies of one process."""

import time

import keras
import numpy as np
import pytest

import tf2dist
from tests.models import CLASSES, OPTIMIZERS, ROWS, classifier, data, weights

BATCH = 16
STEPS = -(-ROWS // BATCH)


def made(strategy, optimizer="sgd"):
    with strategy.scope():
        return classifier(OPTIMIZERS[optimizer]())


def same(ours, theirs):
    for a, b in zip(weights(ours), weights(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_predict(strategy, tf):
    """Arrays by themselves, tuples, datasets; the last batch does not divide; the order is kept."""
    x, y = data()
    model = made(strategy)
    expected = keras.ops.convert_to_numpy(model(x))
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    for kind in (x, (x,), (x, y), dataset, dataset.map(lambda x, y: x), lambda context: dataset):
        found = tf2dist.predict(model, kind, **({"batch_size": 10} if isinstance(kind, (np.ndarray, tuple)) else {}))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(tf2dist.predict(model, dataset, steps=2), expected[: 2 * BATCH], rtol=1e-5, atol=1e-6)
    one = tf2dist.predict(model, x[:1])  # fewer rows than replicas
    np.testing.assert_allclose(one, expected[:1], rtol=1e-5, atol=1e-6)


def test_predict_with_several_outputs_and_without_compiling(strategy):
    with strategy.scope():
        inputs = keras.Input((12,), name="x")
        a = keras.layers.Dense(3, name="a")(inputs)
        model = keras.Model({"x": inputs}, {"a": a, "b": keras.layers.Dense(2, name="b")(a)})
    x, _ = data()
    found = tf2dist.predict(model, {"x": x}, batch_size=7)
    for name, value in model({"x": x}).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_predict_after_training_uses_the_trained_weights(strategy):
    x, y = data()
    model = made(strategy, "adam")
    before = tf2dist.predict(model, x)
    tf2dist.fit(model, (x, y), epochs=2)
    after = tf2dist.predict(model, x)
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(after, keras.ops.convert_to_numpy(model(x)), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("one_hot", [False, True])
def test_class_weight(strategy, tf, one_hot):
    x, y = data()
    labels = np.eye(CLASSES, dtype=np.float32)[y] if one_hot else y
    loss = keras.losses.CategoricalCrossentropy if one_hot else keras.losses.SparseCategoricalCrossentropy
    weight = {0: 0.5, 2: 3.0}

    def compiled():
        model = classifier(OPTIMIZERS["sgd"]())
        model.compile(keras.optimizers.SGD(0.1), loss(from_logits=True))
        return model

    theirs = compiled()
    theirs.fit(x, labels, batch_size=BATCH, shuffle=False, epochs=2, class_weight=weight, verbose=0)
    dataset = tf.data.Dataset.from_tensor_slices((x, labels)).batch(BATCH)
    for kind, more in (((x, labels), {"batch_size": BATCH, "shuffle": False}), (dataset, {})):
        with strategy.scope():
            model = compiled()
        tf2dist.fit(model, kind, epochs=2, class_weight=weight, **more)
        same(model, theirs)


@pytest.mark.slow
def test_class_weight_times_sample_weight(tf):
    x, y = data()
    given = np.linspace(0, 2, ROWS).astype(np.float32)
    theirs = made(tf2dist.make_strategy("one"))
    tf2dist.fit(theirs, (x, y, given * np.array([1, 2, 3], np.float32)[y]), shuffle=False)
    model = made(tf2dist.make_strategy("one"))
    tf2dist.fit(model, (x, y, given), shuffle=False, class_weight={0: 1.0, 1: 2.0, 2: 3.0})
    same(model, theirs)
    model = made(tf2dist.make_strategy("one"))
    tf2dist.fit(model, (x, y, given[:, np.newaxis]), shuffle=False, class_weight={0: 1.0, 1: 2.0, 2: 3.0})
    same(model, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("given", [None, "rows", "column", "words"])
def test_class_weight_of_words(tf, given):
    """Labels [b, t, 1], one a word."""
    random = np.random.default_rng(3)
    x = random.normal(size=(8, 5, 4)).astype(np.float32)
    y = random.integers(0, 3, (8, 5, 1))
    rows, words = np.linspace(0, 2, 8)[:, None], np.linspace(0, 2, 40).reshape(8, 5)
    weights, *sent = {None: (1.0,), "rows": (rows, rows[:, 0]), "column": (rows, rows), "words": (words, words)}[given]
    of_words = (weights * np.array([1.0, 2.0, 3.0])[y[..., 0]]).astype(np.float32)

    def trained(*data, **options):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((5, 4)), keras.layers.Dense(3)])
        model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        tf2dist.fit(model, data, batch_size=4, shuffle=False, **options)
        return model

    theirs = trained(x, y, of_words)
    same(trained(x, y, *sent, class_weight={0: 1.0, 1: 2.0, 2: 3.0}), theirs)


@pytest.mark.slow
def test_no_class_has_a_weight(tf):
    model, theirs = (made(tf2dist.make_strategy("one")) for _ in range(2))
    tf2dist.fit(model, data(), shuffle=False, class_weight={})
    tf2dist.fit(theirs, data(), shuffle=False)
    same(model, theirs)


@pytest.mark.slow
def test_a_function_of_the_input_context(strategy, tf):
    """Each replica takes batches of its own; the function shards, and says how large they are."""
    x, y = (a[:96] for a in data())
    contexts = []

    def make(context):
        contexts.append((context.num_input_pipelines, context.num_replicas_in_sync))
        per_replica = context.get_per_replica_batch_size(BATCH)
        dataset = tf.data.Dataset.from_tensor_slices((x, y))
        return dataset.shard(context.num_input_pipelines, context.input_pipeline_id).batch(per_replica)

    model = made(strategy)
    tf2dist.fit(model, make, epochs=3, steps_per_epoch=6)
    theirs = made(tf2dist.make_strategy("one"))
    tf2dist.fit(theirs, (x, y), batch_size=BATCH, shuffle=False, epochs=3)
    same(model, theirs)
    assert (1, strategy.num_replicas_in_sync) in contexts
    assert tf2dist.evaluate(model, make, return_dict=True) == pytest.approx(
        tf2dist.evaluate(model, (x, y), return_dict=True), rel=1e-5
    )


def test_a_function_needs_a_length_and_returns_a_dataset(tf):
    model = made(tf2dist.make_strategy("one"))
    with pytest.raises(ValueError, match="steps_per_epoch"):
        tf2dist.fit(model, lambda context: None)
    with pytest.raises(ValueError, match=r"must return a tf.data.Dataset, found list"):
        tf2dist.fit(model, lambda context: [1], steps_per_epoch=1)


@pytest.mark.slow
def test_a_dataset_made_by_python(strategy, tf):
    x, y = data()
    spec = (tf.TensorSpec([12], tf.float32), tf.TensorSpec([], tf.int64))
    dataset = tf.data.Dataset.from_generator(lambda: zip(x, y, strict=True), output_signature=spec).batch(BATCH)
    model = made(strategy)
    tf2dist.fit(model, dataset, epochs=2)
    theirs = made(tf2dist.make_strategy("one"))
    tf2dist.fit(theirs, (x, y), batch_size=BATCH, shuffle=False, epochs=2)
    same(model, theirs)


@pytest.mark.slow
def test_validation_as_keras_asks_for_it(strategy):
    model = made(strategy)
    history = tf2dist.fit(
        model, data(), epochs=4, validation_data=data(), validation_batch_size=50, validation_freq=2
    ).history
    assert len(history["loss"]) == 4
    assert len(history["val_loss"]) == 2
    assert history["val_loss"][-1] == pytest.approx(tf2dist.evaluate(model, data(), return_dict=True)["loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("rows", "arguments", "message"),
    [
        ("few", {}, "as (x,), (x, y) or (x, y, sample_weight), found 4 of them"),
        ("examples", {"batch_size": 4}, f"tf2dist.Examples come in batches of {BATCH}, found batch_size=4"),
        ("dataset", {"class_weight": {0.5: 1.0}}, "class_weight must map classes 0, 1, ... to weights"),
        ("dataset", {"class_weight": {"a": 1.0}}, "class_weight must map classes 0, 1, ... to weights"),
        ("dataset", {"class_weight": {0: "a"}}, "class_weight must map classes 0, 1, ... to weights"),
        ("arrays", {"batch_size": 2.5}, "batch_size must be a whole number, found 2.5"),
        ("arrays", {"validation_data": (*data(),), "validation_batch_size": 2.5}, "batch_size must be a whole number"),
        ("arrays", {"shuffle": "batch"}, "shuffle='batch' must be True or False"),
        ("arrays", {"seed": 1.5}, "seed must be a whole number, found 1.5"),
        ("generator", {"seed": "a"}, "seed must be a whole number, found 'a'"),
        ("fewer labels", {"batch_size": 4}, "arrays must have the same number of rows, found 20 and 3"),
        ("matrix and labels", {"batch_size": 0}, "batch_size must be at least 1, found 0"),
        ("dataset", {"validation_data": "rows"}, "found str"),
        ("empty", {}, "the data is empty: it has no batches"),
        ("filtered", {}, "the data is empty: it has no batches"),
        ("endless", {}, "the data is endless: say how much of it to use with steps_per_epoch"),
        ("filtered", {"steps_per_epoch": 3}, "ran out early"),
        ("function", {"batch_size": 4, "steps_per_epoch": 1}, "batch_size is for arrays, found batch_size=4 for a fun"),
        ("object", {}, "a generator or another iterable of batches"),
        ("columns", {}, "12"),
        ("labels", {}, "target.shape=(None, 3), output.shape=(None, 3)"),
    ],
)
def test_data_that_cannot_be_used(tf, rows, arguments, message):
    x, y = data()
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    kinds = {
        "few": (x, y, y, y),
        "dataset": dataset,
        "examples": tf2dist.Examples((x, y), BATCH),
        "empty": dataset.take(0),
        "endless": dataset.repeat(),
        "filtered": dataset.filter(lambda x, y: False),
        "generator": iter([(x, y)]),
        "arrays": (x, y),
        "fewer labels": (tf.sparse.from_dense(x[:20]), y[:3]),
        "matrix and labels": (tf.sparse.from_dense(x), y),
        "function": lambda context: dataset,
        "object": object(),
        "columns": (x[:, :5], y),
        "labels": (x, np.stack([y, y, y], 1)),
    }
    with pytest.raises(ValueError) as caught:
        tf2dist.fit(made(tf2dist.make_strategy("one")), kinds[rows], **arguments)
    assert message in str(caught.value)


def test_a_dataset_that_ends_before_it_says(strategy, tf):
    short = tf.data.Dataset.from_tensor_slices(data()).batch(BATCH).filter(lambda x, y: True)
    with pytest.raises(ValueError, match="ran out early"):
        tf2dist.evaluate(made(strategy), short, steps=STEPS + 1, return_dict=True)


@pytest.mark.slow
def test_class_weight_of_labels_of_unknown_size_and_of_unknown_classes(tf):
    """A column of classes is one whatever its spec says of its size, and a negative class has weight 1, as in Keras."""
    from tf2dist.input.class_weight import ClassWeight

    weigh = ClassWeight.of({0: 2.0, 1: 3.0})
    unknown = tf.function(weigh, input_signature=[tf.TensorSpec([None, 1]), tf.TensorSpec([None, None])])
    x = np.zeros([3, 1], np.float32)
    assert unknown(x, [[0.0], [1.0], [2.0]])[2].numpy().tolist() == [2.0, 3.0, 1.0]
    assert unknown(x, [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])[2].numpy().tolist() == [2.0, 3.0, 2.0]
    assert weigh(x, tf.constant([-1, 0, 5]))[2].numpy().tolist() == [1.0, 2.0, 1.0]
    far = ClassWeight.of({10**12: 4.0, -1: 3.0, 1: 2.0})
    assert far(x, tf.constant([-1, 0, 1, 10**12]))[2].numpy().tolist() == [3.0, 1.0, 2.0, 4.0]


def test_class_weight_of_classes_below_zero(tf):
    """As of a hinge loss, in Keras too."""
    x, y = data()
    y = np.where(y == 0, -1, 1)

    def compiled():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input(x.shape[1:]), keras.layers.Flatten(), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "hinge")
        return model

    arguments = {"batch_size": BATCH, "shuffle": False, "class_weight": {-1: 3.0, 1: 0.5}, "verbose": 0}
    theirs, ours = compiled(), compiled()
    theirs.fit(x, y, **arguments)
    tf2dist.fit(ours, x, y, **arguments)
    same(ours, theirs)


@pytest.mark.slow
def test_the_first_order_of_a_dataset_of_unknown_length(strategy, tf):
    """It is what Keras trains the first epoch on."""

    def shuffled():
        rows = tf.data.Dataset.from_tensor_slices(data()).shuffle(ROWS, seed=5)
        return rows.filter(lambda x, y: y < 2).batch(BATCH)

    with strategy.scope():
        ours = classifier(OPTIMIZERS["sgd"]())
    theirs = classifier(OPTIMIZERS["sgd"]())
    expected = theirs.fit(shuffled(), verbose=0).history["loss"]
    found = tf2dist.fit(ours, shuffled(), verbose=0).history["loss"]
    assert found == pytest.approx(expected, rel=1e-5)
    same(ours, theirs)


@pytest.mark.slow
def test_a_call_reads_as_many_passes_as_it_trains_on(strategy, tf):
    """A pass that begins draws the dataset's next order, so that one too many would change the next call's."""
    begun = []

    def rows():
        begun.append(None)
        yield from zip(*data(), strict=True)

    x, y = data()
    signature = (tf.TensorSpec(x.shape[1:], x.dtype), tf.TensorSpec([], y.dtype))
    dataset = tf.data.Dataset.from_generator(rows, output_signature=signature).batch(BATCH)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(-(-ROWS // BATCH)))
    with strategy.scope():
        model = classifier(OPTIMIZERS["sgd"]())
    for calls, epochs in ((2, 2), (3, 1), (5, 2)):
        tf2dist.fit(model, dataset, epochs=epochs, verbose=0)
        time.sleep(0.3)  # for what is read ahead
        assert len(begun) == calls


@pytest.mark.slow
def test_orders_go_on_in_the_next_call(strategy, tf):
    """Three calls of one epoch see the orders of one call of three."""

    def shuffled():
        return tf.data.Dataset.from_tensor_slices(data()).shuffle(ROWS, seed=5).batch(BATCH)

    losses = []
    for calls, epochs in ((1, 3), (3, 1)):
        with strategy.scope():
            model = classifier(OPTIMIZERS["sgd"]())
        dataset, found = shuffled(), []
        for _ in range(calls):
            found += tf2dist.fit(model, dataset, epochs=epochs, verbose=0).history["loss"]
        losses.append(found)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
