"""Run in every process of a cluster: trains the tests' models one after the other and saves what came out.

python -m launch local --workers=2 -- tests.programs.train STRATEGY OUT [REPLICAS]
"""

import contextlib
import json
import pathlib
import sys

import tf2dist

strategy = tf2dist.join(sys.argv[1], replicas=int(sys.argv[3]) if sys.argv[3:] else None)
out = pathlib.Path(sys.argv[2])

import keras  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
import tensorflow as tf  # noqa: E402

from tests.models import OPTIMIZERS, classifier, data, weights  # noqa: E402
from trainers.mnist_networks import PRESETS  # noqa: E402

BATCH, SEED, EPOCHS = 16, 3, 3
results = {"weights": {}, "history": {}, "updates": {}, "presets": {}}
leads = sys.argv[1] == "ps" or strategy.cluster_resolver.task_id == 0
x, y = data()

for name, optimizer in OPTIMIZERS.items():
    with strategy.scope():
        model = classifier(optimizer())
    history = tf2dist.fit(model, (x, y), batch_size=BATCH, seed=SEED, epochs=EPOCHS, validation_data=(x, y))
    results["weights"][name] = [w.tolist() for w in weights(model)]
    results["history"][name] = history.history
    results["updates"][name] = tf2dist.updates(model)

# Many small executions, so that two workers really write at the same time.
with strategy.scope():
    model = classifier(OPTIMIZERS["sgd"]())
history = tf2dist.fit(model, (x, y), batch_size=2, epochs=10, steps_per_execution=2)
results["updates"]["contended"] = tf2dist.updates(model)
results["history"]["contended"] = history.history

# A dataset, which travels to the workers as a graph.
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
with strategy.scope():
    model = classifier(OPTIMIZERS["sgd"]())
tf2dist.fit(model, dataset, epochs=EPOCHS)
results["weights"]["dataset"] = [w.tolist() for w in weights(model)]
results["updates"]["dataset"] = tf2dist.updates(model)
results["evaluations"] = [
    tf2dist.evaluate(model, dataset, return_dict=True),
    tf2dist.evaluate(model, (x, y), batch_size=7, return_dict=True),
]
results["logits"] = (
    np.tanh(x @ weights(model)[0] + weights(model)[1]) @ weights(model)[2] + weights(model)[3]
).tolist()

# The trainer's networks.
random = np.random.default_rng(0)
prototypes = random.random((10, 28, 28)) > 0.5
labels = random.integers(0, 10, 600)
images = (prototypes[labels] * random.random((600, 28, 28))).astype(np.float32)
for name, preset in PRESETS.items():
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = preset.build(preset.learning_rate, seed=1, decay_steps=600, keep_gradients=name == "towers")
    history = tf2dist.fit(model, (images, labels), batch_size=60, epochs=2)
    logs = tf2dist.evaluate(model, (images, labels), batch_size=60, return_dict=True)
    results["presets"][name] = {"updates": tf2dist.updates(model), "loss": history.history["loss"], "test": logs}

# Keras alone: what it says is how we notice that it was mended.
results["keras"] = {}


@contextlib.contextmanager
def keras_alone(name):
    try:
        yield
        results["keras"][name] = "trained"
    except Exception as error:
        results["keras"][name] = f"{type(error).__name__}: {error}"


with keras_alone("fit"):
    with strategy.scope():
        model = classifier(OPTIMIZERS["sgd"]())
    model.fit(dataset, verbose=0)
if sys.argv[1] == "ps":
    # As if the strategy had been made with a partitioner: a second one in this process would begin a new context.
    strategy.extended._variable_partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    with keras_alone("partitioner"):
        with strategy.scope():
            model = classifier(OPTIMIZERS["sgd"]())
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x, y, model(x))
        model.optimizer.apply(tape.gradient(loss, [v.value for v in model.trainable_variables]))
    with pytest.raises(ValueError, match="ShardedEmbedding"):
        tf2dist.fit(model, (x, y), epochs=1)

if leads:
    out.write_text(json.dumps(results))
    print("trained", len(results["weights"]), "models")
keras.backend.clear_session()
