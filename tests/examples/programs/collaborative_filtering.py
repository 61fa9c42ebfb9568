"""Collaborative filtering for MovieLens
(https://keras.io/examples/structured_data/collaborative_filtering_movielens/): made-up ratings of made-up films.
"""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(0)
num_users, num_movies, embedding_size = 12, 20, 8

# Whether a user likes a film depends on two tastes of the user and two sides of the film.
rng = np.random.default_rng(0)
tastes, sides = rng.normal(size=(num_users, 2)), rng.normal(size=(num_movies, 2))
pairs = np.stack(np.meshgrid(np.arange(num_users), np.arange(num_movies), indexing="ij"), axis=-1).reshape(-1, 2)
x = rng.permutation(pairs)[:170]
ratings = np.clip(3 + np.sum(tastes[x[:, 0]] * sides[x[:, 1]], axis=1), 0.5, 5.0)

# Ratings between 0 and 1 make it easy to learn with a sigmoid.
y = ((ratings - ratings.min()) / (ratings.max() - ratings.min())).astype("float32")
x_train, x_val, y_train, y_val = x[:140], x[140:], y[:140], y[140:]


class MatchingModel(keras.Model):
    """Users and films as vectors: the product of two says how well they match, and each has a bias of its own."""

    def __init__(self, num_users, num_movies, embedding_size, **kwargs):
        super().__init__(**kwargs)
        self.num_users, self.num_movies, self.embedding_size = num_users, num_movies, embedding_size
        self.user_embedding = layers.Embedding(
            num_users,
            embedding_size,
            embeddings_initializer="he_normal",
            embeddings_regularizer=keras.regularizers.l2(1e-4),
        )
        self.user_bias = layers.Embedding(num_users, 1)
        self.movie_embedding = layers.Embedding(
            num_movies,
            embedding_size,
            embeddings_initializer="he_normal",
            embeddings_regularizer=keras.regularizers.l2(1e-4),
        )
        self.movie_bias = layers.Embedding(num_movies, 1)

    def call(self, inputs):
        users, movies = inputs[:, 0], inputs[:, 1]
        match = ops.sum(self.user_embedding(users) * self.movie_embedding(movies), axis=1, keepdims=True)
        return ops.sigmoid(match + self.user_bias(users) + self.movie_bias(movies))


model = MatchingModel(num_users, num_movies, embedding_size)
model.compile(loss=keras.losses.BinaryCrossentropy(), optimizer=keras.optimizers.Adam(learning_rate=0.05))
history = model.fit(x_train, y_train, batch_size=32, epochs=3, shuffle=False, validation_data=(x_val, y_val), verbose=0)

# How would one user like the films that are not rated yet? The best of them are recommended.
user = 1
unrated = np.setdiff1d(np.arange(num_movies), x[x[:, 0] == user, 1])
candidates = np.stack([np.full(len(unrated), user), unrated], axis=1)
predicted = model.predict(candidates, verbose=0)
recommended = unrated[np.argsort(predicted[:, 0])[::-1]][:5]
