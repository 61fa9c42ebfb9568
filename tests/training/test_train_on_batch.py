"""`tf2dist.step`: the numbers of Keras's `train_on_batch`, on each strategy, whatever is called in between."""

import gc
import pickle
import weakref

import keras
import numpy as np
import pytest

import tf2dist
from tests import custom_step_cases
from tests.conftest import SINGLE_PROCESS_SLOWLY, sampled, strategies
from tests.jobs import run_program
from tests.models import OPTIMIZERS, classifier, data, embedder, sentences, weights
from tests.step_cases import CASES, batches, trained
from tf2dist.errors import UsageError

strategy = strategies(SINGLE_PROCESS_SLOWLY)
one = pytest.mark.parametrize("strategy", ["one"], indirect=True)


def expected(name):
    make, given = CASES[name]
    model = make()
    return trained(lambda *batch: model.train_on_batch(*batch, return_dict=True), given()), weights(model)


def same(found, name):
    logs, theirs = expected(name)
    assert [each.keys() for each in found[0]] == [each.keys() for each in logs]
    for ours, wanted in zip(found[0], logs, strict=True):
        for log, value in wanted.items():
            assert ours[log] == pytest.approx(value, rel=5e-4, abs=1e-5), log
    for a, b in zip(found[1], theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    "name", sampled(CASES, ["adam", "several lengths"], ["sample weights", "dictionaries", "own step"])
)
def test_equals_train_on_batch(strategy, name):
    make, given = CASES[name]
    with strategy.scope():
        model = make()
    same((trained(tf2dist.step(model), given()), weights(model)), name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["multiworker", "ps", "sync"])
def test_equals_train_on_batch_in_a_job(tf, tmp_path, kind):
    layout = ["--workers=2"] if kind == "multiworker" else ["--ps=1", "--workers=2"]
    out = tmp_path / "results"
    run_program(layout, "train_on_batch", out, kind)
    results = pickle.loads(out.read_bytes())
    assert [*results] == [name for name in CASES if (kind, name) != ("sync", "own step")]
    for name, (logs, values, updates) in results.items():
        assert updates == len(logs), name
        same((logs, values), name)


@pytest.mark.slow
def test_what_is_called_in_between_changes_nothing(strategy):
    x, y = data()
    with strategy.scope():
        model = classifier(OPTIMIZERS["momentum"]())
    theirs = classifier(OPTIMIZERS["momentum"]())
    step = tf2dist.step(model)
    for number, batch in enumerate(batches(x, y)):
        logs = step(*batch)
        wanted = theirs.train_on_batch(*batch, return_dict=True)
        if number == 2:
            tf2dist.fit(model, x, y, batch_size=16, shuffle=False, verbose=0)
            theirs.fit(x, y, batch_size=16, shuffle=False, verbose=0)
        if number == 3:
            ours = tf2dist.evaluate(model, x, y, return_dict=True, verbose=0)
            assert ours == pytest.approx(theirs.evaluate(x, y, return_dict=True, verbose=0), rel=1e-4)
            np.testing.assert_allclose(tf2dist.predict(model, x), theirs.predict(x, verbose=0), rtol=1e-4, atol=1e-5)
        assert {n: float(v) for n, v in logs.items()} == pytest.approx(wanted, rel=1e-4)
    assert tf2dist.updates(model) == 14
    for a, b in zip(weights(model), weights(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@one
def test_a_model_that_is_compiled_anew(strategy):
    model = classifier(OPTIMIZERS["sgd"]())
    step, given = tf2dist.step(model), batches(*data())
    step(*given[0])
    model.compile(keras.optimizers.SGD(0.01), model.loss)
    theirs = classifier(OPTIMIZERS["sgd"]())
    theirs.train_on_batch(*given[0])
    theirs.compile(keras.optimizers.SGD(0.01), theirs.loss)
    for batch in given[1:3]:
        assert step(*batch) == pytest.approx(theirs.train_on_batch(*batch, return_dict=True), rel=1e-5)
    assert tf2dist.updates(model) == 2


@pytest.mark.slow
def test_models_trained_in_turn(strategy):
    """Each with a step of its own, and two steps of one model."""
    made, theirs = [], []
    for make in (lambda: classifier(OPTIMIZERS["adam"]()), lambda: embedder(OPTIMIZERS["sgd"]())):
        with strategy.scope():
            made.append(make())
        theirs.append(make())
    steps = [tf2dist.step(made[0]), tf2dist.step(made[1]), tf2dist.step(made[0])]
    for rows, words in zip(batches(*data())[:3], batches(*sentences())[:3], strict=True):
        for place, batch in ((0, rows), (1, words), (2, rows)):
            steps[place](*batch)
            theirs[place % 2].train_on_batch(*batch)
    for ours, wanted in zip(made, theirs, strict=True):
        for a, b in zip(weights(ours), weights(wanted), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_x_alone_comes_to_a_step_of_ones_own_as_in_fit(strategy):
    """Keras's `train_on_batch` passes (x, None, None), which is no batch of `fit`."""
    make, x = custom_step_cases.CASES["vae"]
    with strategy.scope():
        model = make()
    theirs, step = make(), tf2dist.step(model)
    for (batch,) in batches(x):
        wanted = theirs.fit(batch, batch_size=len(batch), verbose=0).history
        logs = step(batch)
        assert {n: [float(v)] for n, v in logs.items()} == {n: pytest.approx(v, rel=5e-4) for n, v in wanted.items()}
    for a, b in zip(weights(model), weights(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.slow
@one
def test_a_list_is_several_inputs(strategy):
    def made():
        inputs = [keras.Input((5,)), keras.Input((7,))]
        dense = keras.layers.Dense(3, kernel_initializer=keras.initializers.GlorotUniform(seed=2))
        model = keras.Model(inputs, dense(keras.layers.Concatenate()(inputs)))
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    x, y = data()
    model, theirs = made(), made()
    ours = tf2dist.step(model)([x[:, :5], x[:, 5:]], y)
    assert ours == pytest.approx(theirs.train_on_batch([x[:, :5], x[:, 5:]], y, return_dict=True), rel=1e-5)


@one
def test_a_batch_that_failed_is_forgotten(strategy, tf):
    x, y = data()
    step = tf2dist.step(classifier(OPTIMIZERS["sgd"]()))
    for wrong in ((x[:, :11], y), (x,)):
        with pytest.raises(ValueError):
            step(*wrong)
    assert step(x[:16], y[:16])["loss"] > 0
    with pytest.raises(tf.errors.InvalidArgumentError, match="size-incompatible"):
        step(x[:, :11], y)
    assert step(x[:16], y[:16])["loss"] > 0


@one
def test_it_is_refused_in_a_callback_of_fit(strategy):
    x, y = data()
    model = classifier(OPTIMIZERS["sgd"]())
    step, refused = tf2dist.step(model), []

    class Steps(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            with pytest.raises(UsageError, match="before or after fit") as error:
                step(x, y)
            refused.append(error)

    tf2dist.fit(model, x, y, batch_size=16, epochs=2, callbacks=[Steps()], verbose=0)
    step(x, y)
    assert (len(refused), tf2dist.updates(model)) == (2, 15)


@pytest.mark.slow
@one
def test_nothing_grows_and_nothing_is_kept(strategy, tf):
    x, y = data()
    model = classifier(OPTIMIZERS["sgd"]())
    model.makes_steps = step = tf2dist.step(model)
    step(x, y)
    graph = tf.compat.v1.get_default_graph()
    before = len(graph._py_funcs_used_in_graph)
    for _ in range(20):
        step(x, y)
    assert len(graph._py_funcs_used_in_graph) == before
    died = weakref.ref(step)
    del model, step
    gc.collect()
    assert died() is None


@one
def test_a_batch_of_another_kind(strategy):
    x, y = data()
    model = classifier(OPTIMIZERS["sgd"]())
    step = tf2dist.step(model)
    step(x[:16], y[:16])
    for wrong, said in (
        ((x[:16].astype(str), y[:16]), r"expected \(float32\[None, 12\], int64\[None\]\), found \(string"),
        ((x[:16],), r"found float32\[16, 12\]"),
        ((x[0], y[0]), "a batch must hold arrays with a row for each example"),
        ((None,), "x is None"),
        ((x[:8], y[:7]), "the same number of rows, found x of 8, y of 7"),
        ((x[:8], y[:8], y[:1]), "x of 8, y of 8, sample_weight of 1"),
        ((x[:0], y[:0]), "a batch must have rows"),
    ):
        with pytest.raises(ValueError, match=said):
            step(*wrong)
    step((x[:7], y[:7]))  # in a tuple, of fewer rows
    assert tf2dist.updates(model) == 2


@pytest.mark.slow
def test_weights_and_types_may_differ_between_calls(strategy):
    """As they may in `train_on_batch`: with weights of examples or of classes, or without; of wider numbers."""
    x, y = data()
    weight = np.linspace(0.0, 2.0, 16, dtype=np.float32)
    calls = [
        ((x[:16], y[:16]), {}),
        ((x[16:32], y[16:32], weight), {}),
        ((x[32:48].astype(np.float64), y[32:48].astype(np.int32)), {}),
        ((x[48:64], y[48:64], weight.astype(np.float64)), {}),
        ((x[64:80], y[64:80]), {"class_weight": {0: 0.5, 1: 3.0}}),
        ((x[80:87], y[80:87]), {}),
    ]
    with strategy.scope():
        model = classifier(OPTIMIZERS["momentum"]())
    theirs, step = classifier(OPTIMIZERS["momentum"]()), tf2dist.step(model)
    for arguments, options in calls:
        wanted = theirs.train_on_batch(*arguments, return_dict=True, **options)
        found = {name: float(value) for name, value in step(*arguments, **options).items()}
        assert found == pytest.approx(wanted, rel=1e-4)
    for a, b in zip(weights(model), weights(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@one
def test_a_batch_that_is_lost_with_its_worker_is_given_again(strategy, monkeypatch):
    """As where nobody knows which batches a lost worker had used: that of several GPUs."""
    from tf2dist.execution.dispatcher_interface import ExecutionResult
    from tf2dist.execution.replica_dispatcher import ReplicaDispatcher

    schedule, calls = ReplicaDispatcher.schedule, []

    def loses_the_second(dispatcher, execution, stream, steps, *args):
        calls.append(steps)
        if len(calls) != 2:
            return schedule(dispatcher, execution, stream, steps, *args)
        next(stream.iterator)
        dispatcher._results.append(ExecutionResult(0, None, 0.0))
        return steps

    monkeypatch.setattr(ReplicaDispatcher, "schedule", loses_the_second)
    model, theirs, (x, y) = classifier(OPTIMIZERS["sgd"]()), classifier(OPTIMIZERS["sgd"]()), data()
    step = tf2dist.step(model)
    for begin in (0, 16, 32):
        given = x[begin : begin + 16], y[begin : begin + 16]
        logs, wanted = step(*given), theirs.train_on_batch(*given, return_dict=True)
        assert {name: float(value) for name, value in logs.items()} == pytest.approx(wanted, rel=1e-4)
    assert (len(calls), tf2dist.updates(model)) == (4, 3)
    for a, b in zip(weights(model), weights(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@one
def test_an_error_in_an_update_leaves_nothing_behind(strategy):
    model = embedder(OPTIMIZERS["sgd"]())
    step, (words, labels) = tf2dist.step(model), sentences()
    step(words[:16], labels[:16])
    with pytest.raises(Exception, match=r"indices|out of"):
        step(words[:16] + 1000, labels[:16])
    logs = step(words[16:32], labels[16:32])
    theirs = embedder(OPTIMIZERS["sgd"]())
    for begin in (0, 16):
        wanted = theirs.train_on_batch(words[begin : begin + 16], labels[begin : begin + 16], return_dict=True)
    assert {n: float(v) for n, v in logs.items()} == pytest.approx(wanted, rel=1e-4)


def test_a_model_that_is_not_compiled(tf):
    with pytest.raises(UsageError, match="compile"):
        tf2dist.step(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
