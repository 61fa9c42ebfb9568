"""As `long`, but a worker that dies has been told to count an update and not told the optimizer's counter of it.

python -m tests.cluster.programs.torn OUT
"""

from tf2dist import workers

fetch = workers.Remote._fetch
torn = []


def _fetch(dispatcher, remote):
    fetched = fetch(dispatcher, remote)
    if not torn and (fetched is None or not fetched[-2]):
        torn.append(True)
        dispatcher._applied.assign_add(1)
    return fetched


workers.Remote._fetch = _fetch

import tests.cluster.programs.long  # noqa: E402, F401 - runs it

assert torn, "no worker has died"
