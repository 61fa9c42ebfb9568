"""Run in every process of a parameter server job: trains cases, and saves what came out or the error, a pickle.

python -m launch local --ps=2 --workers=N -- tests.programs.equal_to_keras OUT UPDATE [CASE ...]
"""

import pathlib
import pickle
import sys
import traceback

import tf2dist

strategy = tf2dist.join("ps")
out, update = pathlib.Path(sys.argv[1]), sys.argv[2]

import keras  # noqa: E402

from tests.parameter_server import cases  # noqa: E402

results = {}
for name in sys.argv[3:] or cases.CASES:
    for kind, local_steps in cases.CASES[name].options:
        if kind != update:
            continue
        try:
            options = tf2dist.ParameterServer(update, local_steps=local_steps)
            results[name, local_steps] = cases.by_tf2dist(name, strategy, options)
        except Exception:
            results[name, local_steps] = traceback.format_exc()
        keras.backend.clear_session(free_memory=False)
if update == "async":
    results["hooks"] = cases.with_hooks(strategy)
out.write_bytes(pickle.dumps(results))
