"""Run in every process of a cluster: trains on data that Python yields, and saves what came out.

python -m launch local --workers=2 -- tests.programs.python_data STRATEGY UPDATE OUT KIND ...
"""

import json
import pathlib
import sys

import tf2dist

strategy = tf2dist.join(sys.argv[1])
update, out = sys.argv[2], pathlib.Path(sys.argv[3])

import numpy as np  # noqa: E402

from tests.input.python_kinds import KINDS, STEPS, Rows, batches, composite, datasets, shuffled  # noqa: E402
from tests.models import OPTIMIZERS, classifier, data  # noqa: E402

options = tf2dist.ParameterServer(update) if sys.argv[1] == "ps" else None
leads = sys.argv[1] == "ps" or strategy.cluster_resolver.task_id == 0
results, asked = {}, sys.argv[4:]
for kind, make in {**KINDS, **datasets()}.items():
    if kind not in asked:
        continue
    with strategy.scope():
        model = classifier(OPTIMIZERS["sgd"]())
    given, endless = make(), kind in ("PyDataset without end", "generator")
    history = tf2dist.fit(
        model, given, epochs=3, steps_per_epoch=STEPS if endless else None, shuffle=False,
        validation_data=batches()[1], parameter_server=options,
    )  # fmt: skip
    results[kind] = {
        "weights": [np.asarray(v).tolist() for v in model.trainable_variables],
        "history": {k: np.asarray(v).tolist() for k, v in history.history.items()},
        "calls": given.calls if isinstance(given, Rows) else None,
        "updates": tf2dist.updates(model),
        "evaluated": tf2dist.evaluate(model, make(), steps=STEPS if endless else None),
        "predicted": np.asarray(tf2dist.predict(model, make(), steps=STEPS if endless else None)).tolist(),
        "outputs": np.asarray(model(data()[0])).tolist(),
    }
for kind in {"ragged", "sparse"}.intersection(asked):
    dataset, compiled = composite(kind)
    for name, given in {kind: dataset, f"{kind}, yielded": (batch for batch in [*dataset, *dataset])}.items():
        with strategy.scope():
            model = compiled()
        history = tf2dist.fit(model, given, epochs=2, steps_per_epoch=STEPS, parameter_server=options)
        results[name] = [np.asarray(v).tolist() for v in model.trainable_variables], history.history["loss"]
if "shuffled" in asked:
    dataset, passes = shuffled()
    with strategy.scope():
        model = classifier(OPTIMIZERS["sgd"]())
    for _ in range(3):
        tf2dist.fit(model, dataset, epochs=1, steps_per_epoch=STEPS, parameter_server=options)
    results["shuffled"] = [np.asarray(v).tolist() for v in model.trainable_variables], passes
if leads:
    out.write_text(json.dumps(results))
