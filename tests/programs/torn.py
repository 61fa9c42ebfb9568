"""As `counted_batches`, but a result is lost with its worker, which told the servers' counter of one update more.

python -m tests.programs.torn OUT SECONDS

Whichever worker the result is from: the one that is killed may have had nothing to do just then.
"""

import pathlib
import sys

from tf2dist.parameter_server import asynchronous

out = pathlib.Path(sys.argv[1])
next_result = asynchronous.AsynchronousDispatcher.next_result
torn = []


def _next_result(dispatcher):
    fetch = dispatcher._pool.fetch

    def lost(remote):
        fetched = fetch(remote)
        if torn or not (out / "under_way").exists():
            return fetched
        torn.append(True)
        dispatcher._updates.variable.assign_add(1)
        return None

    dispatcher._pool.fetch = lost
    try:
        return next_result(dispatcher)
    finally:
        del dispatcher._pool.fetch


asynchronous.AsynchronousDispatcher.next_result = _next_result

import tests.programs.counted_batches  # noqa: E402, F401 - runs it
