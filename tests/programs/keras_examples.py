"""Run in every process of a job: programs of `tests.examples`, with our calls in the place of Keras's.

python -m launch local --workers=2 -- tests.programs.keras_examples STRATEGY OUT NAME...

Saves the results by the programs' names, a pickle: what `tests.examples.run` returns, or the message of a refusal.
"""

import pathlib
import pickle
import sys

import tf2dist

strategy = tf2dist.join(sys.argv[1])

from tests import examples  # noqa: E402
from tf2dist.errors import UsageError  # noqa: E402
from tf2dist.runtime import collectives  # noqa: E402

results = {}
for name in sys.argv[3:]:
    try:
        results[name] = examples.run(name, ours=True)
    except UsageError as error:
        results[name] = str(error)
if collectives.peers(strategy)[1] == 0:
    pathlib.Path(sys.argv[2]).write_bytes(pickle.dumps(results))
