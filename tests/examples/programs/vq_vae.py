"""Vector-quantized VAE (https://keras.io/examples/generative/vq_vae/): made-up images of bars stand in for digits."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(0)
size, latent_dim, num_embeddings = 12, 4, 8

# An image is a bright bar, upright or lying, somewhere in the dark.
rng = np.random.default_rng(0)
images = 0.1 * rng.random((90, size, size, 1)).astype("float32") - 0.5
for image, place, lies in zip(images, rng.integers(0, size - 3, 90), rng.random(90) < 0.5, strict=True):
    image[(slice(place, place + 4), slice(None)) if lies else (slice(None), slice(place, place + 4))] += 0.9
variance = np.var(images)


class NearestCode(layers.Layer):
    """Puts the nearest vector of a code book in the place of each of its inputs' vectors."""

    def __init__(self, num_embeddings, embedding_dim, beta=0.25, **kwargs):
        super().__init__(**kwargs)
        self.num_embeddings, self.embedding_dim, self.beta = num_embeddings, embedding_dim, beta
        self.embeddings = self.add_weight(
            shape=(embedding_dim, num_embeddings), initializer="random_uniform", name="embeddings_vqvae"
        )

    def call(self, x):
        flattened = ops.reshape(x, [-1, self.embedding_dim])
        encodings = ops.one_hot(self.closest_rows(flattened), self.num_embeddings)
        quantized = ops.reshape(ops.matmul(encodings, ops.transpose(self.embeddings)), ops.shape(x))
        # The encoder is to keep to its code, and the codes are to go where the encoder's vectors are.
        commitment_loss = ops.mean((ops.stop_gradient(quantized) - x) ** 2)
        codebook_loss = ops.mean((quantized - ops.stop_gradient(x)) ** 2)
        self.add_loss(self.beta * commitment_loss + codebook_loss)
        # To choose has no gradient, so the one of what was chosen goes straight through to what it stands for.
        return x + ops.stop_gradient(quantized - x)

    def closest_rows(self, flattened):
        """The number of the nearest vector, by |a - b|² = a² + b² - 2ab."""
        similarity = ops.matmul(flattened, self.embeddings)
        distances = ops.sum(flattened**2, axis=1, keepdims=True) + ops.sum(self.embeddings**2, axis=0) - 2 * similarity
        return ops.argmin(distances, axis=1)


encoder = keras.Sequential(
    [
        keras.Input((size, size, 1)),
        layers.Conv2D(8, 3, activation="relu", strides=2, padding="same"),
        layers.Conv2D(latent_dim, 1, padding="same"),
    ],
    name="encoder",
)
decoder = keras.Sequential(
    [
        keras.Input(encoder.output_shape[1:]),
        layers.Conv2DTranspose(8, 3, activation="relu", strides=2, padding="same"),
        layers.Conv2DTranspose(1, 3, padding="same"),
    ],
    name="decoder",
)
quantizer = NearestCode(num_embeddings, latent_dim, name="vector_quantizer")
inputs = keras.Input((size, size, 1))
vqvae = keras.Model(inputs, decoder(quantizer(encoder(inputs))), name="vq_vae")


class QuantizingModel(keras.Model):
    def __init__(self, vqvae, train_variance, **kwargs):
        super().__init__(**kwargs)
        self.vqvae, self.train_variance = vqvae, train_variance
        self.total_loss_tracker = keras.metrics.Mean(name="total_loss")
        self.reconstruction_loss_tracker = keras.metrics.Mean(name="reconstruction_loss")
        self.vq_loss_tracker = keras.metrics.Mean(name="vq_loss")

    @property
    def metrics(self):
        return [self.total_loss_tracker, self.reconstruction_loss_tracker, self.vq_loss_tracker]

    def train_step(self, x):
        with tf.GradientTape() as tape:
            reconstructions = self.vqvae(x)
            reconstruction_loss = ops.mean((x - reconstructions) ** 2) / self.train_variance
            total_loss = reconstruction_loss + sum(self.vqvae.losses)
        grads = tape.gradient(total_loss, self.vqvae.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.vqvae.trainable_variables, strict=True))
        self.total_loss_tracker.update_state(total_loss)
        self.reconstruction_loss_tracker.update_state(reconstruction_loss)
        self.vq_loss_tracker.update_state(sum(self.vqvae.losses))
        return {
            "loss": self.total_loss_tracker.result(),
            "reconstruction_loss": self.reconstruction_loss_tracker.result(),
            "vqvae_loss": self.vq_loss_tracker.result(),
        }


model = QuantizingModel(vqvae, variance)
model.compile(optimizer=keras.optimizers.Adam(0.01))
history = model.fit(images, epochs=3, batch_size=20, shuffle=False, verbose=0)
predicted = model.vqvae.predict(images[:7], verbose=0)
