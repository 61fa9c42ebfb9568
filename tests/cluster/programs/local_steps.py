"""Run in every process of a parameter server job: trains with local steps, and saves what came out.

python -m launch local --ps=1 --workers=1 -- tests.cluster.programs.local_steps OUT
"""

import json
import pathlib
import sys

import tf2dist

strategy = tf2dist.join("ps")
out = pathlib.Path(sys.argv[1])

from tests.models import OPTIMIZERS, classifier, data, weights  # noqa: E402

BATCH, SEED, EPOCHS, TOGETHER = 16, 3, 3, 5
results = {}
for name, optimizer in OPTIMIZERS.items():
    with strategy.scope():
        model = classifier(optimizer())
    options = tf2dist.ParameterServer(local_steps=TOGETHER)
    history = tf2dist.fit(
        model, data(), batch_size=BATCH, seed=SEED, epochs=EPOCHS, steps_per_execution=7, parameter_server=options
    )
    results[name] = {
        "weights": [w.tolist() for w in weights(model)],
        "history": history.history,
        "updates": tf2dist.updates(model),
    }
out.write_text(json.dumps(results))
