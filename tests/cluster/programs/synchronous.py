"""Run in every process of a parameter server job: trains synchronously and saves what came out.

python -m tests.cluster.programs.synchronous OUT
"""

import json
import pathlib
import sys

import tf2dist

strategy = tf2dist.join("ps")
out = pathlib.Path(sys.argv[1])

from tests.models import OPTIMIZERS, classifier, data, embedder, sentences, weights  # noqa: E402

SYNC = tf2dist.ParameterServer("sync")
results = {"weights": {}, "history": {}, "updates": {}}


def fit(name, model, rows, options=SYNC, **kwargs):
    kwargs = {"batch_size": 16, "seed": 3, "parameter_server": options} | kwargs
    history = tf2dist.fit(model, rows, **kwargs)
    results["weights"][name] = [w.tolist() for w in weights(model)]
    results["history"][name] = history.history
    results["updates"][name] = tf2dist.updates(model)


for optimizer, make in OPTIMIZERS.items():
    with strategy.scope():
        model = classifier(make())
    fit(optimizer, model, data(), epochs=5, steps_per_epoch=10, validation_data=data())
with strategy.scope():
    model = embedder(OPTIMIZERS["adagrad"]())
fit("slices", model, sentences(), epochs=2)
with strategy.scope():
    model = embedder(OPTIMIZERS["adagrad"](), tf2dist.layers.ShardedEmbedding)
fit("sharded", model, sentences(), epochs=2)
results["weights"]["sharded"] = [model.layers[0].get_table().tolist(), *results["weights"]["sharded"][-2:]]
with strategy.scope():
    model = classifier(OPTIMIZERS["sgd"]())
fit("backup", model, data(), tf2dist.ParameterServer("sync", backup_workers=1), epochs=2, steps_per_epoch=40)
out.write_text(json.dumps(results))
