"""Run in every process of a cluster: trains the models of `tests.loss_cases` and saves what came out, a pickle.

python -m launch local --ps=1 --workers=2 -- tests.programs.slice_losses STRATEGY OUT REPLICAS CASE...
"""

import pathlib
import pickle
import sys

import tf2dist

replicas = int(sys.argv[3])
strategy = tf2dist.join(sys.argv[1], replicas=replicas if replicas > 1 else None)
out = pathlib.Path(sys.argv[2])

from tests import loss_cases  # noqa: E402

options = {"parameter_server": tf2dist.ParameterServer("sync")} if sys.argv[1] == "ps" else {}
results = {}
for name in sys.argv[4:]:
    try:
        results[name] = loss_cases.by_tf2dist(name, strategy, **options)
    except Exception as error:  # the other cases shall run; the test of this one shows the error
        results[name] = f"{type(error).__name__}: {error}"
if sys.argv[1] == "ps" or strategy.cluster_resolver.task_id == 0:
    (out / "results.pickle").write_bytes(pickle.dumps(results))
