"""Run in every process of a parameter server job: trains with local steps, and saves what came out.

python -m launch local --ps=1 --workers=1 -- tests.programs.local_steps OUT EPOCHS STEPS_PER_EPOCH
"""

import json
import pathlib
import sys

import tf2dist

strategy = tf2dist.join("ps")
out, epochs, steps = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])

from tests.models import OPTIMIZERS, classifier, data, weights, with_losses_of_layers  # noqa: E402

BATCH, SEED, TOGETHER = 16, 3, 5
models = {
    name: (lambda optimizer=optimizer: classifier(optimizer()), TOGETHER) for name, optimizer in OPTIMIZERS.items()
}
for together in (1, TOGETHER):
    models[f"losses of layers, {together}"] = with_losses_of_layers, together
results = {}
for name, (make, together) in models.items():
    with strategy.scope():
        model = make()
    options = tf2dist.ParameterServer(local_steps=together)
    history = tf2dist.fit(
        model,
        data(),
        batch_size=BATCH,
        seed=SEED,
        epochs=epochs,
        steps_per_epoch=steps,
        steps_per_execution=7,
        parameter_server=options,
    )
    results[name] = {
        "weights": [w.tolist() for w in weights(model)],
        "all weights": [w.tolist() for w in model.get_weights()],  # with statistics
        "history": history.history,
        "updates": tf2dist.updates(model),
    }
out.write_text(json.dumps(results))
