"""Fits a straight line on any strategy: python -m trainers.linear --preset=adagrad --strategy=ps.

Preset adagrad: 101 points with y = 2 x + 0.2 + 0.4 N(0, 1), one a step, by Adagrad with rate 0.8. At this rate the
last weights still jump about, so the result is their mean over the last third of the steps.
Preset sgd: fresh points with y = 2 x + 10 + 0.33 N(0, 1), one a step. At its rate of 1e-5 it needs about 500,000 steps;
--learning_rate=1e-3 --max_steps=5000 comes as far.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from absl import flags

from tf2dist.errors import UsageError
from trainers.common import main, training_flags


@dataclass(frozen=True)
class Preset:
    """Points, a model, and its hyperparameters.

    Attributes:
      points: makes the points from the seed.
      model: makes the compiled model from the learning rate.
      max_steps: updates of one point each.
      print_every: updates of one point each between two lines of progress.
    """

    points: Callable
    model: Callable
    learning_rate: float
    max_steps: int
    print_every: int


def _fixed_points(seed: int):
    from trainers.linear_points import FixedPoints

    return FixedPoints(2.0, 0.2, 0.4, seed)


def _fresh_points(seed: int):
    from trainers.linear_points import FreshPoints

    return FreshPoints(2.0, 10.0, 0.33, seed)


def _compiled(kernel, bias, optimizer, jit_compile: bool):
    """x f32[b, 1] -> w x + b f32[b, 1]."""
    import keras

    layer = keras.layers.Dense(1, kernel_initializer=kernel, bias_initializer=bias)
    model = keras.Sequential([keras.Input((1,)), layer])
    model.compile(optimizer, "mse", jit_compile=jit_compile)
    return model


def _adagrad(learning_rate: float, *, seed, jit_compile):
    """From (-1, -2); Adagrad as TensorFlow 1 had it: the sum of squares starts at 0.1, and nothing is added to it."""
    import keras

    from tf2dist.optimizers.averaging import AveragingAdagrad

    w, b = (keras.initializers.Constant(value) for value in (-1.0, -2.0))
    optimizer = AveragingAdagrad(learning_rate, initial_accumulator_value=0.1, epsilon=0.0)
    return _compiled(w, b, optimizer, jit_compile)


def _sgd(learning_rate: float, *, seed, jit_compile):
    """From N(0, 1)."""
    import keras

    w, b = (keras.initializers.RandomNormal(stddev=1.0, seed=2 * seed + i) for i in range(2))
    return _compiled(w, b, keras.optimizers.SGD(learning_rate), jit_compile)


PRESETS = {
    "adagrad": Preset(_fixed_points, _adagrad, 0.8, 100 * 101, 10 * 101),
    "sgd": Preset(_fresh_points, _sgd, 1e-5, 500_000, 1000),
}
_PRESET = flags.DEFINE_enum("preset", "adagrad", list(PRESETS), "Points, optimizer and their numbers.")
_MAX_STEPS = flags.DEFINE_integer("max_steps", None, "Updates; the preset's.", lower_bound=1)
_STEPS_TO_VALIDATE = flags.DEFINE_integer(
    "steps_to_validate", None, "Updates between two lines of progress; the preset's.", lower_bound=1
)
_LEARNING_RATE = flags.DEFINE_float("learning_rate", None, "The preset's if not given.", lower_bound=0.0)
_SYNC = flags.DEFINE_boolean("sync", False, "Under ps: updates of all workers' gradients on the same weights.")
_SAVE_SECONDS = flags.DEFINE_float("save_seconds", 10.0, "Between two checkpoints in --logdir.", lower_bound=0.1)

_STEPS_PER_EXECUTION = 1000
_STEPS_PER_PS_EXECUTION = 100  # fewer, because an execution is repeated when its worker dies


def prepare(shared):
    """Checks the flags, before TensorFlow is imported."""
    training_flags.check_learning_rate(_LEARNING_RATE.value)
    if not math.isfinite(_SAVE_SECONDS.value):
        raise UsageError(f"--save_seconds={_SAVE_SECONDS.value} is no number of seconds; give one from 0.1 on")
    if _SYNC.value and shared.strategy != "ps":
        raise UsageError(f"--sync is for strategy ps, and the strategy is {shared.strategy}")


def train(run, prepared):
    """Fits the line and compares it with the known solution."""
    import tf2dist
    from trainers.common import logdir
    from trainers.common.training_timer import TrainingTimer
    from trainers.linear_progress import WeightAndBiasLines, weight_and_bias

    preset, shared = PRESETS[_PRESET.value], run.shared
    batch_size = _batch_size(run)
    points = preset.points(shared.seed)
    points_per_step = batch_size if points.rows else 1  # keeps the number of passes, where there are passes
    steps = _MAX_STEPS.value or math.ceil(preset.max_steps / points_per_step)
    every = _STEPS_TO_VALIDATE.value or math.ceil(preset.print_every / points_per_step)
    learning_rate = preset.learning_rate if _LEARNING_RATE.value is None else _LEARNING_RATE.value
    run.say(
        f"preset {_PRESET.value}, strategy {shared.strategy} ({shared.layout}), {batch_size} "
        f"point{'s' if batch_size > 1 else ''} an update, learning rate {learning_rate:g}"
    )

    with run.strategy.scope():
        model = preset.model(learning_rate, seed=shared.seed, jit_compile=shared.xla)
    timer = TrainingTimer(run.began)
    callbacks = [timer, WeightAndBiasLines(run.say, every, points.rows and points.rows / batch_size)]
    callbacks += logdir.callbacks(run, every_seconds=_SAVE_SECONDS.value)

    began = time.perf_counter()
    tf2dist.fit(
        model,
        points.training_data(batch_size),
        epochs=1,
        steps_per_epoch=steps,
        validation_data=points.test_data() if run.evaluates else None,
        callbacks=callbacks,
        steps_per_execution=_steps_per_execution(
            every, _STEPS_PER_PS_EXECUTION if shared.strategy == "ps" else _STEPS_PER_EXECUTION
        ),
        parameter_server=tf2dist.ParameterServer("sync") if _SYNC.value else None,
        verbose=0,
    )
    if run.evaluates:
        return {}
    seconds = time.perf_counter() - began
    loss = tf2dist.evaluate(model, points.test_data(), batch_size=1000, return_dict=True, verbose=0)["loss"]
    w, b = weight_and_bias(model)
    right_w, right_b = points.solution
    done, trained = tf2dist.updates(model), timer.updates
    run.say(f"w {w:.4f}  b {b:.4f}  loss {loss:.4f}; {points.solution_name}: w {right_w:.4f}  b {right_b:.4f}")
    if trained < done:
        run.say(f"went on from a checkpoint of {done - trained:,} steps in {shared.logdir}")
    run.say(f"{trained:,} steps in {seconds:.1f} s, {trained / seconds:,.0f} steps/s")
    logdir.save_model(run, model)
    return {
        "preset": _PRESET.value,
        "w": w,
        "b": b,
        "loss": loss,
        "steps": done,
        "right_w": right_w,
        "right_b": right_b,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "steps_per_second": trained / seconds,
        "seconds": seconds,
    }


def _batch_size(run) -> int:
    """Returns the global batch size: one point for each replica that takes part in an update."""
    if _SYNC.value:
        return run.shared.cluster.count("worker")
    return run.strategy.num_replicas_in_sync


def _steps_per_execution(every: int, most: int) -> int:
    """Returns a divisor of `every`, so that executions end where lines are due; `most` if all are small."""
    best = max(n for n in range(1, most + 1) if every % n == 0)
    return best if best >= min(every, most / 10) else most


if __name__ == "__main__":
    main.run(train, prepare)
