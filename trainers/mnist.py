"""Trains a digit classifier on any strategy: python -m trainers.mnist --strategy=ps."""

import time

from absl import flags

from tf2dist.data import Source, find
from tf2dist.errors import UsageError
from trainers.common import main, training_flags
from trainers.mnist_networks import PRESETS

_PRESET = flags.DEFINE_enum("preset", "mlp", list(PRESETS), "Network and its numbers.")
_DATASET = flags.DEFINE_string(
    "dataset", "auto", "auto (MNIST, or digits where it cannot be had), mnist, fashion_mnist, digits, synthetic, or "
    "a path of TFRecord files."
)  # fmt: skip
_DATA_DIR = flags.DEFINE_string("data_dir", None, "Where tensorflow-datasets keeps its data.")
_EPOCHS = flags.DEFINE_integer("epochs", None, "Passes over the training data; the preset's.", lower_bound=1)
_STEPS = flags.DEFINE_integer("steps", None, "Updates, instead of epochs; the preset's.", lower_bound=1)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", None, "Examples of one update; the preset's.", lower_bound=1)
_SYNC = flags.DEFINE_boolean("sync", False, "Under ps: updates of all workers' gradients on the same weights.")
_BACKUP_WORKERS = flags.DEFINE_integer(
    "backup_workers", 0, "Workers that a --sync update does not wait for.", lower_bound=0
)
_LOCAL_STEPS = flags.DEFINE_integer(
    "local_steps",
    1,
    "Under ps: updates on a copy of the weights (local SGD) before the servers get the difference.",
    lower_bound=1,
)
_LEARNING_RATE = flags.DEFINE_float("learning_rate", None, "The preset's if not given.", lower_bound=0.0)

_SMALL_DATASET = 5_000  # images; sets up to this size need more passes
_SMALL_DATASET_EPOCHS = 40


def prepare(shared):
    """Checks the flags and finds the data, before TensorFlow is imported."""
    training_flags.check_one_length(_EPOCHS.value, _STEPS.value)
    training_flags.check_learning_rate(_LEARNING_RATE.value)
    _parameter_server(shared)
    if (replicas := shared.replicas_in_sync()) is not None:
        _batch_size(replicas)
    return find(_DATASET.value, _DATA_DIR.value).to_json()


def train(run, prepared):
    """Trains the preset's network and tests it."""
    import tf2dist
    from trainers.common import logdir
    from trainers.common.image_batches import image_batches
    from trainers.common.progress_lines import EpochLines, StepLines
    from trainers.common.training_timer import TrainingTimer

    preset = PRESETS[_PRESET.value]
    source = Source.from_json(prepared)
    if source.note:
        run.say(source.note)
    batch_size = _batch_size(run.strategy.num_replicas_in_sync)
    images = image_batches(source, batch_size, seed=run.shared.seed)
    epochs, steps_per_epoch = _training_length(preset, images)
    data = f"{source.name} ({images.train_examples:,} training, {images.test_examples:,} test images)"
    run.check_same("--dataset", data)
    run.say(
        f"preset {_PRESET.value} on {data}, strategy {run.shared.strategy} ({run.shared.layout}), batch {batch_size}"
    )

    with run.strategy.scope():
        model = preset.build(
            preset.learning_rate if _LEARNING_RATE.value is None else _LEARNING_RATE.value,
            seed=run.shared.seed,
            decay_steps=60_000 / preset.batch_size,
            keep_gradients=bool(run.shared.logdir),
            jit_compile=run.shared.xla,
        )
    timer = TrainingTimer(run.began)
    if preset.print_every:
        lines = StepLines(run.say, preset.print_every, batch_size, images.steps_per_epoch)
    else:
        lines = EpochLines(run.say, epochs, images.train_examples / images.steps_per_epoch)
    callbacks = [timer, lines]
    callbacks += logdir.callbacks(run, every_seconds=60, every_steps=1000)

    began = time.perf_counter()
    tf2dist.fit(
        model,
        images.train,
        epochs=epochs,
        steps_per_epoch=steps_per_epoch,
        validation_data=None if preset.print_every and not run.evaluates else images.test,
        callbacks=callbacks,
        steps_per_execution=preset.print_every,
        parameter_server=_parameter_server(run.shared),
        verbose=0,
    )
    if run.evaluates:
        return {}
    seconds = time.perf_counter() - began
    logs = tf2dist.evaluate(model, images.test, return_dict=True, verbose=0)
    steps = tf2dist.updates(model)
    trained = timer.updates
    rate = trained / images.steps_per_epoch * images.train_examples / seconds
    run.say(f"test accuracy {100 * logs['accuracy']:.2f} %, loss {logs['loss']:.4f} on {images.test_examples:,} images")
    if trained < steps:
        run.say(f"went on from a checkpoint of {steps - trained:,} steps in {run.shared.logdir}")
    if trained:
        speed = f"{trained:,} steps in {seconds:.1f} s, {rate:,.0f} examples/s"
        run.say(f"{speed}; first step after {timer.seconds_to_first_step:.1f} s")
    logdir.save_model(run, model)
    return {
        "preset": _PRESET.value,
        "dataset": source.name,
        "batch_size": batch_size,
        "test_accuracy": logs["accuracy"],
        "test_loss": logs["loss"],
        "test_examples": images.test_examples,
        "steps": steps,
        "examples_per_second": rate,
        "seconds": seconds,
        "first_step_seconds": timer.seconds_to_first_step,
    }


def _parameter_server(shared):
    """Returns the options of strategy ps; None for other strategies. Raises UsageError."""
    from tf2dist.parameter_server.options import ParameterServer

    if shared.strategy != "ps":
        for flag in (_SYNC, _BACKUP_WORKERS, _LOCAL_STEPS):
            if flag.value != flag.default:
                raise UsageError(f"--{flag.name} is for strategy ps, and the strategy is {shared.strategy}")
        return None
    workers = shared.cluster.count("worker") if shared.cluster else shared.workers
    if _SYNC.value and _BACKUP_WORKERS.value >= workers:
        raise UsageError(
            f"--backup_workers={_BACKUP_WORKERS.value} leaves none of the {workers} workers to wait for; at most "
            f"{workers - 1} can be backups"
        )
    try:
        return ParameterServer("sync" if _SYNC.value else "async", _BACKUP_WORKERS.value, _LOCAL_STEPS.value)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _batch_size(replicas: int) -> int:
    """Returns the global batch size, from the flag or the preset. Raises UsageError."""
    preset = PRESETS[_PRESET.value]
    size = _BATCH_SIZE.value or preset.batch_size * (replicas if preset.per_replica else 1)
    return training_flags.check_batch_size(size, replicas)


def _training_length(preset, images) -> tuple[int, int]:
    """Returns the epochs, and the updates of each. A number of steps is trained as one epoch of that length."""
    steps = _STEPS.value or (None if _EPOCHS.value else preset.steps)
    if steps:
        return 1, steps
    epochs = preset.epochs if images.train_examples > _SMALL_DATASET else _SMALL_DATASET_EPOCHS
    return _EPOCHS.value or epochs, images.steps_per_epoch


if __name__ == "__main__":
    main.run(train, prepare)
