"""Prints what Kubernetes needs to run the job: a JobSet, a TFJob, or Jobs, and a network policy."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Mapping, Sequence

from tf2dist.cluster.loss_policy import WORKER_RESTARTS
from tf2dist.errors import START_AGAIN, UsageError
from tf2dist.launch import cluster_layout
from tf2dist.launch.backend import Backend
from tf2dist.launch.backends import yaml_writer
from tf2dist.launch.cluster_layout import DEFAULT_PORT, Layout
from tf2dist.launch.threads_per_operation import THREAD_VARIABLES
from tf2dist.system.environment_variables import DISPATCHER_PORT, PREEMPTIBLE

KINDS = ("jobset", "tfjob", "job")
_LABEL = {"jobset": "jobset.sigs.k8s.io/jobset-name", "tfjob": "training.kubeflow.org/job-name", "job": "tf2dist/job"}
_TFJOB = {"chief": "Chief", "worker": "Worker", "ps": "PS", "evaluator": "Evaluator"}
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")  # of a service, with room for what becomes a pod's name
_LABEL_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # RFC 1123
_CORES = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(m?)")
_MEMORY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)([kMGTPE]|[KMGTPE]i)?")
_MOST = 2**31 - 1  # that Kubernetes takes as a number
_LEAST = 64 << 20  # bytes; no Python with TensorFlow fits into less, so a unit is missing
_USER = 1000  # of our image
_START_TIMEOUT = 900.0  # seconds: nodes may have to be started first, and to fetch the image
_LAST_WORD = 600  # seconds that an evaluator gets for the last checkpoint when TFJob's operator ends what still runs
_INDEX = "TASK_INDEX"  # of a pod within its Job; Kubernetes puts it into the variables that come after it


class K8sBackend:
    """`python -m launch k8s`."""

    summary = "Prints what Kubernetes needs to run the job: a JobSet, a TFJob, or Jobs, and a network policy."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options of `python -m launch k8s`."""
        cluster_layout.add_arguments(parser)
        group = parser.add_argument_group("Kubernetes")
        group.add_argument("--kind", choices=KINDS, default="jobset", help="what runs the job (default: jobset)")
        group.add_argument("--name", default="tf2dist", help="of the job (default: tf2dist)")
        group.add_argument("--namespace", default="default", help="(default: default)")
        group.add_argument("--image", required=True, help="with the program and tf2dist in it; see docs/multihost.md")
        group.add_argument("--cpu", default="1", help="of each task (default: 1)")
        group.add_argument("--memory", default="2Gi", help="of each task (default: 2Gi)")
        group.add_argument("--gpus", type=int, default=0, metavar="N", help="of each worker (default: 0)")
        group.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for every task")
        group.add_argument(
            "--claim", metavar="NAME", help="a volume claim for checkpoints, mounted at /data in every task"
        )
        group.add_argument(
            "--max_restarts",
            type=int,
            metavar="N",
            help="of the job when it has failed, and in their place of data workers, and of workers and servers under "
            f"parameter servers (default: 0, and {WORKER_RESTARTS} of those)",
        )
        group.add_argument(
            "--grace",
            type=int,
            default=60,
            metavar="S",
            help="seconds from SIGTERM, at which the job saves, to SIGKILL (default: 60)",
        )

    def start(self, options: argparse.Namespace, program: Sequence[str]) -> int:
        """Prints the manifests, for `kubectl apply -f -`; returns 0.

        Raises:
          UsageError: the options are wrong.
        """
        print(yaml_writer.documents(*manifests(options, program)), end="")
        return 0


BACKEND: Backend = K8sBackend()


def manifests(options: argparse.Namespace, program: Sequence[str]) -> list[dict[str, object]]:
    """The objects, each as Kubernetes' API takes it.

    Raises:
      UsageError: the options are wrong.
    """
    for name in ("hosts", "hostfile", "cluster"):
        if (value := getattr(options, name)) is not None:
            raise UsageError(f"--{name}={value} names machines, and Kubernetes chooses these; say --ps and --workers")
    layout = cluster_layout.from_options(options)
    layout.check_fixed("launch k8s")
    if options.kind == "tfjob" and layout.count("data_worker"):
        raise UsageError("--data_workers: a TFJob knows no data workers; use --kind=jobset or --kind=job")
    if options.port == 65535 and layout.count("data_worker"):
        raise UsageError("--port=65535 leaves no port for the dispatcher of the data service, which is the next one")
    _check(options)
    for word in (*program, *options.env):
        if word != word.encode(errors="replace").decode():
            raise UsageError(f"the program, its arguments and --env must be UTF-8, found {word!r}")
    made = _Manifests(options, layout, program)
    return [made.network_policy(), *made.jobs()]


def _check(options: argparse.Namespace) -> None:
    if not _NAME.fullmatch(options.name):
        raise UsageError(f"--name={options.name} is no name; it has up to 40 of a-z, 0-9 and -, a letter first")
    if not _LABEL_NAME.fullmatch(options.namespace):
        raise UsageError(f"--namespace={options.namespace} is no namespace; it has up to 63 of a-z, 0-9 and -")
    claim = options.claim
    if claim is not None and (len(claim) > 253 or not all(map(_LABEL_NAME.fullmatch, claim.split(".")))):
        raise UsageError(f"--claim={claim} is no name of a volume claim; it has up to 253 of a-z, 0-9, - and .")
    if not re.fullmatch(r"[!-~]+", options.image):
        raise UsageError(f"--image={options.image} is no image; it is written as registry/name:tag")
    if not _cores(options.cpu):
        raise UsageError(f"--cpu={options.cpu} is no number of cores; it is written as 2, 0.5 or 500m")
    found = _MEMORY.fullmatch(options.memory)
    if not found:
        raise UsageError(f"--memory={options.memory} is no amount of memory; it is written as 4Gi or 500Mi")
    unit = found[2] or ""
    power = " KMGTPE".index(unit[0].upper()) if unit else 0
    if (size := float(found[1]) * (1024 if unit.endswith("i") else 1000) ** power) < _LEAST:
        raise UsageError(f"--memory={options.memory} is {size:.0f} bytes, too few for a task; it is written as 4Gi")
    for name in ("gpus", "max_restarts", "grace"):
        if not 0 <= (getattr(options, name) or 0) <= _MOST:
            raise UsageError(f"--{name}={getattr(options, name)} must be from 0 to {_MOST}")
    for text in options.env:
        if not re.fullmatch(r"(?!TF_CONFIG=|TASK_INDEX=)[A-Za-z_][A-Za-z0-9_.-]*=.*", text, re.DOTALL):
            raise UsageError(f"--env={text} is no variable that can be given; it is NAME=VALUE, and no TF_CONFIG")


def _cores(text: str) -> float:
    found = _CORES.fullmatch(text)
    return float(found[1]) / (1000 if found[2] else 1) if found else 0.0


def _literal(text: str) -> str:
    """Written so that Kubernetes, which puts variables into commands and variables, leaves it as it is."""
    return text.replace("$", "$$")


def _dns(job: str) -> str:
    """The name of a job as a part of a host's name, which has no _ and must not be long."""
    return "data" if job == "data_worker" else job


class _Manifests:
    def __init__(self, options: argparse.Namespace, layout: Layout, program: Sequence[str]):
        self.options = options
        self.layout = layout
        self.kind: str = options.kind
        self.name: str = options.name
        self.port: int = options.port or DEFAULT_PORT
        self.ports = [self.port, self.port + 1] if layout.count("data_worker") else [self.port]
        self.shared = cluster_layout.task_environment(options, _START_TIMEOUT)
        if layout.count("data_worker"):  # the dispatcher's, which a network policy has to name
            self.shared |= {DISPATCHER_PORT: str(self.ports[-1])}
        name = program[0]
        script = name.endswith(".py") or "/" in name
        self.command = ["python", *([] if script else ["-m"]), *map(_literal, program)]
        self.counts = {job: layout.count(job) for job in dict.fromkeys(task.job for task in layout.tasks)}
        self.max_restarts: int = options.max_restarts or 0

    def jobs(self) -> list[dict[str, object]]:
        """What runs the tasks."""
        if self.kind == "tfjob":
            return [self.tfjob()]
        if self.kind == "jobset":
            return [self.jobset()]
        return [self.service(), *(self.job(job, count) for job, count in self.counts.items())]

    def jobset(self) -> dict[str, object]:
        """A JobSet with a replicated Job for each job of the cluster (jobset.sigs.k8s.io)."""
        replicated = [
            {"name": _dns(job), "replicas": 1, "template": {"spec": self.job_spec(job, count)}}
            for job, count in self.counts.items()
        ]
        spec = {
            "network": {"enableDNSHostnames": True, "subdomain": self.name},
            # Others end with the one that leads. A worker that is just being started again would not.
            "successPolicy": {
                "operator": "All",
                "targetReplicatedJobs": [job for job in self.counts if job in (self.layout.leader.job, "evaluator")],
            },
            "failurePolicy": {
                "maxRestarts": self.max_restarts,
                "rules": [
                    {
                        "name": "preempted",
                        "action": "RestartJobSetAndIgnoreMaxRestarts",
                        "onJobFailureReasons": ["PodFailurePolicy"],
                    }
                ],
            },
            "replicatedJobs": replicated,
        }
        return self.object("jobset.x-k8s.io/v1alpha2", "JobSet", spec)

    def tfjob(self) -> dict[str, object]:
        """A TFJob (kubeflow.org/v1), whose operator writes TF_CONFIG itself."""
        replicas = {
            _TFJOB[job]: {
                "replicas": count,
                "restartPolicy": "OnFailure" if self.max_restarts or self.restarts_alone(job) else "Never",
                "template": {"spec": self.pod(job, name="tensorflow")},
            }
            for job, count in self.counts.items()
        }
        limit = max(self.max_restarts, *map(self.restarts_alone, self.counts))
        # Its operator gives up at the restart with this number, and at the first one if that is 0.
        policy = {"cleanPodPolicy": "Running", "backoffLimit": limit + (limit > 0)}
        return self.object("kubeflow.org/v1", "TFJob", {"runPolicy": policy, "tfReplicaSpecs": replicas})

    def service(self) -> dict[str, object]:
        """A service without an address, which gives the pods their names."""
        spec = {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # tasks look for each other before they are ready
            "selector": self.labels(),
            "ports": [{"name": "tensorflow", "port": self.port}],
        }
        return self.object("v1", "Service", spec)

    def job(self, job: str, count: int) -> dict[str, object]:
        """A Job of so many pods, each with its index."""
        return self.object("batch/v1", "Job", self.job_spec(job, count), f"{self.name}-{_dns(job)}")

    def restarts_alone(self, job: str) -> int:
        """How many pods of a Job are started again in their place while the others go on (`loss_policy`)."""
        if any(self.layout.coordinator_of(task) is None for task in self.layout.tasks if task.job == job):
            return 0
        return WORKER_RESTARTS if self.options.max_restarts is None else self.options.max_restarts

    def job_spec(self, job: str, count: int) -> dict[str, object]:
        pod, limit = self.pod(job), self.restarts_alone(job)
        if self.kind == "job":
            pod, limit = {"subdomain": self.name, **pod}, self.max_restarts * count or limit
        return {
            "completionMode": "Indexed",
            "completions": count,
            "parallelism": count,
            "backoffLimit": limit,
            **self.preemption_policy(),
            "template": {"metadata": {"labels": self.labels() if self.kind == "job" else {}}, "spec": pod},
        }

    def preemption_policy(self) -> dict[str, object]:
        """What a Job does when a pod was preempted, whether it has said so (75) or was taken away: no failure.

        In a JobSet it fails with a reason that has all of them started again. By itself it makes another pod; not where
        a container is started again in its pod, which may have no such policy.
        """
        if self.kind == "job" and self.max_restarts:
            return {}
        action = "FailJob" if self.kind == "jobset" else "Ignore"
        rules = [
            {"action": action, "onExitCodes": {"operator": "In", "values": [START_AGAIN]}},
            {"action": action, "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        ]
        return {"podFailurePolicy": {"rules": rules}}

    def pod(self, job: str, name: str = "task") -> dict[str, object]:
        """The specification of a pod."""
        container: dict[str, object] = {
            "name": name,
            "image": self.options.image,
            "command": self.command,
            "env": self.env(job),
            "ports": [{"name": "tfjob-port", "containerPort": self.port}],
            "resources": self.resources(job),
        }
        last_word = _LAST_WORD if self.kind == "tfjob" and job == "evaluator" else 0
        pod: dict[str, object] = {
            "terminationGracePeriodSeconds": max(self.options.grace, last_word),
            "containers": [container],
        }
        if self.kind != "tfjob":
            pod["restartPolicy"] = "OnFailure" if self.kind == "job" and self.max_restarts else "Never"
        if self.options.claim:
            pod["securityContext"] = {"fsGroup": _USER}  # or the volume would be for root alone
            container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
            pod["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": self.options.claim}}]
        return pod

    def resources(self, job: str) -> dict[str, object]:
        amounts: dict[str, object] = {"cpu": self.options.cpu, "memory": self.options.memory}
        if self.layout.computes(job):
            amounts |= {"nvidia.com/gpu": self.options.gpus} if self.options.gpus else {}
        return {"requests": {k: v for k, v in amounts.items() if "/" not in k}, "limits": amounts}

    def env(self, job: str) -> list[dict[str, object]]:
        """The task's place in the cluster, in words of Kubernetes, which knows the index of each pod."""
        # A limit on processor time hides no cores: TensorFlow would make a thread for each, and be held back.
        variables = dict.fromkeys(THREAD_VARIABLES, str(math.ceil(_cores(self.options.cpu))))
        variables |= {"PYTHONUNBUFFERED": "1", PREEMPTIBLE: "1", **self.shared}
        variables |= dict(text.split("=", 1) for text in self.options.env)
        env: list[dict[str, object]] = [{"name": name, "value": _literal(value)} for name, value in variables.items()]
        if self.kind == "tfjob":
            return env
        spec = {j: [f"{self.host(j, i)}:{self.port}" for i in range(n)] for j, n in self.counts.items()}
        spec.pop("evaluator", None)
        config = {"cluster": spec, "task": {"type": job, "index": f"$({_INDEX})"}}
        annotation = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
        index: dict[str, object] = {"name": _INDEX, "valueFrom": {"fieldRef": {"fieldPath": annotation}}}
        return [*env, index, {"name": "TF_CONFIG", "value": json.dumps(config)}]

    def host(self, job: str, index: int) -> str:
        """The name of a pod in the service of the job."""
        name = f"{self.name}-{_dns(job)}"
        pod = f"{name}-0-{index}" if self.kind == "jobset" else f"{name}-{index}"
        return f"{pod}.{self.name}.{self.options.namespace}.svc"

    def labels(self) -> dict[str, str]:
        return {_LABEL[self.kind]: self.name}

    def network_policy(self) -> dict[str, object]:
        """Only the job's own pods reach its ports: TensorFlow asks nobody for a password."""
        peers = {"podSelector": {"matchLabels": self.labels()}}
        spec = {
            "podSelector": {"matchLabels": self.labels()},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [peers], "ports": [{"protocol": "TCP", "port": port} for port in self.ports]}],
        }
        return self.object("networking.k8s.io/v1", "NetworkPolicy", spec)

    def object(self, version: str, kind: str, spec: Mapping[str, object], name: str | None = None) -> dict[str, object]:
        metadata = {"name": name or self.name, "namespace": self.options.namespace}
        return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}
