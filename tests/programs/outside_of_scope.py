"""Run in every process of a job: trains models that were made outside of the strategy's scope.

python -m tests.programs.outside_of_scope STRATEGY OUT
"""

import pathlib
import pickle
import sys

import tf2dist

strategy = tf2dist.join(sys.argv[1])

from tests import outside_of_scope  # noqa: E402
from tf2dist.runtime import collectives  # noqa: E402

results = {name: outside_of_scope.trained(name, tf2dist) for name in outside_of_scope.CASES}
if collectives.peers(strategy)[1] == 0:
    pathlib.Path(sys.argv[2]).write_bytes(pickle.dumps(results))
