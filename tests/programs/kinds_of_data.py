"""Run in every process of a cluster: reads data of several kinds and saves what came out.

python -m launch local --workers=2 -- tests.programs.kinds_of_data STRATEGY OUT
"""

import gc
import json
import pathlib
import sys
import weakref

import tf2dist

strategy = tf2dist.join(sys.argv[1])
out = pathlib.Path(sys.argv[2])

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from tests.custom_step_cases import CASES as CUSTOM_STEPS  # noqa: E402
from tests.custom_step_cases import batches  # noqa: E402
from tests.input.test_structures import pair_data, pair_model  # noqa: E402
from tf2dist.errors import UsageError  # noqa: E402

BATCH, ROWS = 16, 96
SYNC = tf2dist.ParameterServer("sync") if sys.argv[1] == "ps" else None
leads = sys.argv[1] == "ps" or strategy.cluster_resolver.task_id == 0
results = {}


def whose_files(y_true, y_pred):
    """0.0 for a batch whose rows are all from even files, or all from odd ones."""
    return keras.ops.max(y_true) - keras.ops.min(y_true)


def counter(metrics=()):
    """Its weights become how often each example was seen, times a constant."""
    model = keras.Sequential([keras.Input((ROWS,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(1.0), lambda y, y_pred: -keras.ops.mean(y_pred, axis=-1), metrics=[*metrics])
    return model


def word_counter(words):
    """Embeddings of words, and of -1, become how often each was seen, times a constant."""
    numbers = keras.Input((None,), dtype="int64")
    model = keras.Model(numbers, keras.ops.sum(words(numbers + 1), axis=1))
    model.compile(keras.optimizers.SGD(1.0), lambda y, y_pred: -keras.ops.mean(y_pred, axis=-1))
    return model


service = tf.data.experimental.service
dispatcher = service.DispatchServer()
server = service.WorkerServer(service.WorkerConfig(dispatcher_address=dispatcher.target.partition("://")[2]))
examples = tf.data.Dataset.from_tensor_slices((np.eye(ROWS, dtype=np.float32), np.zeros((ROWS, 1), np.float32)))
for name, dataset in {
    "shuffled": examples.shuffle(ROWS).batch(BATCH),
    "random in a function": examples.shuffle(ROWS).map(lambda x, y: (x, y + tf.random.uniform([1]))).batch(BATCH),
    "service": examples.batch(BATCH).apply(
        service.distribute("parallel_epochs", dispatcher.target, job_name="examples")
    ),
}.items():
    with strategy.scope():
        model = counter()
    try:
        tf2dist.fit(model, dataset, epochs=3, parameter_server=SYNC)
    except UsageError as error:
        results[name] = str(error)
        continue
    results[name] = model.layers[0].kernel.numpy()[:, 0].tolist()
    with strategy.scope():  # each example is evaluated once, whoever reads it
        model.compile(keras.optimizers.SGD(1.0), "mse")
        model.layers[0].kernel.assign(np.arange(ROWS, dtype=np.float32)[:, np.newaxis])
    results[f"{name}, evaluated"] = tf2dist.evaluate(model, dataset, return_dict=True)["loss"]

if sys.argv[1] == "ps":  # asynchronous workers
    with strategy.scope():
        model = counter()
    tf2dist.fit(model, examples.shuffle(ROWS).batch(BATCH), epochs=3)
    results["asynchronous"] = model.layers[0].kernel.numpy()[:, 0].tolist()
    lengths = 1 + np.arange(ROWS) // BATCH % 3 + np.arange(ROWS) % 2
    sequences = tf.data.Dataset.from_tensor_slices((np.arange(ROWS), lengths, np.zeros((ROWS, 1), np.float32)))
    nothing = tf.constant(-1, tf.int64), 0.0
    padded = sequences.map(lambda i, n, y: (tf.fill([n], i), y)).padded_batch(BATCH, padding_values=nothing)
    for name, options in {
        "of other lengths": tf2dist.ParameterServer(),
        "of other lengths, local steps": tf2dist.ParameterServer(local_steps=3),
    }.items():
        with strategy.scope():
            words = keras.layers.Embedding(ROWS + 1, 1, "zeros")
            model = word_counter(words)
        tf2dist.fit(model, padded, epochs=3, parameter_server=options)
        results[name] = words.embeddings.numpy()[1:, 0].tolist()
    results["lengths"] = lengths.tolist()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    for file in range(4):
        out.with_name(f"{file}.txt").write_text("".join(f"{number}\n" for number in range(file, ROWS, 4)))
    files = tf.data.Dataset.list_files(str(out.with_name("*.txt"))).interleave(tf.data.TextLineDataset)
    numbers = files.map(lambda line: tf.strings.to_number(line, tf.int32)).shuffle(ROWS)
    batches = numbers.map(lambda n: (tf.one_hot(n, ROWS), tf.cast([n % 2], tf.float32))).batch(BATCH // 2)
    with strategy.scope():
        model = counter(metrics=[whose_files])
    history = tf2dist.fit(model, batches.with_options(options), epochs=5).history
    results["files"] = model.layers[0].kernel.numpy()[:, 0].tolist()
    results["files of both workers in a batch"] = history["whose_files"]

a, b, y1, y2 = pair_data()
with strategy.scope():
    model = pair_model(2)
history = tf2dist.fit(model, ([a, b], [y1, y2]), batch_size=BATCH, shuffle=False, epochs=2, parameter_server=SYNC)
results["lists"] = [np.asarray(v).tolist() for v in model.trainable_variables]
found = tf2dist.predict(model, [a, b])
results["predicted"] = [np.asarray(p).tolist() for p in found]

if sys.argv[1] == "multiworker":
    for name in ("vae", "several outputs"):
        make, rows = CUSTOM_STEPS[name]
        with strategy.scope():
            model = make()
        history = tf2dist.fit(model, batches(rows, BATCH), epochs=2)
        results[name] = [np.asarray(v).tolist() for v in model.trainable_variables]
        results[f"{name}, history"] = {k: np.asarray(v).tolist() for k, v in history.history.items()}

freed = [weakref.ref(model), weakref.ref(model.layers[-1])]
del model, history, found
gc.collect()
results["freed"] = [ref() is None for ref in freed]
if leads:
    out.write_text(json.dumps(results))
