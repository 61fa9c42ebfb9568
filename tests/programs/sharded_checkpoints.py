"""Run in every process of a parameter server job: trains with checkpoints that the servers write.

python -m tests.programs.sharded_checkpoints OUT EPOCHS UPDATE
"""

import functools
import json
import pathlib
import sys

import tf2dist

strategy = tf2dist.join("ps")
out, epochs, update = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

import keras  # noqa: E402

from tests.models import OPTIMIZERS, embedder, sentences, weights  # noqa: E402


class Files(keras.callbacks.Callback):
    """Notes which devices the weights are on."""

    def on_train_end(self, logs=None):
        self.devices = sorted({v.value.device.partition("/device")[0] for v in self.model.variables})


with strategy.scope():
    model = embedder(OPTIMIZERS["adam"](), functools.partial(tf2dist.layers.ShardedEmbedding, shards=3))
files = Files()
history = tf2dist.fit(
    model, sentences(), batch_size=16, epochs=epochs, shuffle=False, validation_data=sentences(1),
    parameter_server=tf2dist.ParameterServer(update),
    callbacks=[files, tf2dist.Checkpoint(out / "checkpoints", every_steps=3, keep=99, sharded=True)],
)  # fmt: skip
result = {
    "updates": tf2dist.updates(model),
    "epochs": len(history.history["loss"]),
    "devices": files.devices,
    "weights": [w.tolist() for w in [model.layers[0].get_table(), *weights(model)[-2:]]],
    "evaluation": tf2dist.evaluate(model, sentences(1), verbose=0, return_dict=True),
}
(out / f"result-{epochs}.json").write_text(json.dumps(result))
