"""Run in every task of a job: a loop of its own for each case: python -m tests.programs.train_on_batch OUT STRATEGY.

STRATEGY: multiworker, ps or sync. Who leads writes the logs and the weights of each case.
"""

import pickle
import sys

import tf2dist

strategy = tf2dist.join("multiworker" if sys.argv[2] == "multiworker" else "ps")

from tests.models import weights  # noqa: E402
from tests.step_cases import CASES, trained  # noqa: E402

options = {"parameter_server": tf2dist.ParameterServer(update="sync")} if sys.argv[2] == "sync" else {}
results = {}
for name, (make, given) in CASES.items():
    if sys.argv[2] == "sync" and name == "own step":
        continue  # which has no gradients that others could apply
    with strategy.scope():
        model = make()
    results[name] = trained(tf2dist.step(model, **options), given()), weights(model), tf2dist.updates(model)
if sys.argv[2] != "multiworker" or strategy.cluster_resolver.task_id == 0:
    with open(sys.argv[1], "wb") as file:
        pickle.dump(results, file)
