"""Models with steps of their own, as published on keras.io and in papers, and what they are trained on."""

import keras
import numpy as np

from tests.models import data

BATCH = 16


def dense(units, seed, **kwargs):
    return keras.layers.Dense(units, kernel_initializer=keras.initializers.GlorotUniform(seed=seed), **kwargs)


class Autoencoder(keras.Model):
    """As the VAE: no `call`, two models inside, metrics whose names are not those of the logs."""

    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential([keras.Input((12,)), dense(3, 0)])
        self.decoder = keras.Sequential([keras.Input((3,)), dense(12, 1)])
        self.total_tracker = keras.metrics.Mean(name="total_loss")
        self.rebuilt_tracker = keras.metrics.Mean(name="reconstruction_loss")

    @property
    def metrics(self):
        return [self.total_tracker, self.rebuilt_tracker]

    def train_step(self, data):
        import tensorflow as tf

        with tf.GradientTape() as tape:
            code = self.encoder(data)
            rebuilt = keras.ops.mean(keras.ops.sum(keras.ops.square(data - self.decoder(code)), axis=1))
            total = rebuilt + 0.1 * keras.ops.mean(keras.ops.square(code))
        gradients = tape.gradient(total, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.total_tracker.update_state(total)
        self.rebuilt_tracker.update_state(rebuilt)
        return {"loss": self.total_tracker.result(), "reconstruction_loss": self.rebuilt_tracker.result()}


class Adversaries(keras.Model):
    """As the DCGAN: two optimizers, a loss that `compile` gets, `fit` alone."""

    def __init__(self):
        super().__init__()
        self.critic = keras.Sequential([keras.Input((12,)), dense(1, 2)])
        self.generator = keras.Sequential([keras.Input((4,)), dense(12, 3)])

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn
        self.d_metric = keras.metrics.Mean(name="d_loss")
        self.g_metric = keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self):
        return [self.d_metric, self.g_metric]

    def train_step(self, real):
        import tensorflow as tf

        noise = real[:, :4]
        fake = self.generator(noise)
        both = keras.ops.concatenate([fake, real], axis=0)
        labels = keras.ops.concatenate([keras.ops.ones_like(fake[:, :1]), keras.ops.zeros_like(real[:, :1])], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.critic(both))
        grads = tape.gradient(d_loss, self.critic.trainable_weights)
        self.d_optimizer.apply_gradients(zip(grads, self.critic.trainable_weights, strict=True))
        with tf.GradientTape() as tape:
            g_loss = self.loss_fn(keras.ops.zeros_like(fake[:, :1]), self.critic(self.generator(noise)))
        grads = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply_gradients(zip(grads, self.generator.trainable_weights, strict=True))
        self.d_metric.update_state(d_loss)
        self.g_metric.update_state(g_loss)
        return {"d_loss": self.d_metric.result(), "g_loss": self.g_metric.result()}


class Siamese(keras.Model):
    """Its inputs are three arrays, which its `call` takes together, and its loss is one value an example."""

    def __init__(self):
        super().__init__()
        self.embed = keras.Sequential([keras.Input((12,)), dense(3, 4)])
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def call(self, inputs):
        anchor, positive, negative = (self.embed(x) for x in inputs)
        near = keras.ops.sum(keras.ops.square(anchor - positive), -1)
        return near, keras.ops.sum(keras.ops.square(anchor - negative), -1)

    def _loss(self, data):
        near, far = self(data)
        return keras.ops.maximum(near - far + 0.5, 0.0)

    def reduce(self, loss):
        return loss

    def train_step(self, data):
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = self.reduce(self._loss(data))
        gradients = tape.gradient(loss, self.embed.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.embed.trainable_weights, strict=True))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def test_step(self, data):
        self.loss_tracker.update_state(self._loss(data))
        return {"loss": self.loss_tracker.result()}

    @property
    def metrics(self):
        return [self.loss_tracker]


class Summed(Siamese):
    """The same with the sum, which is the same to a tape."""

    def reduce(self, loss):
        return 0.1 * keras.ops.sum(loss)

    def train_step(self, data):
        return super().train_step(data) | {"last": self.reduce(self._loss(data))}


class Mixed(Siamese):
    """A sum over examples and a mean."""

    def reduce(self, loss):
        return keras.ops.sum(loss) + keras.ops.mean(keras.ops.square(loss))


class LastLoss(keras.Model):
    """Several outputs and a loss of `compile`; logs what the last batch gave, a vector and metrics."""

    def train_step(self, data):
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        logs = self.compute_metrics(x, y, y_pred)
        return {"last": loss, "squares": keras.ops.mean(keras.ops.square(y[0]), axis=0)} | logs


class AddsMean(keras.layers.Layer):
    """Adds a loss of Keras that it computes itself."""

    def call(self, x):
        self.add_loss(keras.losses.MeanSquaredError()(keras.ops.zeros_like(x), x))
        return x


class AddsSum(keras.layers.Layer):
    """Adds a sum over the examples, and a value for each."""

    def call(self, x):
        self.add_loss(0.01 * keras.ops.sum(keras.ops.square(x)))
        self.add_loss(0.02 * keras.ops.sum(keras.ops.abs(x), axis=tuple(range(1, len(x.shape)))))
        return x


class OwnUpdate(keras.Model):
    """Keras's own losses; what is done with the gradients is the model's own."""

    def train_step(self, data):
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_of(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_weights)
        logs = self.change(x, y, gradients)
        return {"loss": loss} | logs

    def loss_of(self, x, y, y_pred):
        return self.compute_loss(x, y, y_pred)

    def change(self, x, y, gradients):
        self.optimizer.apply(gradients, self.trainable_weights)
        return {}


class Masked(OwnUpdate):
    """Masks, and statistics and losses that layers add, all of which are over the whole batch."""


def masked():
    words = keras.Input((12,))
    hidden = keras.layers.Masking()(keras.layers.Reshape((4, 3))(keras.ops.maximum(words, 0.0)))
    hidden = AddsSum()(keras.layers.Dense(5, kernel_initializer=keras.initializers.GlorotUniform(seed=1))(hidden))
    hidden = keras.layers.BatchNormalization(synchronized=True)(hidden)
    model = Masked(words, dense(1, 2, activity_regularizer="l2")(hidden))
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


class Sharpness(OwnUpdate):
    """Clips by itself, and takes a step uphill before the one downhill (sharpness-aware minimization)."""

    def change(self, x, y, gradients):
        import tensorflow as tf

        gradients, norm = tf.clip_by_global_norm(gradients, 0.3)
        steps = [0.05 * g / (norm + 1e-6) for g in gradients]
        for variable, step in zip(self.trainable_weights, steps, strict=True):
            variable.assign_add(step)
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        uphill = tape.gradient(loss, self.trainable_weights)
        for variable, step in zip(self.trainable_weights, steps, strict=True):
            variable.assign_sub(step)
        uphill, _ = tf.clip_by_global_norm(uphill, 0.2)
        self.optimizer.apply(uphill, self.trainable_weights)
        return {"norm": norm, "uphill": loss}


class Meta(OwnUpdate):
    """One step on the weights of a linear model is itself differentiated (MAML)."""

    def train_step(self, data):
        import tensorflow as tf

        x, y = data
        kernel, bias = self.trainable_weights
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                before = self.compute_loss(x, y, self(x, training=True))
            by_kernel, by_bias = inner.gradient(before, [kernel, bias])
            y_pred = tf.tanh(tf.matmul(x, kernel - 0.4 * by_kernel) + bias - 0.4 * by_bias)
            loss = tf.reduce_mean(tf.square(y - y_pred))
        self.optimizer.apply(outer.gradient(loss, [kernel, bias]), [kernel, bias])
        return {"loss": loss, "before": before}


class Adversarial(OwnUpdate):
    """Trains on inputs that were moved along the gradient by them."""

    def loss_of(self, x, y, y_pred):
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = self.compute_loss(x, y, self(x, training=True))
        moved = x + 0.5 * tape.gradient(loss, x)
        return self.compute_loss(x, y, self(moved, training=True))


class AverageLoss(OwnUpdate):
    """As TensorFlow's tutorials for custom loops, with a weight for each example."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        import tensorflow as tf

        self.alpha = tf.constant(0.7)

    def loss_of(self, x, y, y_pred):
        import tensorflow as tf

        each, weight = keras.losses.mean_squared_error(y, y_pred), keras.ops.abs(x[:, 0])
        own = tf.nn.compute_average_loss(each, sample_weight=weight)
        return self.alpha * own + tf.nn.scale_regularization_loss(self.losses)


class SumOverGlobalBatch(OwnUpdate):
    def loss_of(self, x, y, y_pred):
        import tensorflow as tf

        return tf.nn.compute_average_loss(keras.losses.mean_squared_error(y, y_pred), global_batch_size=BATCH)


class Functions(OwnUpdate):
    """`tf.function`s in a step, each with a condition for autograph; what is logged are variables."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        import tensorflow as tf

        self.seen = tf.Variable(0)
        self.rate = keras.metrics.Mean(name="rate")
        self._loss_of, self._change = tf.function(self._loss_of), tf.function(self._change)

    def loss_of(self, x, y, y_pred):
        return self._loss_of(y, y_pred)

    def _loss_of(self, y, y_pred):
        factor = 0.05
        if keras.ops.shape(y)[0] < 1:
            factor = 0.0
        return factor * keras.ops.sum(keras.ops.square(y - y_pred))

    def change(self, x, y, gradients):
        self._change(gradients)
        self.seen.assign_add(1)
        self.rate.update_state(self.optimizer.learning_rate)
        return {"seen": self.seen, "lr": self.optimizer.learning_rate, "rate": self.rate.result()}

    def _change(self, gradients):
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))


class Targets(OwnUpdate):
    """Several targets of one tape, some with gradients to begin with: a scalar, values of examples, and a vector."""

    def train_step(self, data):
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            errors = tf.square(y - self(x, training=True))
            targets = {"a": [tf.reduce_mean(errors, 0), tf.reduce_sum(tf.abs(errors))], "b": errors}
        seeds = {"a": [[1.0], 0.01], "b": 0.02 * tf.abs(y)}
        gradients = tape.gradient(targets, self.trainable_weights, seeds, tf.UnconnectedGradients.ZERO)
        self.optimizer.apply(gradients, self.trainable_weights)
        return {"loss": tf.reduce_mean(errors)}


class Penalty(OwnUpdate):
    """The norm of gradients is part of the loss, and weighs another part of it."""

    def train_step(self, data):
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as outer:
            with tf.GradientTape(persistent=True) as inner:
                y_pred = self(x, training=True)
                one, two = tf.reduce_mean(tf.square(y - y_pred)), tf.reduce_mean(tf.abs(y_pred))
            by_one, by_two = (inner.gradient(part, self.trainable_weights) for part in (one, two))
            weight = tf.stop_gradient(tf.norm(by_one[0]) / (tf.norm(by_two[0]) + 1e-4))
            loss = one + weight * two + 0.3 * tf.add_n([tf.reduce_sum(tf.square(g)) for g in by_one])
        self.optimizer.apply(outer.gradient(loss, self.trainable_weights), self.trainable_weights)
        return {"loss": loss}


class OverlapLoss(OwnUpdate):
    def loss_of(self, x, y, y_pred):
        return keras.losses.Dice()(keras.ops.sigmoid(y), keras.ops.sigmoid(y_pred))


class OverlapFunction(OwnUpdate):
    def loss_of(self, x, y, y_pred):
        return keras.losses.dice(keras.ops.sigmoid(y), keras.ops.sigmoid(y_pred))


class Root(OwnUpdate):
    def loss_of(self, x, y, y_pred):
        return keras.ops.sqrt(keras.ops.mean(keras.ops.square(y - y_pred)))


class MaskedByHand(OwnUpdate):
    def loss_of(self, x, y, y_pred):
        mask = keras.ops.cast(y > 0, "float32")
        return keras.ops.sum(mask * keras.ops.square(y - y_pred)) / keras.ops.sum(mask)


class Unseen(OwnUpdate):
    """Gradients that no tape has returned as such."""

    def change(self, x, y, gradients):
        own = [keras.ops.zeros_like(g) + keras.ops.mean(x) for g in gradients]
        return super().change(x, y, own)


def one_layer(kind, optimizer=lambda: keras.optimizers.SGD(0.1), **kwargs):
    def made():
        inputs = keras.Input((12,))
        model = kind(inputs, dense(1, 9, kernel_regularizer="l2")(inputs))
        model.compile(optimizer(), "mse", **kwargs)
        return model

    return made


def synchronized():
    inputs = keras.Input((12,))
    hidden = keras.layers.BatchNormalization(synchronized=True)(inputs)
    model = OwnUpdate(inputs, dense(1, 2)(hidden))
    model.compile(keras.optimizers.SGD(0.002), keras.losses.MeanSquaredError(reduction="sum"))
    return model


def loss_in_a_layer():
    inputs = keras.Input((12,))
    hidden = AddsMean()(dense(6, 5, activation="tanh")(inputs))
    model = LastLoss(inputs, [dense(2, 6, name="a")(hidden), dense(1, 7, name="b")(hidden)])
    model.compile(keras.optimizers.SGD(0.05), ["mse", "mae"], metrics=[["mae"], ["mse"]])
    return model


def last_loss(reduction="sum_over_batch_size"):
    inputs = keras.Input((12,))
    hidden = keras.layers.ActivityRegularization(l2=0.01)(
        dense(6, 5, activation="tanh", kernel_regularizer="l2")(inputs)
    )
    model = LastLoss(inputs, [dense(2, 6, name="a")(hidden), dense(1, 7, name="b")(hidden)])
    losses = [keras.losses.MeanSquaredError(reduction=reduction), "mae"]
    model.compile(keras.optimizers.SGD(0.002 if reduction == "sum" else 0.05, clipnorm=0.5), losses,
                  metrics=[["mae", keras.metrics.F1Score()], ["mse"]])  # fmt: skip
    return model


class OtherNames(keras.Model):
    """`compute_metrics` returns logs by other names than the metrics'."""

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        logs = super().compute_metrics(x, y, y_pred, sample_weight)
        return {"mistake": logs["mae"], "gap": keras.ops.mean(y - y_pred), "loss": logs["loss"]}


def other_names():
    inputs = keras.Input((12,))
    model = OtherNames(inputs, dense(1, 8)(inputs))
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    return model


VOCABULARY = ["far", "near", "high", "low"]


def words():
    """A step reads a lookup table, which each worker has for itself, in its forward pass and in a metric's input."""
    text = keras.Input((1,), dtype="string")
    numbers = keras.layers.TextVectorization(vocabulary=VOCABULARY, output_sequence_length=3)(text)
    table = keras.layers.Embedding(6, 4, embeddings_initializer=keras.initializers.RandomUniform(seed=7))(numbers)
    model = OwnUpdate(text, dense(1, 8)(keras.layers.Flatten()(table)))
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return model


def compiled(make, *optimizers, **kwargs):
    def made():
        model = make()
        model.compile(*[o() for o in optimizers], **kwargs)
        return model

    return made


def sgd():
    return keras.optimizers.SGD(0.01, momentum=0.9, clipnorm=1.0)


x, y = data()
pair = [np.tanh(x[:, :2]), x[:, :1]]
sentences = np.array([[" ".join([*VOCABULARY, "other"][int(abs(v) * 7) % 5] for v in row[:3])] for row in x], object)
CASES = {
    "vae": (compiled(Autoencoder, lambda: keras.optimizers.Adam(0.01)), x),
    "dcgan": (compiled(Adversaries, sgd, sgd, loss_fn=keras.losses.BinaryCrossentropy(from_logits=True)), x),
    "siamese": (compiled(Siamese, sgd), (x, x + 0.1, x[::-1].copy())),
    "summed": (compiled(Summed, sgd), (x, x + 0.1, x[::-1].copy())),
    "several outputs": (last_loss, (x, pair)),
    "sum": (lambda: last_loss("sum"), (x, pair)),
    "loss in a layer": (loss_in_a_layer, (x, pair)),
    "other names": (other_names, (x, pair[1])),
    "masks and added losses": (masked, (x, np.repeat(x[:, :4, None], 1, -1))),
    "own clipping": (one_layer(Sharpness, lambda: keras.optimizers.Adam(0.02)), (x, pair[1])),
    "gradient of a gradient": (one_layer(Meta), (x, pair[1])),
    "gradient by inputs": (one_layer(Adversarial), (x, pair[1])),
    "average loss": (one_layer(AverageLoss), (x, pair[1])),
    "dice": (one_layer(OverlapLoss), (x, pair[1])),
    "functions": (one_layer(Functions), (x, pair[1])),
    "several targets": (one_layer(Targets), (x, pair[1])),
    "norms of gradients": (one_layer(Penalty), (x, pair[1])),
    "statistics of all": (synchronized, (x, pair[1])),
    "words": (words, (sentences, pair[1])),
}


class InACondition(OwnUpdate):
    def change(self, x, y, gradients):
        import tensorflow as tf

        tf.cond(self.optimizer.iterations < 3, lambda: super(InACondition, self).change(x, y, gradients), dict)
        return {}


def accumulating():
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.02, gradient_accumulation_steps=2))


WITHOUT_OTHER_REPLICAS = {  # with updates in conditions
    "in a condition": (one_layer(InACondition), (x, pair[1])),
    "accumulated": (one_layer(OwnUpdate, accumulating), (x, pair[1])),
}


def batches(rows, size=BATCH):
    """A Dataset of rows, an array or a nested tuple of them."""
    import tensorflow as tf

    rows = tuple(tuple(r) if isinstance(r, list) else r for r in rows) if isinstance(rows, tuple) else rows
    return tf.data.Dataset.from_tensor_slices(rows).batch(size)
