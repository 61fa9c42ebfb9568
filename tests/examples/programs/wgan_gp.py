"""WGAN-GP (https://keras.io/examples/generative/wgan_gp/): made-up images of bars stand in for those of clothes."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(0)
size, noise_dim, batch_size = 8, 6, 20

# Real images: a bright bar from top to bottom, at one of several places. Pixels are between -1 and 1, as tanh's are.
rng = np.random.default_rng(0)
train_images = rng.uniform(-1.0, -0.8, (90, size, size, 1)).astype("float32")
for image, place in zip(train_images, rng.integers(0, size - 2, 90), strict=True):
    image[:, place : place + 3] = 0.9

critic = keras.Sequential(
    [
        keras.Input((size, size, 1)),
        layers.Conv2D(8, 5, strides=2, padding="same"),
        layers.LeakyReLU(0.2),
        layers.Flatten(),
        layers.Dense(1),
    ]
)
generator = keras.Sequential(
    [
        keras.Input((noise_dim,)),
        layers.Dense(size // 2 * size // 2 * 8, use_bias=False),
        layers.BatchNormalization(),
        layers.LeakyReLU(0.2),
        layers.Reshape((size // 2, size // 2, 8)),
        layers.UpSampling2D(2),
        layers.Conv2D(1, 3, padding="same", activation="tanh"),
    ]
)


class Opponents(keras.Model):
    """A critic tells real images from generated ones; its slope is kept near 1, so that it has always more to say."""

    def __init__(self, critic, generator, noise_dim, critic_steps=3, gp_weight=10.0):
        super().__init__()
        self.critic, self.generator = critic, generator
        self.noise_dim, self.critic_steps, self.gp_weight = noise_dim, critic_steps, gp_weight
        self.seed_generator = keras.random.SeedGenerator(1337)

    def compile(self, d_optimizer, g_optimizer, d_loss_fn, g_loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer
        self.d_loss_fn, self.g_loss_fn = d_loss_fn, g_loss_fn

    def penalty_of_slope(self, real_images, fake_images):
        """How far from 1 the critic's slope is at points between real and generated images."""
        alpha = keras.random.uniform((tf.shape(real_images)[0], 1, 1, 1), seed=self.seed_generator)
        interpolated = real_images + alpha * (fake_images - real_images)
        with tf.GradientTape() as tape:
            tape.watch(interpolated)
            opinion = self.critic(interpolated, training=True)
        slope = tape.gradient(opinion, interpolated)
        norm = tf.sqrt(tf.reduce_sum(tf.square(slope), axis=[1, 2, 3]) + 1e-12)
        return tf.reduce_mean((norm - 1.0) ** 2)

    def noise(self, rows):
        return keras.random.normal((rows, self.noise_dim), seed=self.seed_generator)

    def train_step(self, real_images):
        rows = tf.shape(real_images)[0]
        # The critic is some steps ahead of the generator, which learns from its opinion.
        for _ in range(self.critic_steps):
            with tf.GradientTape() as tape:
                fake_images = self.generator(self.noise(rows), training=True)
                fake_opinion = self.critic(fake_images, training=True)
                real_opinion = self.critic(real_images, training=True)
                d_cost = self.d_loss_fn(real_opinion, fake_opinion)
                d_loss = d_cost + self.gp_weight * self.penalty_of_slope(real_images, fake_images)
            d_gradient = tape.gradient(d_loss, self.critic.trainable_variables)
            self.d_optimizer.apply_gradients(zip(d_gradient, self.critic.trainable_variables, strict=True))

        with tf.GradientTape() as tape:
            fake_images = self.generator(self.noise(rows), training=True)
            g_loss = self.g_loss_fn(self.critic(fake_images, training=True))
        g_gradient = tape.gradient(g_loss, self.generator.trainable_variables)
        self.g_optimizer.apply_gradients(zip(g_gradient, self.generator.trainable_variables, strict=True))
        return {"d_loss": d_loss, "g_loss": g_loss}


class KeepsImages(keras.callbacks.Callback):
    """Keeps a few images of each epoch, made of the same noise, to see how they change."""

    def __init__(self, num_images, noise_dim):
        super().__init__()
        self.noise = np.random.default_rng(1).normal(size=(num_images, noise_dim)).astype("float32")
        self.images = []

    def on_epoch_end(self, epoch, logs=None):
        self.images.append(self.model.generator(self.noise).numpy() * 127.5 + 127.5)


def critic_loss(real_opinion, fake_opinion):
    return tf.reduce_mean(fake_opinion) - tf.reduce_mean(real_opinion)


def generator_loss(fake_opinion):
    return -tf.reduce_mean(fake_opinion)


monitor = KeepsImages(num_images=3, noise_dim=noise_dim)
model = Opponents(critic, generator, noise_dim)
model.compile(
    d_optimizer=keras.optimizers.Adam(0.005, beta_1=0.5, beta_2=0.9),
    g_optimizer=keras.optimizers.Adam(0.005, beta_1=0.5, beta_2=0.9),
    d_loss_fn=critic_loss,
    g_loss_fn=generator_loss,
)
history = model.fit(train_images, batch_size=batch_size, epochs=3, shuffle=False, callbacks=[monitor], verbose=0)
predicted = monitor.images[-1]
