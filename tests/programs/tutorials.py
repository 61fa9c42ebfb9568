"""Run in every task of a job: a program of `tests.tutorials`, with tf2dist.

python -m launch local --workers=2 -- tests.programs.tutorials NAME DIRECTORY

The tasks that come to its end write its results into the directory, a pickle each.
"""

import pathlib
import pickle
import sys

from tests import tutorials
from tf2dist.cluster import environments

results = tutorials.run(sys.argv[1], ours=True)
task = environments.from_environment().task
(pathlib.Path(sys.argv[2]) / f"{task.job}-{task.index}.pickle").write_bytes(pickle.dumps(results))
