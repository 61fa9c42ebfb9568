"""As `counted_batches`, but a worker that dies has told the servers' counter of an update and not the optimizer's.

python -m tests.programs.torn OUT SECONDS
"""

from tf2dist.parameter_server import asynchronous

next_result = asynchronous.AsynchronousDispatcher.next_result
torn = []


def _next_result(dispatcher):
    fetch = dispatcher._pool.fetch

    def noted(remote):
        fetched = fetch(remote)
        if not torn and (fetched is None or not fetched[-1][0]):
            torn.append(True)
            dispatcher._updates.variable.assign_add(1)
        return fetched

    dispatcher._pool.fetch = noted
    try:
        return next_result(dispatcher)
    finally:
        del dispatcher._pool.fetch


asynchronous.AsynchronousDispatcher.next_result = _next_result

import tests.programs.counted_batches  # noqa: E402, F401 - runs it

assert torn, "no worker has died"
