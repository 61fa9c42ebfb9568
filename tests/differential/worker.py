"""Run in every process of a job: trains the configurations that are put into a directory, until there is an end.

python -m tests.differential.worker SETTING DIRECTORY PID, or started by python -m launch

The n-th request is the file n.json; what came of it is written to n.pickle by the process that leads. A setting is the
JSON of `jobs.Setting`; PID is the process that asks, without which nobody would say that there is an end.
"""

import json
import pathlib
import pickle
import sys
import time

import tf2dist
from tf2dist.system import atomic_files

setting, directory = json.loads(sys.argv[1]), pathlib.Path(sys.argv[2])
name, options = setting["strategy"], None
strategy = None if name == "keras" else tf2dist.join(name, replicas=setting["replicas"])

from tests.differential.training import Runner  # noqa: E402

if name == "ps":
    options = tf2dist.ParameterServer(setting["update"], local_steps=setting["local_steps"])
leads = name != "multiworker" or strategy.cluster_resolver.task_id == 0


def requests():
    """Yields the requests in their order, until there is a file `end`."""
    number = 0
    while True:
        request = directory / f"{number}.json"
        while not request.exists():
            if (directory / "end").exists() or not pathlib.Path("/proc", sys.argv[3]).exists():
                return
            time.sleep(0.005)
        yield number, json.loads(request.read_text())
        number += 1


for number, request in requests():
    outcome = Runner(strategy, options, request["permuted"]).train(request["configuration"])
    if leads:
        with atomic_files.replacing(str(directory / f"{number}.pickle")) as (part,):
            pathlib.Path(part).write_bytes(pickle.dumps(outcome))
