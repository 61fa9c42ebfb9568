"""Models that TensorFlow 1 trained, converted: the same predictions here, and training that goes on."""

import json
import zipfile

import keras
import numpy as np
import pytest

from tests.conftest import sampled
from tests.parity import regression, tf1
from tests.parity.processes import alone
from tf2dist.convert_checkpoint.__main__ import main
from tf2dist.convert_checkpoint.fill import fill
from trainers.mnist_networks import PRESETS

# Layers of each preset: width and activation; what it was trained with; the names that tutorials gave.
NETWORKS = {
    "softmax": ([(10, None)], lambda tf: tf.train.GradientDescentOptimizer(0.1)),
    "sigmoid": ([(100, "sigmoid"), (10, None)], lambda tf: tf.train.GradientDescentOptimizer(0.001)),
    "towers": ([(500, "relu"), (10, None)], lambda tf: tf.train.GradientDescentOptimizer(0.001)),
    "mlp": ([(500, "relu"), (10, None)], lambda tf: tf.train.AdamOptimizer(0.001)),
}
MODELS = {
    "softmax": "trainers.mnist_networks:softmax(0.1)",
    "sigmoid": "trainers.mnist_networks:sigmoid(0.001)",
    "towers": "trainers.mnist_networks:towers(0.001, decay_steps=600)",
    "mlp": "trainers.mnist_networks:mlp(0.001)",
}
STEPS = 5


def images():
    """f32[32, 28, 28] and i64[32]."""
    random = np.random.default_rng(9)
    return random.random((32, 28, 28)).astype(np.float32), random.integers(0, 10, 32)


def trained_in_tf1(name, directory, steps=STEPS):
    """Trains a preset's network and saves it; returns its logits before and after `steps` more steps."""
    tf = tf1.begin()
    layers, optimizer = NETWORKS[name]
    pixels, labels = images()
    x, y = tf.constant(pixels.reshape(-1, 784)), tf.constant(labels)
    weights, biases, width = [], [], 784
    with tf.name_scope("weights"):
        for number, (columns, _) in enumerate(layers):
            weights.append(tf.Variable(tf.random_normal([width, columns], stddev=0.1, seed=number)))
            width = columns
    with tf.name_scope("biases"):
        biases = [tf.Variable(tf.random_normal([columns], stddev=0.1, seed=7)) for columns, _ in layers]
    logits = x
    for weight, bias, (_, activation) in zip(weights, biases, layers, strict=True):
        logits = tf.matmul(logits, weight) + bias
        logits = getattr(tf.nn, activation)(logits) if activation else logits
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    step = tf.train.get_or_create_global_step()
    train = optimizer(tf).minimize(loss, global_step=step)
    if name == "towers":
        averages = tf.train.ExponentialMovingAverage(0.99, step)
        with tf.control_dependencies([train]):
            train = averages.apply(tf.trainable_variables())
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(steps):
            session.run(train)
        tf.train.Saver().save(session, f"{directory}/model.ckpt", global_step=step)
        before = session.run(logits)
        for _ in range(steps):
            session.run(train)
        return before, session.run(logits)


def logits(model):
    return np.asarray(model(images()[0], training=False))


@pytest.mark.parametrize("preset", sampled(PRESETS, (), ("mlp", "towers")))
def test_presets(tf, tmp_path, preset, capsys):
    """The names of a tutorial's checkpoint are found out; predictions are the same."""
    theirs, _ = alone(trained_in_tf1, preset, str(tmp_path))
    out = tmp_path / "model.keras"
    assert main([str(tmp_path), str(out), f"--model={MODELS[preset]}"]) == 0
    report = capsys.readouterr().out
    assert "<- weights/Variable  by shape" in report
    assert "optimizer.iterations  <- global_step, 5" in report
    model = keras.saving.load_model(out)
    np.testing.assert_allclose(logits(model), theirs, rtol=1e-5, atol=1e-5)
    assert int(model.optimizer.iterations.numpy()) == STEPS


@pytest.mark.parametrize("preset", sampled(["sigmoid", "mlp"], (), ("sigmoid",)))
def test_training_goes_on(tf, tmp_path, preset):
    """Five more steps of Adam, with its moments from the checkpoint, go where five more went there."""
    import tf2dist

    _, theirs = alone(trained_in_tf1, preset, str(tmp_path))
    assert main([str(tmp_path), str(tmp_path / "m.keras"), f"--model={MODELS[preset]}"]) == 0
    with tf2dist.make_strategy("one").scope():
        model = keras.saving.load_model(tmp_path / "m.keras")
    x, y = images()
    tf2dist.fit(model, (x, y), batch_size=len(x), steps_per_epoch=STEPS)
    # Keras's Adam adds another epsilon.
    np.testing.assert_allclose(logits(model), theirs, rtol=2e-3, atol=2e-3)


def slots_in_tf1(directory, optimizer, options):
    tf = tf1.begin()
    x, y = (tf.constant(part) for part in regression.batch(0))
    step = tf.train.get_or_create_global_step()
    optimizer = getattr(tf.train, optimizer)(**options)
    train = optimizer.minimize(regression.tf1_loss(tf, x, y), global_step=step)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for number in range(2):
            for _ in range(STEPS):
                session.run(train)
            if not number:
                tf.train.Saver().save(session, f"{directory}/model.ckpt", global_step=step)
        return session.run(tf.trainable_variables())


SLOTS = {
    # TensorFlow 1 kept sums of gradients, Keras keeps steps.
    "momentum": (
        ("MomentumOptimizer", {"learning_rate": 0.05, "momentum": 0.9}),
        lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    ),
    "centered": (
        (
            "RMSPropOptimizer",
            {"learning_rate": 0.01, "decay": 0.8, "momentum": 0.9, "epsilon": 1e-3, "centered": True},
        ),
        lambda: keras.optimizers.RMSprop(0.01, rho=0.8, momentum=0.9, epsilon=1e-3, centered=True),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOTS)
def test_slots_go_on(tf, tmp_path, name):
    """The optimizer's own variables, in TensorFlow 1's words."""
    import tf2dist

    there, here = SLOTS[name]
    theirs = alone(slots_in_tf1, str(tmp_path), *there)
    regression.model(here()).save(tmp_path / "empty.keras")
    assert main([str(tmp_path), str(tmp_path / "m.keras"), f"--model={tmp_path / 'empty.keras'}"]) == 0
    with tf2dist.make_strategy("one").scope():
        model = keras.saving.load_model(tmp_path / "m.keras")
    x, y = regression.batch(0)
    tf2dist.fit(model, (x, y), batch_size=len(x), steps_per_epoch=STEPS)
    regression.assert_close(regression.weights(model), theirs)


def averaged():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="dense")])
    model.compile(keras.optimizers.SGD(use_ema=True), "mse")
    return model


def test_averages_that_are_not_there_begin_at_the_weights(tf, tmp_path, capsys):
    """An average that began at zero, or at the untrained weights, would overwrite what was trained."""
    kernel, average, bias = np.full((3, 2), 2.0, np.float32), np.full((3, 2), 1.5, np.float32), np.float32([3, 4])
    values = {
        "dense__kernel": kernel, "dense__kernel__ExponentialMovingAverage": average, "dense__bias": bias,
    }  # fmt: skip
    model = converted(tmp_path, written(tf, tmp_path / "c" / "m", **values), "tests.parity.test_convert:averaged")
    assert "dense/bias  the optimizer's average begins at the weights" in capsys.readouterr().out
    assert [v.path for v in model.trainable_variables] == ["dense/kernel", "dense/bias"]
    averages = [v.numpy() for v in model.optimizer._model_variables_moving_average]
    np.testing.assert_array_equal(averages[0], average)
    np.testing.assert_array_equal(averages[1], bias)


def converted(tmp_path, source, model, *options):
    out = tmp_path / "out.keras"
    assert main([str(source), str(out), f"--model={model}", *options]) == 0
    return keras.saving.load_model(out)


def written(tf, prefix, **values):
    """A checkpoint with these values, as TensorFlow 1 wrote it; a name's slashes are double underscores here."""
    prefix.parent.mkdir(exist_ok=True)
    names = [name.replace("__", "/") for name in values]
    tf.raw_ops.SaveV2(
        prefix=str(prefix), tensor_names=names, shape_and_slices=[""] * len(names), tensors=list(values.values())
    )
    return prefix.parent


def small_model():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(3, name="x"), keras.layers.Dense(3, name="y")])


def one_layer():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="dense")])
    model.compile(keras.optimizers.Adam(), "mse")
    return model


ONE_LAYER, SMALL_MODEL = "tests.parity.test_convert:one_layer", "tests.parity.test_convert:small_model"


def test_other_types(tf, tmp_path, capsys):
    """float64 and integers become the float32 of the model, and the report says so."""
    kernel = np.full((3, 2), 1 / 3)
    source = written(
        tf,
        tmp_path / "a" / "m",
        dense__kernel=kernel,
        dense__bias=np.array([1, -2], np.int32),
        dense__bias__Adam=np.zeros(3),
    )
    model = converted(tmp_path, source, ONE_LAYER)
    np.testing.assert_array_equal(model.get_weights()[0], kernel.astype(np.float32))
    np.testing.assert_array_equal(model.get_weights()[1], [1.0, -2.0])
    said = capsys.readouterr().out
    assert "dense/kernel  [3, 2]  <- dense/kernel  by name, from float64" in said
    assert "dense/bias  [2]  <- dense/bias  by name, from int32" in said
    assert "optimizer.iterations begins at 0: there is no global_step" in said
    assert "dense/bias  the optimizer's begins anew: there is no dense/bias/Adam of its shape" in said


def test_moments_of_adam_that_are_not_there(tf, tmp_path, capsys):
    """At a later step Adam no longer corrects for moments of zero, which the report says."""
    weights = {"dense__kernel": np.ones((3, 2)), "dense__bias": np.zeros(2)}
    said = "Adam corrects for moments that begin anew at step 0 only, and they do at 70: its first updates are several"
    converted(tmp_path, written(tf, tmp_path / "a" / "m", **weights, global_step=np.int64(70)), ONE_LAYER)
    assert said in capsys.readouterr().out
    moments = {f"{name}__{slot}": value for name, value in weights.items() for slot in ("Adam", "Adam_1")}
    everything = {**weights, **moments, "global_step": np.int64(70)}
    for number, values in enumerate((weights, everything)):
        converted(tmp_path, written(tf, tmp_path / f"b{number}" / "m", **values), ONE_LAYER)
        assert "Adam corrects" not in capsys.readouterr().out


def with_a_rate_that_is_a_function():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="dense")])
    model.compile(keras.optimizers.SGD(lambda: 0.5, momentum=0.9), "mse")
    return model


def test_momentum_under_a_rate_that_a_function_gives(tf, tmp_path):
    kernel = np.ones((3, 2), np.float32)
    source = written(tf, tmp_path / "a" / "m", dense__kernel=kernel, dense__kernel__Momentum=3 * kernel,
                     dense__bias=np.zeros(2))  # fmt: skip
    model = with_a_rate_that_is_a_function()
    fill(model, str(source / "m"), {})
    np.testing.assert_array_equal(model.optimizer.momentums[0].numpy(), -1.5 * kernel)


def test_text_is_no_weight(tf, tmp_path, capsys):
    source = written(tf, tmp_path / "a" / "m", dense__kernel=np.zeros((3, 2)), dense__bias=np.array(["a", "b"]))
    said = refused(source, tmp_path, capsys, model=ONE_LAYER)
    assert said == "dense/bias is float32 in the model, and dense/bias in the checkpoint holds text\n"


def test_two_that_could_be_meant(tf, tmp_path, capsys):
    values = {f"{layer}__{name}": np.zeros([3] * rank) for layer in "ab" for name, rank in (("kernel", 2), ("bias", 1))}
    source = written(tf, tmp_path / "a" / "m", **values)
    said = refused(source, tmp_path, capsys, model=SMALL_MODEL).splitlines()
    assert said[0].startswith(
        "x/kernel, y/kernel: a/kernel, b/kernel in the checkpoint have the shape [3, 3]; say in a"
    )
    assert len(said) == 2
    (tmp_path / "map.json").write_text('{"x/kernel": "b/kernel", "x/bias": "b/bias"}')
    converted(tmp_path, source, SMALL_MODEL, f"--map={tmp_path / 'map.json'}")
    assert "y/kernel  [3, 3]  <- a/kernel  by shape" in capsys.readouterr().out


def test_which_checkpoint_is_meant(tf, tmp_path, capsys):
    """Of several the one that the state file names, here or where it says; else the newest."""
    values = {"dense__kernel": np.zeros((3, 2)), "dense__bias": np.zeros(2)}
    for step in (9, 10):
        source = written(tf, tmp_path / "a" / f"m-{step}", **values)
    elsewhere = tmp_path / "b"
    elsewhere.mkdir()

    def meant(directory, named):
        (directory / "checkpoint").write_text(f'model_checkpoint_path: "{named}"\n')
        status = main([str(directory), str(tmp_path / "x.keras"), f"--model={ONE_LAYER}", "--dry_run"])
        said = capsys.readouterr()
        return said.out.split(" -> ")[0] if not status else said.err

    assert meant(source, "m-9") == f"{source}/m-9"
    assert meant(source, "/home/someone/m-9") == f"{source}/m-9"
    assert meant(source, "/home/someone/m-11") == f"{source}/m-10"
    assert meant(elsewhere, f"{source}/m-9") == f"{source}/m-9"
    assert meant(elsewhere, "../a/m-9") == f"{elsewhere}/../a/m-9"
    assert "its file `checkpoint` names /home/someone/m-9, which is not there" in meant(elsewhere, "/home/someone/m-9")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint of preset mlp: the directory."""
    directory = tmp_path_factory.mktemp("saved")
    alone(trained_in_tf1, "mlp", str(directory), 1)
    return directory


def refused(saved, tmp_path, capsys, *options, model=MODELS["mlp"], status=2):
    """What a conversion that must fail says; it writes nothing."""
    keras.backend.clear_session()  # names of layers are numbered anew
    before = sorted(tmp_path.iterdir())
    assert main([str(saved), str(tmp_path / "out.keras"), f"--model={model}", *options]) == status
    assert sorted(tmp_path.iterdir()) == before
    said = capsys.readouterr()
    assert said.out == ""
    return said.err.removeprefix("tf2dist.convert_checkpoint: ")


@pytest.mark.slow
def test_a_part_that_is_missing_or_garbage(tf, saved, tmp_path, capsys):
    for name, change, which in (
        ("data-00000-of-00001", None, "model.ckpt-1.data-00000-of-00001; No such file"),
        ("index", lambda whole: np.random.default_rng(1).bytes(900), "bad magic number"),
        ("data-00000-of-00001", lambda whole: whole[:500] + bytes([whole[500] ^ 1]) + whole[501:], "Checksum does"),
    ):
        copy = tmp_path / f"{name}-{which[:8]}"
        copy.mkdir()
        for file in saved.iterdir():
            (copy / file.name).write_bytes(file.read_bytes())
        (part,) = copy.glob(f"*.{name}")
        if change is None:
            part.unlink()
        else:
            part.write_bytes(change(part.read_bytes()))
        said = refused(copy, tmp_path, capsys, status=1)
        assert f"the checkpoint {copy}/model.ckpt-1 is truncated or damaged" in said
        assert which in said


@pytest.mark.slow
def test_truncated(tf, saved, tmp_path, capsys):
    for name, kept in (("data-00000-of-00001", 1000), ("index", 20), ("index", 0)):
        copy = tmp_path / f"{name}-{kept}"
        copy.mkdir()
        for file in saved.iterdir():
            (copy / file.name).write_bytes(file.read_bytes()[: kept if file.name.endswith(name) else None])
        said = refused(copy, tmp_path, capsys, status=1)
        assert f"the checkpoint {copy}/model.ckpt-1 is truncated or damaged" in said


@pytest.mark.slow
def test_another_shape_and_a_missing_variable(tf, saved, tmp_path, capsys):
    """The kernels are of other shapes, one bias is missing, and the other is there."""
    said = refused(saved, tmp_path, capsys, model=MODELS["sigmoid"]).splitlines()
    assert len(said) == 3
    assert said[0].startswith(
        "dense/kernel has shape [784, 100], which no variable that is left in the checkpoint has; "
    )
    assert "weights/Variable [784, 500], weights/Variable_1 [500, 10]" in said[0]
    assert "dense/bias has shape [100]" in said[1]
    assert "dense_1/kernel has shape [100, 10]" in said[2]


NAMES = {
    "dense/kernel": "weights/Variable",
    "dense/bias": "biases/Variable",
    "dense_1/kernel": "weights/Variable_1",
    "dense_1/bias": "biases/Variable_1",
}


def named(tmp_path, **changed):
    path = tmp_path / "map.json"
    path.write_text(json.dumps(NAMES | changed))
    return f"--map={path}"


@pytest.mark.slow
def test_name_map(tf, saved, tmp_path, capsys):
    keras.backend.clear_session()
    out = tmp_path / "out.keras"
    assert main([str(saved), str(out), f"--model={MODELS['mlp']}", named(tmp_path)]) == 0
    assert capsys.readouterr().out.count("  by map\n") == 4
    out.unlink()
    said = refused(saved, tmp_path, capsys, named(tmp_path, **{"dense/kernel": "weights/Varable"}))
    assert "weights/Varable, for dense/kernel, is not in the checkpoint; the nearest name is weights/Variable" in said
    said = refused(saved, tmp_path, capsys, named(tmp_path, **{"dense/kernal": "weights/Variable"}))
    assert said == "the name map's dense/kernal is no variable of the model; the nearest name is dense/kernel\n"
    said = refused(saved, tmp_path, capsys, named(tmp_path, **{"dense/kernel": "weights/Variable_1"}))
    assert "dense/kernel has shape [784, 500] in the model, and weights/Variable_1, which is meant by map, [500" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read"),
        ("[1]", "is no JSON object of names"),
        ('{"a": 1}', "is no JSON object of names"),
        ('{"a": "b", "a": "c"}', "a is there twice"),
    ],
)
def test_a_map_that_is_none(saved, tmp_path, capsys, text, said):
    (tmp_path / "map.json").write_text(text)
    assert said in refused(saved, tmp_path, capsys, f"--map={tmp_path / 'map.json'}")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("nowhere.keras", "is no file"),
        ("trainers.mnist_networks", "names no model"),
        ("trainers.mnist_networks:sigmoid(open('x'))", "names no model"),
        ("trainers.mnist_networks:sigmoid(", "names no model"),
        ("trainers.mnist_netwoks:sigmoid", "module trainers.mnist_netwoks cannot be imported"),
        ("trainers.mnist_networks:sigmod", "trainers.mnist_networks has no sigmod; the nearest name is sigmoid"),
        (
            "trainers.mnist_networks:sigmoid()",
            "cannot be made: TypeError: sigmoid() missing 1 required positional argument",
        ),
        ("trainers.mnist_networks:CLASSES", "is int, no Keras model"),
        ("tests.parity.test_convert_tables:table_model('Nadam')", "cannot be made: KeyError: 'Nadam'"),
        ("tests.parity.test_convert:alone(int)", "names no model"),
    ],
)
def test_a_model_that_is_none(tf, saved, tmp_path, capsys, model, said):
    assert said in refused(saved, tmp_path, capsys, model=model)


@pytest.mark.slow
def test_a_model_that_is_broken(tf, saved, tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "half.py").write_text("x = 1 +\n")
    (tmp_path / "empty.keras").write_bytes(b"")
    with zipfile.ZipFile(tmp_path / "other.keras", "w") as file:
        file.writestr("x", "y")
    assert "module half cannot be imported: SyntaxError: " in refused(saved, tmp_path, capsys, model="half:model")
    for name in ("empty.keras", "other.keras"):
        said = refused(saved, tmp_path, capsys, model=tmp_path / name)
        assert said.startswith(f"--model={tmp_path / name} cannot be loaded: ")
        assert said.count("\n") == 1


def test_places_that_are_none(tmp_path, capsys):
    wrong = {
        (str(tmp_path), str(tmp_path / "a.keras")): "holds no checkpoint of TensorFlow 1",
        (str(tmp_path / "none"), str(tmp_path / "a.keras")): "there is no checkpoint",
    }
    for command, said in wrong.items():
        assert main([*command, "--model=trainers.mnist_networks:sigmoid(0.1)"]) == 2
        assert said in capsys.readouterr().err


def test_an_out_that_is_none(saved, tmp_path, capsys):
    places = {
        tmp_path / "a.h5": ".keras or .weights.h5",
        tmp_path / "b" / "a.keras": "is no directory",
        saved / "directory.keras": "is a directory",
    }
    (saved / "directory.keras").mkdir()
    for out, said in places.items():
        assert main([str(saved), str(out), f"--model={MODELS['mlp']}"]) == 2
        assert said in capsys.readouterr().err
    assert not any(tmp_path.iterdir())
