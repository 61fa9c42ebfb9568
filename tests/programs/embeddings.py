"""Run in every process: trains tables whose rows are looked up, with each of the options; saves what came out.

python -m launch local --workers=2 -- tests.programs.embeddings OUT OPTIONS...

With servers the workers update together.
"""

import functools
import os
import pathlib
import pickle
import sys

import tf2dist

has_servers = "ps" in tf2dist.Cluster.from_tf_config(os.environ["TF_CONFIG"]).spec
strategy = tf2dist.join("ps" if has_servers else "multiworker")

from tests import embedding_cases  # noqa: E402

several_steps = functools.partial(
    tf2dist.fit, steps_per_execution=4, parameter_server=tf2dist.ParameterServer("sync") if has_servers else None
)
results = {o: embedding_cases.trained(o, several_steps, strategy.scope()) for o in sys.argv[2:]}
if has_servers or strategy.cluster_resolver.task_id == 0:
    pathlib.Path(sys.argv[1]).write_bytes(pickle.dumps(results))
