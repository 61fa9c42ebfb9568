"""Synchronous updates on parameter servers: the numbers of one process, and backup workers."""

import contextlib
import json
import signal
import types

import numpy as np
import pytest

import tf2dist
from tests.jobs import run_program
from tests.models import OPTIMIZERS, ROWS, classifier, data, embedder, sentences, weighted, weights
from tests.programs import __name__ as PROGRAMS

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What the program found out with 2 servers and 2 workers; it ran once for all tests of this file."""
    out = tmp_path_factory.mktemp("synchronous") / "results.json"
    run_program(["--ps=2", "--workers=2"], "synchronous", out)
    return json.loads(out.read_text())


def alone(model, rows, **kwargs):
    history = tf2dist.fit(model, rows, batch_size=16, seed=3, **kwargs).history
    return weights(model), history


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_equals_one_process_on_the_joined_batches(tf, results, optimizer):
    """50 updates of 2 workers' gradients, with validation in between; the last batch of a pass has 7 rows."""
    with tf2dist.make_strategy("one").scope():
        model = classifier(OPTIMIZERS[optimizer]())
    expected, history = alone(model, data(), epochs=5, steps_per_epoch=10, validation_data=data())
    for ours, theirs in zip(results["weights"][optimizer], expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)
    assert results["updates"][optimizer] == 50
    for name, values in history.items():
        np.testing.assert_allclose(results["history"][optimizer][name], values, rtol=1e-4)
    assert set(results["history"][optimizer]) == set(history)  # without backup workers no gradient can be dropped


def test_another_model_is_used_by_a_callback(tf, results):
    """The workers are between two updates of the first one, and are needed for the other."""
    with tf2dist.make_strategy("one").scope():
        model, other = classifier(OPTIMIZERS["sgd"]()), classifier(OPTIMIZERS["momentum"]())
    expected, _ = alone(model, data(), epochs=2)
    for ours, theirs in zip(results["weights"]["beside another"], expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)
    seen = []
    for _ in range(2):
        seen.append(tf2dist.evaluate(other, data(), batch_size=16))
        seen.append(float(tf2dist.predict(other, data()[0]).sum()))
        alone(other, data())
    assert len(results["seen of another"]) == len(seen) == 4
    for ours, theirs in zip(results["seen of another"], seen, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3)


def test_a_call_is_interrupted_and_its_gradient_computed_again(tf, results):
    """The connection to a worker breaks, and the worker lives; whoever had its token is gone."""
    with tf2dist.make_strategy("one").scope():
        model = classifier(OPTIMIZERS["sgd"]())
    expected, history = alone(model, data(), epochs=2)
    assert results["interrupted"] == 1
    for ours, theirs in zip(results["weights"]["interrupted"], expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(results["history"]["interrupted"]["loss"], history["loss"], rtol=1e-4)


def test_slices_are_used_by_whom_they_are_for(tf, results):
    """What is left over of earlier updates is thrown away; a late token leaves a slice that is for later ones."""
    with tf2dist.make_strategy("one").scope():
        model = classifier(OPTIMIZERS["sgd"]())
    alone(model, tuple(a[:96] for a in data()), shuffle=False)
    expected, history = alone(model, tuple(a[:96] for a in data()), shuffle=False)
    for ours, theirs in zip(results["weights"]["sent"], expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(results["history"]["sent"]["loss"], history["loss"], rtol=1e-4)
    assert results["slices left by token 9"] == 1
    assert results["slices left by token 10"] == 0


def test_nothing_is_left_of_contributions_on_other_servers(results):
    """Neither of those that were used, nor of a worker that was lost, or is late."""
    assert results["parts left"] == {"after training": 0, "by the late one": 1, "when they were forgotten": 0}
    assert results["taken"] == [18, 1]
    assert results["taken behind one without parts"] == [20, 1]


def test_sparse_gradients(tf, results):
    """Slices of both workers are joined, not made dense on the way."""
    with tf2dist.make_strategy("one").scope():
        model = embedder(OPTIMIZERS["adagrad"]())
    expected, _ = alone(model, sentences(), epochs=2)
    for ours, theirs in zip(results["weights"]["slices"], expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["sharded", "nested"])
def test_a_sharded_table(tf, results, name):
    """A row that both workers use is updated once, by the sum of both gradients, which Adam squares."""
    with tf2dist.make_strategy("one").scope():
        model = embedder(OPTIMIZERS["adam"](), tf2dist.layers.ShardedEmbedding)
    expected, _ = alone(model, sentences(), epochs=2)
    expected = [model.layers[0].get_table(), *expected[-2:]]
    for ours, theirs in zip(results["weights"][name], expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


def test_statistics_are_written_once_an_update(tf, results):
    """They are the mean of both workers' new values, weighted by their slices."""
    x, _ = data()
    first = classifier(OPTIMIZERS["sgd"]()).layers[0]
    mean, variance = np.zeros(8), np.ones(8)
    for _ in range(2):
        for begin in range(0, ROWS, 16):
            batch = first(x[begin : begin + 16]).numpy()
            slices = np.split(batch, [len(batch) // 2])
            shares = np.array([len(s) / len(batch) for s in slices])
            mean = 0.8 * mean + 0.2 * shares @ [s.mean(0) for s in slices]
            variance = 0.8 * variance + 0.2 * shares @ [s.var(0) for s in slices]
    np.testing.assert_allclose(results["statistics"], [mean, variance], rtol=1e-4, atol=1e-6)


def test_statistics_of_the_whole_batch_are_refused(results):
    """Workers exchange gradients alone."""
    assert "layer together is a BatchNormalization(synchronized=True)" in results["refused"]
    assert "synchronized" not in results["weights"]


def test_kinds_of_data_one_after_the_other(tf, results):
    """Without sample weights, with, and without: what a gradient is made of differs."""
    model, kinds = weighted()
    for number, rows in enumerate(kinds):
        x, y, *w = rows
        expected = model.fit(x, y, 16, sample_weight=w[0] if w else None, shuffle=False, verbose=0).history
        assert results["history"][f"kind {number}"]["loss"] == pytest.approx(expected["loss"], rel=1e-4)
        for ours, theirs in zip(results["weights"][f"kind {number}"], weights(model), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


def test_a_late_gradient_of_an_earlier_training_is_dropped(results):
    """A second call of `fit` counts from 0 again, and its updates are its own."""
    assert results["weights"]["late 0"] == [[[8.0], [0.0]]]
    assert results["weights"]["late 1"] == [[[8.0], [8.0]]]


def test_a_batch_is_cut_for_the_workers_that_are_waited_for(tf, monkeypatch):
    """Two of three gradients make an update, so two slices a batch, of which each worker takes every third."""
    from tf2dist.input.batch_slicing import ReplicaSlices
    from tf2dist.input.make_adapter import make_data_adapter
    from tf2dist.parameter_server import synchronous

    class Pool:
        """Three workers, all in this process."""

        count, slices, scheduled = 3, ReplicaSlices(), 0

        def __init__(self, strategy):
            pass

        def schedule(self, function, arguments):
            self.scheduled += 1

        def keep_busy(self, free):
            pass

        def release(self):
            pass

        def interruptions(self):
            return []

        def log_unread_data(self):
            pass

        def open_iterators(self, make_dataset, arrays=(), *, on_host=False):
            made = []
            for worker in range(self.count):
                monkeypatch.setattr(synchronous, "this_worker", lambda w=worker: tf.constant(w, tf.int64))
                made.append(iter(make_dataset(tf.nest.map_structure(tf.constant, arrays))))
            return made

    monkeypatch.setattr(synchronous, "WorkerPool", Pool)
    options = tf2dist.ParameterServer("sync", backup_workers=1)
    dispatcher = synchronous.SynchronousDispatcher(tf2dist.make_strategy("one"), options)
    x, y = data()
    stream = dispatcher.open_stream(make_data_adapter((x, y), batch_size=16, shuffle=False), 0)
    slices = [next(batches) for _ in range(2) for batches in stream.batches]
    assert [float(weight) for _, weight in slices] == [0.5] * 6
    np.testing.assert_array_equal(np.concatenate([rows for (rows, _), _ in slices]), x[:48])
    with pytest.raises(tf2dist.errors.UsageError, match="calls Python in the coordinator"):
        dispatcher.open_stream(make_data_adapter(iter([(x[:4], y[:4])])), 0)
    monkeypatch.setattr(synchronous, "_WorkerWatch", lambda *_: contextlib.nullcontext())
    for _ in range(2):
        stream = dispatcher.open_stream(make_data_adapter((x, y), batch_size=16, shuffle=False), 0)
        updates = Updates(tf)
        for _ in range(2):
            dispatcher.schedule(
                types.SimpleNamespace(update_for=lambda spec, sent, updates=updates: updates), stream, 3
            )
            assert dispatcher.next_result().dropped_gradients == 2
        # Late gradients of what was trained before are none of this training's: they are counted from its first update.
        assert updates.first == [updates.begun, updates.begun]
        assert updates.forgotten == 1  # when the workers begin


@pytest.mark.parametrize("between", [False, True])
def test_a_worker_that_is_back_may_take_long(monkeypatch, between):
    """It reads its data anew up to where it goes on, and all others wait: seen between two calls, or in the middle."""
    from tf2dist.parameter_server import synchronous
    from tf2dist.runtime import session

    current, update = session.Session(), types.SimpleNamespace(quotas=[2, 0], number=0)
    update.set_quotas = lambda quotas: setattr(update, "quotas", [*quotas])
    update.hand_out_more = lambda more, end: None
    lost = types.SimpleNamespace(begin_updates=lambda: None, find=lambda quotas: [])
    monkeypatch.setattr(synchronous.session, "current", lambda: current)
    monkeypatch.setattr(synchronous, "gradient_quotas", lambda workers, needed: [1, 1] if between else [2, 0])
    watch = synchronous._WorkerWatch(types.SimpleNamespace(count=2), update, 2, 10, lost)
    assert (current.progress.patience > 1) == between
    watch._replace_tokens([1, 1])
    assert current.progress.patience > 3
    current.progress.made()
    watch._replace_tokens([1, 1])
    watch._replace_tokens([2, 0])  # lost again
    assert current.progress.patience == 1


class Updates:
    """Stands for a `SynchronousUpdate` that has made some updates before; two gradients are late each time."""

    work, made = None, 0

    def __init__(self, tf):
        self.tf, self.begun, self.first, self.forgotten = tf, Updates.made, [], 0

    number = property(lambda self: Updates.made)

    def hand_out_tokens(self, counts, number):
        pass

    def forget_parts(self):
        self.forgotten += 1

    def make_updates(self, steps, first):
        Updates.made += int(steps)
        self.first.append(int(first))
        return [self.tf.zeros([]), self.tf.constant(2)]


def test_backup_workers(results):
    """Each update takes the first of two gradients; the other one is late, but for the last that nobody looks for."""
    assert results["updates"]["backup"] == 80
    dropped = results["history"]["backup"]["dropped_gradients"]
    assert 0 < sum(dropped) <= 80
    assert results["history"]["backup"]["loss"][1] < results["history"]["backup"]["loss"][0]


@pytest.mark.slow
def test_a_stopped_worker_is_not_waited_for(by_hand, tmp_path):
    """Not by updates; a validation waits for its shard until the worker counts as lost, after a minute."""
    job = by_hand(f"{PROGRAMS}.long", str(tmp_path), "2", "1", "training_only")
    job.until("under_way")
    job.processes["worker 1"].send_signal(signal.SIGSTOP)
    job.until("result.json")
    job.processes["worker 1"].send_signal(signal.SIGCONT)
    assert job.ends("chief 0")[0] == 0
    assert job.ends("worker 1")[0] in (0, 1)  # 1 if that took longer than its grace period: it counted as lost
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["updates"] == 20 * 60
    # Two gradients an update as long as both worked, and from then on one.
    dropped = result["history"]["dropped_gradients"]
    assert min(dropped[:2]) > 0
    assert dropped[-5:] == [0] * 5


@pytest.mark.slow
def test_a_worker_is_lost_and_the_other_computes_its_gradients(by_hand, tmp_path):
    job = by_hand(f"{PROGRAMS}.long", str(tmp_path), "2", "0")
    job.until("under_way")
    job.processes["worker 1"].kill()
    status, error = job.ends("chief 0")
    assert status == 0, error
    assert "worker 1 at" in error
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["updates"] == 8 * 60
    for accuracy in result["history"]["val_accuracy"]:
        assert abs(accuracy * ROWS - round(accuracy * ROWS)) < 1e-3
