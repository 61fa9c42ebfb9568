"""--report: one JSON object about a job."""

from __future__ import annotations

import json
import os
import sys

from tf2dist.system.output_files import write_text
from trainers.common.shared_flags import SharedFlags


def what_ran(shared: SharedFlags, strategy) -> dict:
    """Returns the keys that every trainer's report has.

    Args:
      strategy: the `tf.distribute` strategy; None for trainers that place operations themselves.
    """
    import keras
    import tensorflow as tf

    main = sys.modules["__main__"].__spec__
    cluster = shared.cluster
    return {
        "trainer": main.name.removesuffix(".__main__").rpartition(".")[2] if main else os.path.basename(sys.argv[0]),
        "strategy": shared.strategy,
        "processes": {job: cluster.count(job) for job in cluster.jobs} if cluster else {"solo": 1},
        "replicas": strategy.num_replicas_in_sync if strategy else 1,
        "devices": [d.name for d in tf.config.list_logical_devices() if "XLA" not in d.device_type],
        "seed": shared.seed,
        "versions": {"tensorflow": tf.__version__, "keras": keras.__version__, "python": sys.version.split()[0]},
    }


def write(path: str, report: dict) -> None:
    """Writes the report, in one piece."""
    write_text(path, json.dumps(report, indent=2) + "\n")
