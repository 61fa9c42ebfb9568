"""Run in every process of a cluster: trains models with a `ShardedEmbedding` and saves what came out.

python -m launch local --ps=2 --workers=1 -- tests.programs.sharding OUT
"""

import json
import pathlib
import sys

import tf2dist

strategy = tf2dist.join("ps")
out = pathlib.Path(sys.argv[1])

import keras  # noqa: E402
import numpy as np  # noqa: E402

from tests.models import LENGTH, ROWS, TABLE_OPTIMIZERS, WORDS, sentences  # noqa: E402
from tf2dist.layers import ShardedEmbedding  # noqa: E402

words, y = sentences()
table = np.random.default_rng(1).normal(size=(WORDS, 4)).astype(np.float32)
results = {"tables": {}, "updates": {}}


def model_of(optimizer, **arguments):
    """Words -> table -> mean -> 3, compiled."""
    with strategy.scope():
        layers = [
            ShardedEmbedding(WORDS, 4, name="words", **arguments),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(3, kernel_initializer=keras.initializers.GlorotUniform(seed=1)),
        ]
        model = keras.Sequential([keras.Input((LENGTH,), dtype="int64"), *layers])
        model.compile(optimizer(), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


for name, optimizer in TABLE_OPTIMIZERS.items():
    model = model_of(optimizer, weights=table)
    tf2dist.fit(model, (words, y), batch_size=16, seed=3, epochs=2)
    results["tables"][name] = model.layers[0].get_table().tolist()
    results["updates"][name] = tf2dist.updates(model)
    if name == "adam":
        shards = model.layers[0].embeddings
        results["devices"] = [v.value.device for v in shards]
        slots = {v.path: v.value.device for v in model.optimizer.variables}
        results["slots"] = [[d for path, d in slots.items() if f"embeddings_{n}_" in path] for n in range(len(shards))]
        model.save(out.with_suffix(".keras"))
        results["outputs"] = tf2dist.predict(model, words, batch_size=50).tolist()

model = model_of(TABLE_OPTIMIZERS["sgd"], embeddings_initializer=keras.initializers.RandomNormal(seed=5))
results["begins"] = [keras.ops.convert_to_numpy(v).tolist() for v in model.layers[0].embeddings]
try:
    tf2dist.fit(model, (np.full((ROWS, LENGTH), WORDS), y), batch_size=16)
except Exception as error:
    results["error"] = f"{type(error).__name__}: {error}"
out.write_text(json.dumps(results))
print("trained", len(results["tables"]), "models")
