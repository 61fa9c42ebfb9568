"""Ends the processes of a `ProcessPoolExecutor`, whatever they do, so that Python can exit.

Python waits when it exits for the thread of each pool, which waits for its processes. Public methods that kill these
came with Python 3.14 (https://github.com/python/cpython/issues/128041).
"""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import connection
from typing import Any


def end(pool: ProcessPoolExecutor, seconds: float) -> None:
    """Ends the pool. What its processes have begun they may finish, and what they have written is flushed.

    Args:
      seconds: after which those that are left are killed.
    """
    processes, results = [*pool._processes.values()], pool._result_queue
    pool.shutdown(wait=False, cancel_futures=True)
    deadline = time.monotonic() + seconds
    late = [p for p in processes if not connection.wait([p.sentinel], max(0.0, deadline - time.monotonic()))]
    for process in late:
        process.kill()
    if late:
        # One that was sending a result leaves the pool's thread with a part of it. Once nobody can write, it is told.
        writer: Any = vars(results)["_writer"]
        writer.close()


def kill(pool: ProcessPoolExecutor) -> None:
    """Kills the processes of a pool that is broken: from Python 3.12 on it holds a lock while it waits for them."""
    for process in [*pool._processes.values()]:
        process.kill()
