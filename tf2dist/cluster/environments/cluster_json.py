"""The JSON object {"cluster": ..., "task": ...} that several platforms put into an environment variable."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import ClassVar, cast

from tf2dist.cluster.spec import Cluster, ClusterError
from tf2dist.system.environment_variables import JOB_ID


class JsonEnvironment:
    """A variable that holds such an object; see `Environment` for the methods. Platforms set the attributes.

    Attributes:
      job_names: a platform's name of a job: TensorFlow's, and a note about it.
    """

    variable: ClassVar[str]
    job_names: ClassVar[Mapping[str, tuple[str, str]]]

    def __init__(self, environ: Mapping[str, str]) -> None:
        text = environ.get(self.variable, "").strip()
        self.notes: list[str] = []
        self._text = "" if text == "{}" else text
        self._job_id = environ.get(JOB_ID, "")

    def detect(self) -> bool:
        """As `Environment.detect`."""
        return bool(self._text)

    def cluster(self) -> Cluster:
        """As `Environment.cluster`."""
        cluster = _read(self._text, self.variable, self.job_names, self.notes)
        return dataclasses.replace(cluster, job_id=self._job_id)


def jobs_of(text: str) -> dict[str, object] | None:
    """Returns the "cluster" object; None if the text is no such JSON."""
    found = _load(text)
    return found and cast("dict[str, object]", found["cluster"])


def _read(text: str, variable: str, job_names: Mapping[str, tuple[str, str]], notes: list[str]) -> Cluster:
    """Reads a cluster.

    Args:
      text: the JSON.
      variable: where it was found, for messages.
      job_names: see `JsonEnvironment`.
      notes: gets what was translated.

    Raises:
      ClusterError: it describes a cluster that cannot be.
    """
    found = _load(text)
    if found is None:
        if _load(text, "sparseCluster"):
            raise ClusterError(
                f'{variable} has a "sparseCluster", which leaves out other workers; it needs a "cluster" (turn off '
                "enableDynamicWorker in a TFJob)"
            )
        return _parse(text, variable)  # which raises, and says what is wrong
    cluster: dict[str, object] = {}
    for name, hosts in cast("dict[str, object]", found["cluster"]).items():
        job = name
        if name in job_names:
            job, note = job_names[name]
            notes.append(note)
        if job in cluster:
            raise ClusterError(f"{variable} names {job} twice, also as {name}; each job is named once")
        if job == "evaluator":
            notes.append("the evaluator is left out of the cluster that TensorFlow sees (tensorflow#46169)")
        cluster[job] = _as_list(name, hosts, variable, notes)
    task = found.get("task")
    if isinstance(task, dict) and "type" in task:
        task = cast("dict[str, object]", task)
        if isinstance(task.get("index"), str):
            notes.append(f"the task's index {task['index']!r} is text, and is meant as a number")
        kind = task["type"]
        task = {**task, "type": job_names[kind][0] if isinstance(kind, str) and kind in job_names else kind}
    return _parse(json.dumps({**found, "cluster": cluster, "task": task}), variable)


def _load(text: str, name: str = "cluster") -> dict[str, object] | None:
    """Returns the JSON object, which has an object of this name; None if the text is something else."""
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    found = cast("dict[str, object]", found)
    return found if isinstance(found.get(name), dict) else None


def _parse(text: str, variable: str) -> Cluster:
    try:
        return Cluster.from_tf_config(text)
    except ClusterError as error:
        raise ClusterError(str(error).replace("TF_CONFIG", variable)) from None


def _as_list(job: str, hosts: object, variable: str, notes: list[str]) -> object:
    """Returns hosts as a list, also where they are an object of index to address."""
    if not isinstance(hosts, dict):
        return hosts
    hosts = cast("dict[str, object]", hosts)
    expected = [str(index) for index in range(len(hosts))]
    if sorted(hosts, key=str) != sorted(expected):
        raise ClusterError(
            f"{variable} gives {job} the indices {', '.join(map(str, hosts)) or 'none'}; they must go from 0 without a "
            "gap (turn off enableDynamicWorker in a TFJob)"
        )
    notes.append(f"{job} is an object of index to address, and is meant as a list")
    return [hosts[index] for index in expected]
