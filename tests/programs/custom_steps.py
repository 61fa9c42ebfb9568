"""Run in every process of a parameter server job: trains models with steps of their own, and saves what came out.

python -m launch local --ps=2 --workers=N -- tests.programs.custom_steps OUT [CASE ...]

Without cases it is two models with two optimizers: one whose epochs are long enough to kill a worker in their middle,
and which makes a file OUT.under_way when the second of them begins, and those that are refused.
"""

import pathlib
import pickle
import sys
import traceback

import tf2dist

strategy = tf2dist.join("ps")
out = pathlib.Path(sys.argv[1])

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from tests.custom_step_cases import (  # noqa: E402
    BATCH,
    CASES,
    WITHOUT_OTHER_REPLICAS,
    Adversaries,
    OwnUpdate,
    batches,
    one_layer,
    sgd,
    x,
)

EPOCHS, STEPS = 4, 150


def trained(name):
    make, rows = (CASES | WITHOUT_OTHER_REPLICAS)[name]
    with strategy.scope():
        model = make()
    history = tf2dist.fit(model, batches(rows), epochs=2, verbose=0).history
    evaluated = tf2dist.evaluate(model, batches(rows), return_dict=True, verbose=0) if name == "siamese" else {}
    return [v.numpy() for v in model.trainable_variables], history, evaluated


class Counting(Adversaries):
    """The critic is trained twice as often; counts the examples, and how often it has seen each of them."""

    def __init__(self):
        super().__init__()
        self.times = tf.Variable(tf.zeros([BATCH * STEPS], tf.int32))
        self.seen, self.left = (
            self.add_weight(shape=(), initializer="zeros", trainable=False, name=name) for name in ("seen", "left")
        )

    def compile(self, *args, **kwargs):
        super().compile(*args, **kwargs)
        self.examples = keras.metrics.Sum(name="examples")

    @property
    def metrics(self):
        return [*super().metrics, self.examples]

    def train_step(self, real):
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(keras.ops.square(self.critic(real)))
        gradients = tape.gradient(loss, self.critic.trainable_weights)
        self.d_optimizer.apply_gradients(zip(gradients, self.critic.trainable_weights, strict=True))
        self.examples.update_state(keras.ops.ones_like(real[:, 0]))
        numbers = tf.cast(tf.round(real[:, -1] * 1e6), tf.int32)
        tf.raw_ops.ResourceScatterAdd(resource=self.times.handle, indices=numbers, updates=tf.ones_like(numbers))
        self.seen.assign_add(keras.ops.cast(keras.ops.shape(real)[0], "float32"))
        self.left.assign_sub(1.0)
        return super().train_step(real) | {"examples": self.examples.result()}


class Tells(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            out.with_suffix(".under_way").touch()


def counted():
    with strategy.scope():
        model = Counting()
        model.compile(sgd(), sgd(), keras.losses.BinaryCrossentropy(from_logits=True))
    before = [v.numpy() for v in model.trainable_variables]
    rows = np.resize(x, (BATCH * STEPS, 12))
    rows[:, -1] = np.arange(len(rows)) * 1e-6
    history = tf2dist.fit(model, rows, batch_size=BATCH, epochs=EPOCHS, callbacks=[Tells()], verbose=0).history
    changed = [not np.array_equal(a, v.numpy()) for a, v in zip(before, model.trainable_variables, strict=True)]
    counts = [int(o.iterations.numpy()) for o in (model.d_optimizer, model.g_optimizer)]
    own = [int(v.numpy()) for v in (model.seen, model.left)]
    return history, counts, own, all(changed), model.times.numpy()


def refused(make=CASES["other names"][0], **options):
    with strategy.scope():
        model = make()
    try:
        tf2dist.fit(model, batches(CASES["other names"][1]), parameter_server=tf2dist.ParameterServer(**options))
    except ValueError as error:
        return str(error)
    return "nothing"


results = {}
for name in sys.argv[2:]:
    try:
        results[name] = trained(name)
    except Exception:
        results[name] = traceback.format_exc()
    keras.backend.clear_session(free_memory=False)
if not sys.argv[2:]:
    results["counted"] = counted()
    averaging = one_layer(OwnUpdate, lambda: keras.optimizers.SGD(0.1, use_ema=True))
    results["refused"] = refused(update="sync"), refused(local_steps=4), refused(averaging)
out.write_bytes(pickle.dumps(results))
