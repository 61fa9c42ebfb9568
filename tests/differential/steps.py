"""Models with steps of their own, in the patterns that Keras's guides and examples publish.

Each is a dictionary of methods for a class of a model, so that it goes with every kind of model: `methods`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf
from keras import losses, metrics, ops

from tests.differential.configurations import OWN_MODELS

_Methods = dict[str, Any]


def methods(c: Mapping[str, Any]) -> _Methods:
    """The methods that the configuration's model overrides."""
    own = dict(_STEPS[c["train_step"]]) if c["train_step"] else {}
    if c["test_step"]:
        own["test_step"] = _test_step
    return own


def own_model(c: Mapping[str, Any], trunk: list[keras.layers.Layer]) -> keras.Model:
    """A model that is made of two, and has no `call`."""
    assert c["train_step"] in OWN_MODELS
    made = type("OwnModel", (keras.Model,), methods(c))()
    if c["train_step"] == "autoencoder":
        made.encoder = keras.Sequential([keras.Input((6,)), *trunk])
        made.decoder = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, dtype="float32")])
        made.trackers = [metrics.Mean(name="total_loss"), metrics.Mean(name="reconstruction_loss")]
    else:
        made.critic = keras.Sequential([keras.Input((6,)), *trunk, keras.layers.Dense(1, dtype="float32")])
        made.generator = keras.Sequential([keras.Input((3,)), keras.layers.Dense(6, dtype="float32")])
        made.trackers = [metrics.Mean(name="d_loss"), metrics.Mean(name="g_loss")]
    return made


def finish(c: Mapping[str, Any], made: keras.Model) -> None:
    """Gives a model what its steps keep, as published models do where they are made."""
    if c["train_step"] == "own_metrics":
        made.trackers = [metrics.Mean(name="loss"), metrics.MeanAbsoluteError(name="mae")]
    elif c["train_step"] == "accumulating":
        made.sums = [tf.Variable(tf.zeros(v.shape), trainable=False) for v in made.trainable_variables]
        made.seen = tf.Variable(0, trainable=False)


def _forward(model, data):
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    y_pred = model(x, training=True)
    loss = model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
    return loss, y_pred


def _gradients(model, data):
    """The loss, the outputs and the gradients by the weights."""
    with tf.GradientTape() as tape:
        loss, y_pred = _forward(model, data)
        scaled = model.optimizer.scale_loss(loss)
    return loss, y_pred, tape.gradient(scaled, model.trainable_variables)


def _logs(model, data, y_pred, loss):
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    for metric in model.metrics:
        if metric.name == "loss":
            metric.update_state(loss)
    return model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)


def _tape(self, data):
    loss, y_pred, gradients = _gradients(self, data)
    self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
    return _logs(self, data, y_pred, loss)


def _metrics_loop(self, data):
    """As the guide on what happens in `fit`."""
    _, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    loss, y_pred, gradients = _gradients(self, data)
    self.optimizer.apply(gradients, self.trainable_variables)
    for metric in self.metrics:
        if metric.name == "loss":
            metric.update_state(loss)
        else:
            metric.update_state(y, y_pred, sample_weight=sample_weight)
    return {m.name: m.result() for m in self.metrics}


def _own_metrics(self, data):
    """As the guide's lower level: a loss and metrics of its own, and nothing of `compile` but the optimizer."""
    x, y = data[:2]
    with tf.GradientTape() as tape:
        y_pred = self(x, training=True)
        loss = ops.mean(losses.mean_squared_error(y, y_pred))
        scaled = self.optimizer.scale_loss(loss)
    gradients = tape.gradient(scaled, self.trainable_variables)
    self.optimizer.apply(gradients, self.trainable_variables)
    tracker, error = self.metrics
    tracker.update_state(loss)
    error.update_state(y, y_pred)
    return {"loss": tracker.result(), "mae": error.result()}


def _clipping(self, data):
    loss, y_pred, gradients = _gradients(self, data)
    gradients, norm = tf.clip_by_global_norm(gradients, 0.3)
    self.optimizer.apply(gradients, self.trainable_variables)
    return {"norm": norm, **_logs(self, data, y_pred, loss)}


def _sharpness(self, data):
    """Steps uphill before it takes the gradient (sharpness-aware minimization)."""
    with tf.GradientTape() as tape:
        loss, _ = _forward(self, data)
    gradients = tape.gradient(loss, self.trainable_variables)
    norm = tf.linalg.global_norm([g for g in gradients if g is not None])
    steps = [None if g is None else 0.05 * g / (norm + 1e-6) for g in gradients]
    for variable, step in zip(self.trainable_variables, steps, strict=True):
        if step is not None:
            variable.assign_add(step)
    loss, y_pred, uphill = _gradients(self, data)
    for variable, step in zip(self.trainable_variables, steps, strict=True):
        if step is not None:
            variable.assign_sub(step)
    self.optimizer.apply(uphill, self.trainable_variables)
    return _logs(self, data, y_pred, loss)


def _two_optimizers(self, data):
    """One for kernels, one for everything else."""
    loss, y_pred, gradients = _gradients(self, data)
    pairs = list(zip(gradients, self.trainable_variables, strict=True))
    self.optimizer.apply_gradients([(g, v) for g, v in pairs if v.name == "kernel"])
    scale = self.optimizer.scale_loss(1.0)
    self.second_optimizer.apply_gradients(
        [(None if g is None else g / scale, v) for g, v in pairs if v.name != "kernel"]
    )
    return _logs(self, data, y_pred, loss)


def _compile_two(self, optimizer, second_optimizer, **kwargs):
    keras.Model.compile(self, optimizer, **kwargs)
    self.second_optimizer = second_optimizer


def _accumulating(self, data):
    """Applies the mean of the gradients of two batches."""
    loss, y_pred, gradients = _gradients(self, data)
    self.seen.assign_add(1)
    for total, gradient in zip(self.sums, gradients, strict=True):
        total.assign_add(tf.convert_to_tensor(gradient) / 2)

    def apply():
        self.optimizer.apply_gradients(zip(self.sums, self.trainable_variables, strict=True))
        for total in self.sums:
            total.assign(tf.zeros_like(total))
        self.seen.assign(0)

    tf.cond(self.seen >= 2, apply, lambda: None)
    return _logs(self, data, y_pred, loss)


def _average(self, data):
    """As TensorFlow's guide to custom training with a strategy."""
    x, y = data[:2]
    with tf.GradientTape() as tape:
        y_pred = self(x, training=True)
        loss = tf.nn.compute_average_loss(losses.mean_squared_error(y, y_pred))
        if self.losses:
            loss += tf.nn.scale_regularization_loss(tf.add_n(self.losses))
        scaled = self.optimizer.scale_loss(loss)
    gradients = tape.gradient(scaled, self.trainable_variables)
    self.optimizer.apply(gradients, self.trainable_variables)
    return _logs(self, data, y_pred, loss)


def _gradient_penalty(self, data):
    """As the example of a Wasserstein GAN: the norm of the gradient by each example's inputs is part of the loss."""
    x = data[0]
    with tf.GradientTape() as tape:
        loss, y_pred = _forward(self, data)
        with tf.GradientTape() as inner:
            inner.watch(x)
            outputs = self(x, training=True)
        by_inputs = inner.gradient(outputs, x)
        norm = ops.sqrt(ops.sum(ops.square(by_inputs), axis=1) + 1e-6)
        loss += 0.5 * ops.mean((norm - 1.0) ** 2)
        scaled = self.optimizer.scale_loss(loss)
    gradients = tape.gradient(scaled, self.trainable_variables)
    self.optimizer.apply(gradients, self.trainable_variables)
    return _logs(self, data, y_pred, loss)


def _autoencoder(self, data):
    """As the example of a variational autoencoder, without its noise."""
    data = data[0] if isinstance(data, tuple) else data
    with tf.GradientTape() as tape:
        code = self.encoder(data)
        rebuilt = ops.mean(ops.sum(losses.mean_squared_error(data, self.decoder(code))[:, None], axis=1))
        total = rebuilt + 0.1 * ops.mean(ops.sum(ops.square(ops.cast(code, "float32")), axis=1))
        scaled = self.optimizer.scale_loss(total)
    gradients = tape.gradient(scaled, self.trainable_weights)
    self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
    for tracker, value in zip(self.trackers, (total, rebuilt), strict=True):
        tracker.update_state(value)
    return {"loss": self.trackers[0].result(), "reconstruction_loss": self.trackers[1].result()}


def _adversaries(self, data):
    """As the example of a DCGAN, without its noise."""
    real = data[0]
    code = real[:, :3]
    fake = self.generator(code)
    both = ops.concatenate([fake, real], axis=0)
    labels = ops.concatenate([ops.ones_like(fake[:, :1]), ops.zeros_like(real[:, :1])], axis=0)
    with tf.GradientTape() as tape:
        d_loss = self.loss_fn(labels, self.critic(both))
        scaled = self.d_optimizer.scale_loss(d_loss)
    grads = tape.gradient(scaled, self.critic.trainable_weights)
    self.d_optimizer.apply_gradients(zip(grads, self.critic.trainable_weights, strict=True))
    with tf.GradientTape() as tape:
        g_loss = self.loss_fn(ops.zeros_like(fake[:, :1]), self.critic(self.generator(code)))
    grads = tape.gradient(g_loss, self.generator.trainable_weights)
    self.g_optimizer.apply_gradients(zip(grads, self.generator.trainable_weights, strict=True))
    for tracker, value in zip(self.trackers, (d_loss, g_loss), strict=True):
        tracker.update_state(value)
    return {m.name: m.result() for m in self.trackers}


def _compile_adversaries(self, d_optimizer, g_optimizer, loss_fn, **kwargs):
    keras.Model.compile(self, **kwargs)
    self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn


def _test_step(self, data):
    """As the guide's evaluation step."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    y_pred = self(x, training=False)
    loss = self.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
    return _logs(self, data, y_pred, loss)


def _step(function: Callable, **more: Any) -> _Methods:
    return {"train_step": function, **more}


_STEPS: dict[str, _Methods] = {
    "tape": _step(_tape),
    "metrics_loop": _step(_metrics_loop),
    "own_metrics": _step(_own_metrics, metrics=property(lambda self: getattr(self, "trackers", []))),
    "clipping": _step(_clipping),
    "sharpness": _step(_sharpness),
    "two_optimizers": _step(_two_optimizers, compile=_compile_two),
    "accumulating": _step(_accumulating),
    "average": _step(_average),
    "gradient_penalty": _step(_gradient_penalty),
    "autoencoder": _step(_autoencoder, metrics=property(lambda self: self.trackers)),
    "adversaries": _step(_adversaries, metrics=property(lambda self: self.trackers), compile=_compile_adversaries),
}
