"""Run in every peer: trains tables whose rows are looked up, with each of the options; saves what came out.

python -m launch local --workers=2 -- tests.programs.embeddings OUT OPTIONS...
"""

import functools
import pathlib
import pickle
import sys

import tf2dist

strategy = tf2dist.join("multiworker")

from tests import embedding_cases  # noqa: E402

several_steps = functools.partial(tf2dist.fit, steps_per_execution=4)
results = {o: embedding_cases.trained(o, several_steps, strategy.scope()) for o in sys.argv[2:]}
if strategy.cluster_resolver.task_id == 0:
    pathlib.Path(sys.argv[1]).write_bytes(pickle.dumps(results))
