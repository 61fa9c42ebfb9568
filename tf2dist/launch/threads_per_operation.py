"""How many threads one operation of a task may use, so that the tasks of a host do not wait for one another."""

from __future__ import annotations

import os

from tf2dist.errors import UsageError
from tf2dist.launch.cluster_layout import Layout

# How many threads one operation may use. The pools that run several operations at once keep their size, because
# operations that wait for other processes wait in them.
THREAD_VARIABLES = ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")


def thread_variables(threads: int | None, layout: Layout) -> dict[str, str]:
    """Divides the cores among the workers: with a thread a core in each of them they would wait for one another."""
    if threads is None:
        computing = sum(layout.computes(task.job) for task in layout.tasks)
        threads = max(1, len(os.sched_getaffinity(0)) // max(1, computing))
    if threads < 0:
        raise UsageError(f"threads is {threads}; it must be 1 or more, or 0 to leave it to TensorFlow")
    return {name: str(threads) for name in THREAD_VARIABLES if threads and name not in os.environ}
