"""Structured data with FeatureSpace
(https://keras.io/examples/structured_data/structured_data_classification_with_feature_space/): made-up patients.
"""

import keras
import numpy as np
import tensorflow as tf
from keras.utils import FeatureSpace

keras.utils.set_random_seed(0)
num_patients, batch_size = 110, 18

# A table of patients, a column each; whether the heart is ill follows from some of them.
rng = np.random.default_rng(0)
table = {
    "sex": rng.integers(0, 2, num_patients),
    "cp": rng.integers(0, 5, num_patients),
    "fbs": rng.integers(0, 2, num_patients),
    "ca": rng.integers(0, 4, num_patients),
    "thal": rng.choice(["normal", "fixed", "reversible"], num_patients),
    "age": rng.integers(30, 75, num_patients).astype("float32"),
    "chol": rng.normal(245, 50, num_patients).astype("float32"),
    "oldpeak": rng.exponential(1.0, num_patients).astype("float32"),
}
risk = table["ca"] - 1.5 + (table["thal"] == "reversible") + (table["age"] - 52) / 20 + (table["oldpeak"] - 1)
target = (risk > 0).astype("int32")


def make_dataset(rows):
    columns = {name: values[rows] for name, values in table.items()}
    return tf.data.Dataset.from_tensor_slices((columns, target[rows])).batch(batch_size)


train_dataset, validation_dataset = make_dataset(slice(0, 85)), make_dataset(slice(85, None))

feature_space = FeatureSpace(
    features={
        "sex": "integer_categorical",
        "cp": "integer_categorical",
        "fbs": "integer_categorical",
        "ca": "integer_categorical",
        "thal": "string_categorical",
        "age": FeatureSpace.float_discretized(num_bins=10),  # risk does not grow by the same amount each year
        "chol": "float_normalized",
        "oldpeak": "float_normalized",
    },
    crosses=[
        FeatureSpace.cross(feature_names=("sex", "age"), crossing_dim=16),
        FeatureSpace.cross(feature_names=("thal", "ca"), crossing_dim=16),
    ],
    output_mode="concat",
)
feature_space.adapt(train_dataset.map(lambda columns, _: columns))

# Preprocessing in the pipeline runs beside the training, so that the model is given encoded rows.
encoded_train = train_dataset.map(lambda columns, y: (feature_space(columns), y), num_parallel_calls=tf.data.AUTOTUNE)
encoded_train = encoded_train.prefetch(tf.data.AUTOTUNE)
encoded_validation = validation_dataset.map(lambda columns, y: (feature_space(columns), y)).prefetch(tf.data.AUTOTUNE)

encoded_features = feature_space.get_encoded_features()
hidden = keras.layers.Dense(32, activation="relu")(encoded_features)
outputs = keras.layers.Dense(1, activation="sigmoid")(hidden)
model = keras.Model(encoded_features, outputs)
model.compile(optimizer=keras.optimizers.Adam(0.01), loss="binary_crossentropy", metrics=["accuracy"])
history = model.fit(encoded_train, epochs=3, validation_data=encoded_validation, verbose=0)

# The same layers behind the preprocessing: for serving, a model that takes the columns as they are.
model = keras.Model(feature_space.get_inputs(), outputs)
patient = {"sex": 1, "cp": 1, "fbs": 1, "ca": 0, "thal": "fixed", "age": 60.0, "chol": 233.0, "oldpeak": 2.3}
predicted = model.predict({name: tf.convert_to_tensor([value]) for name, value in patient.items()}, verbose=0)
