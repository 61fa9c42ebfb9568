"""`tf2dist.preempt` at every kind of moment of a call of `fit`; the next call ends with what one alone would have."""

import json
import os
import sys

import keras
import numpy as np
import pytest

import tf2dist
from tests.conftest import SINGLE_PROCESS_SLOWLY, sampled, strategies
from tests.models import OPTIMIZERS, classifier, data, weights
from tf2dist.cluster.roles import Role
from tf2dist.errors import START_AGAIN, CheckpointError, Preempted
from tf2dist.runtime import session
from tf2dist.runtime.session import Session
from tf2dist.training import checkpoint_files
from tf2dist.training.status_file import read_status, write_status

BATCH, STEPS, EPOCHS = 16, 7, 4  # 103 rows are 7 batches
strategy = strategies(SINGLE_PROCESS_SLOWLY[:2])


class At(keras.callbacks.Callback):
    """Calls `action` once, the first time that a hook is called when so many epochs and batches were made."""

    def __init__(self, hook, epoch, action, batch=0):
        super().__init__()
        self.epoch, self.done = 0, False

        def act(number, logs=None):
            if not self.done and self.epoch == epoch and (number or 0) >= batch:
                self.done = True
                action(self.model)

        if hook == "on_train_end":
            self.on_train_end = lambda logs=None: action(self.model)
        elif hook == "on_epoch_end":
            self.at_epoch_end = act
        else:
            setattr(self, hook, act)

    at_epoch_end = None

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_epoch_end(self, epoch, logs=None):
        if self.at_epoch_end:
            self.at_epoch_end(0)


class Ends(keras.callbacks.Callback):
    """The epochs that have ended, with their logs, in all calls of `fit`."""

    def __init__(self):
        super().__init__()
        self.ended = []

    def on_epoch_end(self, epoch, logs=None):
        self.ended.append((epoch, logs))

    def as_ended(self):
        """A hook for a batch has an evaluation add up its batches in another way."""
        return [(epoch, pytest.approx(logs, rel=1e-6)) for epoch, logs in self.ended]


def ask(model):
    tf2dist.preempt("the test")


def stop(model):
    model.stop_training = True


def stop_and_ask(model):
    stop(model)
    ask(model)


@pytest.fixture
def process(monkeypatch):
    """process(): from here on as in a process that has joined nothing."""

    def begin(**options):
        monkeypatch.setattr(session, "_current", Session(**options))

    begin()
    return begin


def fit(strategy, *callbacks, epochs=EPOCHS, make_optimizer=OPTIMIZERS["adam"], **options):
    with strategy.scope():
        model = classifier(make_optimizer(), keras.layers.Dropout(0.3, seed=1))
    tf2dist.fit(
        model, data(), batch_size=BATCH, seed=3, epochs=epochs, steps_per_execution=2, validation_data=data(1),
        validation_batch_size=BATCH, callbacks=[*callbacks], **options,
    )  # fmt: skip
    return model


MOMENTS = {
    "before the first step": ("on_train_begin", 0, 0, ask),
    "in an epoch": ("on_train_batch_end", 1, 3, ask),
    "at the last step of an epoch": ("on_train_batch_end", 1, STEPS - 1, ask),
    "in a validation": ("on_test_batch_end", 1, 0, ask),
    "at the end of an epoch": ("on_epoch_end", 1, 0, ask),
    "in the last validation": ("on_test_batch_end", EPOCHS - 1, 0, ask),
    "at the end of the last epoch": ("on_epoch_end", EPOCHS - 1, 0, ask),
    "after the last step": ("on_train_end", EPOCHS - 1, 0, ask),
}
SAMPLE = ("in an epoch", "in a validation", "after the last step")


@pytest.mark.parametrize("moment", sampled(MOMENTS, slow=SAMPLE))
def test_the_next_call_ends_as_one_alone_would(strategy, tmp_path, process, moment):
    expected = fit(strategy, alone := Ends())
    hook, epoch, batch, action = MOMENTS[moment]
    ends = Ends()
    with pytest.raises(Preempted) as error:
        fit(strategy, tf2dist.Checkpoint(tmp_path), At(hook, epoch, action, batch), ends)
    assert error.value.code == START_AGAIN == 75
    assert read_status(tmp_path)[0] == "preempted"
    process()
    model = fit(strategy, tf2dist.Checkpoint(tmp_path), ends)
    assert tf2dist.updates(model) == EPOCHS * STEPS
    for ours, theirs in zip(model.weights, expected.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert ends.ended == alone.as_ended()
    assert read_status(tmp_path)[0] == "done"


@pytest.mark.parametrize(("moment", "step"), [("before the first step", None), ("at the end of an epoch", 2 * STEPS)])
def test_what_was_saved_is_said(tf, tmp_path, process, caplog, moment, step):
    hook, epoch, batch, action = MOMENTS[moment]
    with pytest.raises(Preempted):
        fit(tf2dist.make_strategy("one"), tf2dist.Checkpoint(tmp_path), At(hook, epoch, action, batch))
    said = [record.getMessage() for record in caplog.records if "has saved step" in record.getMessage()]
    assert [message.split(" in ")[0] for message in said] == (
        [f"tf2dist: the job has saved step {step}"] if step else []
    )


STOPS = {
    "in an epoch": ("on_train_batch_end", 1, 3, stop_and_ask),
    "at the end of an epoch": ("on_epoch_end", 1, 0, stop_and_ask),
    "and then asked in its validation": ("on_train_batch_end", 1, 3, stop),
    "and then asked after the training": ("on_epoch_end", 1, 0, stop),
}


@pytest.mark.slow
@pytest.mark.parametrize("when", sampled(STOPS, ("and then asked after the training",), [*STOPS][:3]))
def test_a_training_that_a_callback_has_stopped_is_not_gone_on_with(tf, tmp_path, process, when):
    """The next job knows of it, though not of the callback, which may have counted epochs."""
    strategy = tf2dist.make_strategy("one")
    hook, epoch, batch, action = STOPS[when]
    alone, ends = Ends(), Ends()
    expected = fit(strategy, At(hook, epoch, stop, batch), alone)
    second = {
        "and then asked in its validation": At("on_test_batch_end", 1, ask),
        "and then asked after the training": At("on_train_end", 1, ask),
    }.get(when, Ends())
    with pytest.raises(Preempted):
        fit(strategy, tf2dist.Checkpoint(tmp_path), At(hook, epoch, action, batch), second, ends)
    for _ in range(2):  # a job that is asked again when there is nothing left to train
        process()
        with pytest.raises(Preempted):
            fit(strategy, tf2dist.Checkpoint(tmp_path), At("on_train_end", 0, ask), ends)
    process()
    model = fit(strategy, tf2dist.Checkpoint(tmp_path), ends)
    assert tf2dist.updates(model) == tf2dist.updates(expected) < EPOCHS * STEPS
    for ours, theirs in zip(weights(model), weights(expected), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert ends.ended == alone.as_ended()
    more = fit(strategy, tf2dist.Checkpoint(tmp_path))  # nobody has asked that job to stop
    assert tf2dist.updates(more) == EPOCHS * STEPS


@pytest.mark.slow
def test_a_checkpoint_of_the_same_step_is_written_again(tf, tmp_path, process):
    """One that was due at the last step of an epoch says nothing of a validation that was not made."""
    strategy, ends = tf2dist.make_strategy("one"), Ends()
    expected = fit(strategy, alone := Ends())
    with pytest.raises(Preempted):
        fit(strategy, tf2dist.Checkpoint(tmp_path, every_steps=STEPS), At("on_test_batch_end", 1, ask), ends)
    process()
    model = fit(strategy, tf2dist.Checkpoint(tmp_path), ends)
    assert ends.ended == alone.as_ended()
    np.testing.assert_array_equal(weights(model)[0], weights(expected)[0])


@pytest.mark.slow
@pytest.mark.parametrize("epoch", [1, EPOCHS - 1])
def test_an_epoch_that_was_ended_by_the_next_job_is_not_ended_again(tf, tmp_path, process, epoch):
    """The checkpoint that says so is of the same step as the one before."""
    strategy, alone, ends = tf2dist.make_strategy("one"), Ends(), Ends()
    fit(strategy, alone)
    for hook in ("on_test_batch_end", "on_epoch_end"):
        with pytest.raises(Preempted):
            fit(strategy, tf2dist.Checkpoint(tmp_path), At(hook, epoch, ask), ends)
        process()
    fit(strategy, tf2dist.Checkpoint(tmp_path), ends)
    assert ends.ended == alone.as_ended()


@pytest.mark.slow
def test_averages_that_a_validation_puts_in_place_are_not_saved_as_weights(tf, tmp_path, process):
    """It is ended first: `SwapEMAWeights` puts them in place as it begins, and takes them out as it ends."""
    strategy, alone, ends = tf2dist.make_strategy("one"), Ends(), Ends()

    def train(*callbacks):
        return fit(
            strategy, keras.callbacks.SwapEMAWeights(), *callbacks,
            make_optimizer=lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9),
        )  # fmt: skip

    expected = train(alone)
    with pytest.raises(Preempted):
        train(tf2dist.Checkpoint(tmp_path), At("on_test_batch_end", 1, ask), ends)
    assert len(ends.ended) == 2
    process()
    model = train(tf2dist.Checkpoint(tmp_path), ends)
    assert ends.ended == alone.as_ended()
    for ours, theirs in zip(weights(model), weights(expected), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment", ["in an epoch", "at the last step of an epoch", "in a validation", "at the end of an epoch"]
)
def test_a_rate_that_goes_by_the_last_one_is_changed_once_an_epoch(tf, tmp_path, process, moment):
    """Whether the job saves before the epoch's beginning, or after it, when the hook has changed it."""

    def train(*callbacks):
        halve = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2 if epoch else rate)
        return fit(tf2dist.make_strategy("one"), halve, *callbacks)

    hook, epoch, batch, action = MOMENTS[moment]
    expected = train()
    with pytest.raises(Preempted):
        train(tf2dist.Checkpoint(tmp_path), At(hook, epoch, action, batch))
    process()
    model = train(tf2dist.Checkpoint(tmp_path))
    assert float(model.optimizer.learning_rate) == float(expected.optimizer.learning_rate)
    for ours, theirs in zip(weights(model), weights(expected), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["at the last step of an epoch", "in a validation", "in the last validation"])
def test_a_train_step_of_ones_own_ends_its_epoch(tf, tmp_path, process, moment):
    """Only the process that has made its steps knows their logs."""

    class Own(keras.Sequential):
        def train_step(self, batch):
            return super().train_step(batch) | {"rate": self.optimizer.learning_rate}

    def train(*callbacks):
        model = Own(
            [keras.Input(data()[0].shape[1:]), keras.layers.Flatten(), keras.layers.Dense(3, kernel_initializer="ones")]
        )
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
        tf2dist.fit(
            model, data(), batch_size=BATCH, seed=3, epochs=EPOCHS, validation_data=data(1), callbacks=callbacks,
            steps_per_execution=2,
        )  # fmt: skip

    hook, epoch, batch, action = MOMENTS[moment]
    alone, ends = Ends(), Ends()
    train(alone)
    with pytest.raises(Preempted):
        train(tf2dist.Checkpoint(tmp_path), At(hook, epoch, action, batch), ends)
    process()
    train(tf2dist.Checkpoint(tmp_path), ends)
    assert ends.ended == alone.as_ended()


def test_without_a_checkpoint_training_goes_on(tf, process):
    model = fit(tf2dist.make_strategy("one"), At("on_train_batch_end", 1, ask, 3))
    assert tf2dist.updates(model) == EPOCHS * STEPS


def test_who_was_asked_before_the_call_makes_no_step(tf, tmp_path, process):
    assert not tf2dist.preempt()
    with pytest.raises(Preempted):
        fit(tf2dist.make_strategy("one"), tf2dist.Checkpoint(tmp_path))
    assert checkpoint_files.list_checkpoints(tmp_path) == []


@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_written_is_an_error(tf, tmp_path, process, monkeypatch):
    """Nothing says that the job may be started again to go on."""

    def full(*args, **kwargs):
        raise checkpoint_files.UnwrittenError("the disk is full")

    monkeypatch.setattr(checkpoint_files, "write_checkpoint", full)
    with pytest.raises(CheckpointError, match="the disk is full"):
        fit(tf2dist.make_strategy("one"), tf2dist.Checkpoint(tmp_path), At("on_train_batch_end", 1, ask, 3))
    assert read_status(tmp_path)[0] == "failed"
    assert not session.current().preemption.ends_job


@pytest.mark.slow
def test_a_data_set_that_python_makes_goes_on(tf, tmp_path, process):
    """At the batch where it was."""

    def batches():
        x, y = data()
        while True:
            yield from ((x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, len(x), BATCH))

    def train(*callbacks):
        model = classifier(OPTIMIZERS["adam"]())
        tf2dist.fit(model, batches(), epochs=EPOCHS, steps_per_epoch=STEPS, callbacks=[*callbacks])
        return weights(model)

    expected = train()
    with pytest.raises(Preempted):
        train(tf2dist.Checkpoint(tmp_path), At("on_train_batch_end", 1, ask, 3))
    process()
    for ours, theirs in zip(train(tf2dist.Checkpoint(tmp_path)), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_data_that_end_since_the_job_was_asked_to_stop(tf, tmp_path, process, caplog):
    """The processes that make them were asked, too. The job goes on from the last checkpoint, and has not failed."""

    def batches(asks):
        x, y = data()
        for number in range(EPOCHS * STEPS):
            if asks and number == 2 * STEPS + 3:
                tf2dist.preempt("the test")
                raise EOFError("the process is gone")
            begin = number % STEPS * BATCH
            yield x[begin : begin + BATCH], y[begin : begin + BATCH]

    def train(*callbacks, asks=False):
        model = classifier(OPTIMIZERS["adam"]())
        # Read where it is trained on, so that a batch is made when the one before was used.
        tf2dist.fit(model, batches(asks), epochs=EPOCHS, steps_per_epoch=STEPS, callbacks=[*callbacks])
        return weights(model)

    expected = train()
    with pytest.raises(Preempted) as error:
        train(tf2dist.Checkpoint(tmp_path, every_steps=STEPS), asks=True)
    assert error.value.alone
    assert "the job was asked to stop, and EOFError: the process is gone came before it had saved" in caplog.text
    assert read_status(tmp_path)[0] == "preempted"
    process()
    for ours, theirs in zip(train(tf2dist.Checkpoint(tmp_path)), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_a_task_that_is_lost_before_all_is_saved_is_no_failure(tf, tmp_path, process, monkeypatch):
    """Its platform may have given it less time."""

    def lose(model):
        ask(model)
        session.current().end_for_loss("worker 1 is gone")

    monkeypatch.setattr(session, "exit_now", sys.exit)
    with pytest.raises(SystemExit) as error:
        fit(tf2dist.make_strategy("one"), tf2dist.Checkpoint(tmp_path), At("on_train_batch_end", 1, lose, 3))
    assert error.value.code == START_AGAIN
    assert read_status(tmp_path)[0] == "preempted"


def test_an_evaluator_ends_with_the_training_to_be_started_again(tf, tmp_path, process):
    from tf2dist.training import evaluator_task

    process(role=Role.EVALUATOR, start_timeout=60)
    os.makedirs(tmp_path / "checkpoint-7")
    found = evaluator_task._new_checkpoints(str(tmp_path))
    write_status(str(tmp_path), "training")
    status = json.loads((tmp_path / "status.json").read_text())
    (tmp_path / "status.json").write_text(json.dumps({**status, "state": "preempted", "time": status["time"] + 5}))
    assert next(found) == str(tmp_path / "checkpoint-7")
    with pytest.raises(Preempted):
        next(found)


class Following:
    """An evaluator of a directory with one checkpoint, whose training is as its status says."""

    def __init__(self, directory, *states):
        with tf2dist.make_strategy("one").scope():
            self.model = classifier(OPTIMIZERS["adam"](), keras.layers.Dropout(0.3, seed=1))
        self.directory, self.states, self.evaluated = str(directory), [*states], []

    def fit(self):
        options = {"validation_data": data(), "callbacks": [tf2dist.Checkpoint(self.directory)]}
        return tf2dist.fit(self.model, data(), validation_batch_size=1, **options)

    def look(self, directory):
        """In place of reading the file: the next state, the last one for ever; each some seconds after the others."""
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return state, 2e9 - len(self.states)


@pytest.fixture
def following(tf, tmp_path, process, monkeypatch):
    """following(*states): an evaluator in a process that gets SIGTERM when the first evaluation is under way."""
    from tf2dist.training import evaluator_task, prepared_model

    strategy = tf2dist.make_strategy("one")
    fit(strategy, tf2dist.Checkpoint(tmp_path), epochs=1)

    def begin(*states):
        found = Following(tmp_path, *states)
        process(role=Role.EVALUATOR, preemptible=True)
        whole = prepared_model.PreparedModel.validate

        def validate(self, *args, **options):
            if not found.evaluated:
                assert session.current().preemption.request("SIGTERM")
            found.evaluated.append(logs := whole(self, *args, **options))
            return logs

        monkeypatch.setattr(prepared_model.PreparedModel, "validate", validate)
        monkeypatch.setattr(evaluator_task, "read_status", found.look)
        monkeypatch.setattr(evaluator_task, "_POLL_SECONDS", 0.01)
        return found

    return begin


@pytest.mark.slow
def test_an_evaluator_that_is_asked_to_stop_ends_after_the_training(following):
    """A launcher may kill the others when one has ended, and they have not saved yet."""
    evaluator = following("training", "training", "training", "training", "training", "preempted")
    with pytest.raises(Preempted):
        evaluator.fit()
    assert evaluator.evaluated == [None]
    assert evaluator.states == ["preempted"]


@pytest.mark.slow
def test_an_evaluator_that_alone_is_asked_to_stop_ends(following, monkeypatch):
    from tf2dist.training import evaluator_task

    monkeypatch.setattr(evaluator_task, "_SAVES_WITHIN", 0.1)
    with pytest.raises(Preempted):
        following("training").fit()


@pytest.mark.slow
def test_an_evaluator_that_is_asked_to_stop_since_the_training_is_done_evaluates_the_rest(following):
    evaluator = following("training", "training", "training", "done")
    history = evaluator.fit()
    assert history.epoch == [STEPS]
    assert evaluator.evaluated[0] is None
    assert evaluator.evaluated[1] is not None
    session.current().preemption._end_at_once()  # another SIGTERM, as the program ends
    assert session.current().preemption.leave() == 0
