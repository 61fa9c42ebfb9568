"""Imbalanced classification: credit card fraud
(https://keras.io/examples/structured_data/imbalanced_classification/): made-up payments stand in for those of the data.
"""

import pathlib
import tempfile

import keras
import numpy as np

keras.utils.set_random_seed(0)

# One payment of ten is a fraud, and differs from the others in three of its features.
rng = np.random.default_rng(0)
features = rng.normal(size=(260, 12)).astype("float32")
targets = (rng.random((260, 1)) < 0.1).astype("uint8")
features[:, :3] += 1.5 * targets

num_validation = 50
train_features, train_targets = features[:-num_validation], targets[:-num_validation]
val_features, val_targets = features[-num_validation:], targets[-num_validation:]

# Frauds are few, so each of them counts as much more as there are more of the others.
counts = np.bincount(train_targets[:, 0])
class_weight = {0: 1.0 / counts[0], 1: 1.0 / counts[1]}

# Statistics of the training data alone: those of the validation are not known when a model is used.
mean, std = np.mean(train_features, axis=0), np.std(train_features, axis=0)
train_features = (train_features - mean) / std
val_features = (val_features - mean) / std

model = keras.Sequential(
    [
        keras.Input(shape=train_features.shape[1:]),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
metrics = [
    keras.metrics.FalseNegatives(name="fn"),
    keras.metrics.FalsePositives(name="fp"),
    keras.metrics.TrueNegatives(name="tn"),
    keras.metrics.TruePositives(name="tp"),
    keras.metrics.Precision(name="precision"),
    keras.metrics.Recall(name="recall"),
]
model.compile(optimizer=keras.optimizers.Adam(1e-2), loss="binary_crossentropy", metrics=metrics)

with tempfile.TemporaryDirectory() as directory:
    path = pathlib.Path(directory) / "fraud_model_at_epoch_{epoch}.keras"
    history = model.fit(
        train_features,
        train_targets,
        batch_size=48,
        epochs=3,
        shuffle=False,
        callbacks=[keras.callbacks.ModelCheckpoint(str(path))],
        validation_data=(val_features, val_targets),
        class_weight=class_weight,
        verbose=0,
    )
score = model.evaluate(val_features, val_targets, verbose=0, return_dict=True)
