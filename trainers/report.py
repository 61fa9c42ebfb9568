"""The report of a job, one JSON object, and whether what comes out of a job can be written at all."""

from __future__ import annotations

import json
import os
import sys
import tempfile

from tf2dist.atomic import replacing
from trainers.flags import Shared, UsageError


def what_ran(shared: Shared, strategy) -> dict:
    """The part of the report that is the same for every trainer; one that places operations itself has no strategy."""
    import keras
    import tensorflow as tf

    main = sys.modules["__main__"].__spec__
    cluster = shared.cluster
    return {
        "trainer": main.name.rpartition(".")[2] if main else os.path.basename(sys.argv[0]),
        "strategy": shared.strategy,
        "processes": {job: cluster.count(job) for job in cluster.jobs} if cluster else {"solo": 1},
        "replicas": strategy.num_replicas_in_sync if strategy else 1,
        "devices": [d.name for d in tf.config.list_logical_devices() if "XLA" not in d.device_type],
        "seed": shared.seed,
        "versions": {"tensorflow": tf.__version__, "keras": keras.__version__, "python": sys.version.split()[0]},
    }


def check_writable(shared: Shared) -> None:
    """Finds out before training whether what comes out of it can be written; leaves no trace."""
    if shared.report:
        check_file(f"--report={shared.report}", shared.report)
    if shared.logdir:
        # It is made when there is something to write: a command that is wrong otherwise leaves nothing behind.
        place = os.path.realpath(shared.logdir)
        while not os.path.exists(place):
            place = os.path.dirname(place)
        _check_folder(f"--logdir={shared.logdir}", place)


def check_file(flag: str, path: str) -> None:
    """Finds out whether the file that a flag names can be written; leaves no trace."""
    place = os.path.realpath(path)
    if os.path.isdir(place):
        raise UsageError(f"{flag} is a directory; name a file in it")
    if not _special(path):
        _check_folder(flag, os.path.dirname(place))


def _check_folder(flag: str, folder: str) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsageError(f"{flag} cannot be written: {why} ({folder}); name a place in a writable directory") from None


def _special(path: str) -> bool:
    """Is it there, but no file that could be replaced: /dev/null, /dev/stdout, a pipe?"""
    return os.path.exists(path) and not os.path.isfile(path)


def write(path: str, report: dict) -> None:
    """Writes the report in one piece: a reader finds the old file or the new one, never half of it."""
    text = json.dumps(report, indent=2) + "\n"
    if _special(path):
        with open(path, "w") as file:
            file.write(text)
        return
    with replacing(os.path.realpath(path)) as (part,), open(part, "w") as file:
        file.write(text)
