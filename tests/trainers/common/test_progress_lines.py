import math
from types import SimpleNamespace

import pytest

import tf2dist
from trainers.common.progress_lines import EpochLines, StepLines
from trainers.common.training_timer import TrainingTimer


class Clock:
    """Shows the time that the test has set."""

    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def said():
    return []


@pytest.fixture(autouse=True)
def updates(monkeypatch):
    """Models here are the number of their updates."""
    monkeypatch.setattr(tf2dist, "updates", lambda model: model.updates)


def train(lines, clock, epochs, seconds_a_step=0.01, logs=None, begun=0):
    """Calls the hooks as `fit` does: `epochs` are lists of the lengths of executions, in steps.

    An earlier job has made the first `begun` steps of the first epoch.
    """
    lines.set_model(SimpleNamespace(updates=begun))
    lines.on_train_begin()
    for number, executions in enumerate(epochs):
        lines.on_epoch_begin(number)
        done, begun = begun, 0
        for steps in executions:
            lines.on_train_batch_begin(done)
            clock.now += steps * seconds_a_step
            done += steps
            lines.model.updates += steps
            lines.on_train_batch_end(done - 1, logs)
        lines.on_epoch_end(number, logs)


def steps_of(said):
    return [int(line.split()[1]) for line in said]


def test_first_step(clock):
    first = TrainingTimer(95.0, clock)
    assert first.seconds_to_first_step is None
    clock.now = 102.5
    first.on_train_batch_end(0)
    clock.now = 200.0
    first.on_train_batch_end(1)
    assert first.seconds_to_first_step == 7.5


@pytest.mark.parametrize(("epoch", "batch"), [(2, 0), (2, 30)])
def test_training_that_goes_on_from_a_checkpoint(clock, said, epoch, batch):
    lines = StepLines(said.append, 10, 100, 60, clock)
    lines.on_epoch_begin(epoch)
    lines.on_train_batch_begin(batch)
    clock.now += 0.1
    lines.on_train_batch_end(batch + 9)
    assert said[0].startswith(f"step {120 + batch + 10}  epoch 3  batch {batch + 10}/60")
    assert "  10.00 ms/step  " in said[0]


def test_a_line_an_epoch(clock, said):
    lines = EpochLines(said.append, 3, 12.5, clock)
    train(lines, clock, [[50], [60, 40]], logs={"val_loss": 0.25, "accuracy": 0.98765, "loss": 0.5})
    assert said == [
        "epoch 1/3  accuracy 0.9877  loss 0.5000  val_loss 0.2500  0.5 s  1,250 examples/s",
        "epoch 2/3  accuracy 0.9877  loss 0.5000  val_loss 0.2500  1.0 s  1,250 examples/s",
    ]


def test_the_rest_of_an_epoch_that_was_begun_has_the_rate_of_a_whole_one(clock, said):
    train(EpochLines(said.append, 2, 100, clock), clock, [[10], [100]], begun=90)
    assert said == ["epoch 1/2    0.1 s  10,000 examples/s", "epoch 2/2    1.0 s  10,000 examples/s"]


def test_an_epoch_that_took_no_time_and_has_no_logs(clock, said):
    train(EpochLines(said.append, 1, 10, clock), clock, [[1]], seconds_a_step=0.0)
    assert said == ["epoch 1/1    0.0 s  0 examples/s"]


def test_a_line_for_so_many_steps(clock, said):
    lines = StepLines(said.append, 10, 100, 600, clock)
    train(lines, clock, [[10, 10]], logs={"loss": 0.5, "accuracy": 0.25})
    assert said == [
        "step 10  epoch 1  batch 10/600  cost 0.5000  accuracy 0.2500  10.00 ms/step  10,000 examples/s",
        "step 20  epoch 1  batch 20/600  cost 0.5000  accuracy 0.2500  10.00 ms/step  10,000 examples/s",
    ]


def test_every_step(clock, said):
    train(StepLines(said.append, 1, 100, 2, clock), clock, [[1, 1, 1]])
    assert [" ".join(line.split()[:6]) for line in said] == [
        "step 1 epoch 1 batch 1/2",
        "step 2 epoch 1 batch 2/2",
        "step 3 epoch 2 batch 1/2",
    ]
    assert all("cost nan  accuracy nan" in line for line in said)


@pytest.mark.parametrize(
    ("every", "epochs", "steps"),
    [
        (10, [[10, 10, 5]], [10, 20]),
        (10, [[4, 4, 4, 4, 4]], [12, 20]),
        (10, [[25]], [25]),
        (10, [[25, 10]], [25, 35]),
        (10, [[6], [6], [6], [6]], [12, 24]),
        (10, [[9]], []),
        (1, [[3, 2]], [3, 5]),
        (100, [[15]] * 14, [105, 210]),
    ],
)
def test_when_there_is_a_line(clock, said, every, epochs, steps):
    train(StepLines(said.append, every, 100, 600, clock), clock, epochs)
    assert steps_of(said) == steps


@pytest.mark.parametrize(("every", "epochs"), [(10, [[4, 4, 4, 4, 4]]), (10, [[10, 5, 10]]), (100, [[15]] * 14)])
def test_the_time_of_a_step_is_right_however_long_the_executions_are(clock, said, every, epochs):
    # An execution is cut at the end of an epoch: a line then tells of more steps than the last execution had.
    train(StepLines(said.append, every, 100, 600, clock), clock, epochs, seconds_a_step=0.01)
    assert said
    for line in said:
        assert "  10.00 ms/step  10,000 examples/s" in line


def test_a_slow_first_line_does_not_slow_the_next(clock, said):
    lines = StepLines(said.append, 1, 100, 600, clock)
    lines.on_train_begin()
    lines.on_epoch_begin(0)
    lines.on_train_batch_begin(0)
    clock.now += 5.0
    lines.on_train_batch_end(0)
    clock.now += 0.02
    lines.on_train_batch_end(1)
    assert "5000.00 ms/step  20 examples/s" in said[0]
    assert "20.00 ms/step  5,000 examples/s" in said[1]


def test_a_clock_that_stands_still(clock, said):
    train(StepLines(said.append, 1, 100, 600, clock), clock, [[1]], seconds_a_step=0.0)
    assert len(said) == 1
    assert math.isfinite(float(said[0].split(" ms/step")[0].split()[-1]))
