"""The flags that all trainers share, read once into `SharedFlags`. Imports no TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass

from absl import flags

from tf2dist.cluster import environments
from tf2dist.cluster.roles import Role, leader_of, role_of
from tf2dist.cluster.spec import MOST_TASKS, Cluster
from tf2dist.cluster.strategy_names import STRATEGIES, default_strategy
from tf2dist.errors import UsageError
from tf2dist.system import files, gpus
from tf2dist.system.local_paths import check_local

_STRATEGY = flags.DEFINE_enum(
    "strategy", None, list(STRATEGIES), "How to train. Default: what the cluster is made for, or 'one' without one."
)
_PS = flags.DEFINE_integer("ps", 1, "Parameter servers of the local cluster.", lower_bound=1, upper_bound=MOST_TASKS)
_WORKERS = flags.DEFINE_integer("workers", 2, "Workers of the local cluster.", lower_bound=1, upper_bound=MOST_TASKS)
_REPLICAS = flags.DEFINE_integer(
    "replicas",
    None,
    "Devices in each process: GPUs, or virtual CPUs where there are none.",
    lower_bound=1,
    upper_bound=1024,
)
_PS_HOSTS = flags.DEFINE_list("ps_hosts", [], "Parameter servers of the job, host:port,...")
_WORKER_HOSTS = flags.DEFINE_list("worker_hosts", [], "Workers of the job, host:port,...; worker 0 also coordinates.")
_JOB_NAME = flags.DEFINE_string("job_name", None, "Which job this process belongs to: ps, worker or evaluator.")
_TASK_INDEX = flags.DEFINE_integer("task_index", None, "Which task of the job this process is.", lower_bound=0)
flags.DEFINE_alias("task_id", "task_index")
_LOGDIR = flags.DEFINE_string(
    "logdir",
    None,
    "Directory for checkpoints, which training goes on from, TensorBoard and the trained model; nothing "
    "is written without.",
)
_SEED = flags.DEFINE_integer(
    "seed", 1, "Of initial weights and of the order of the data.", lower_bound=0, upper_bound=2**32 - 1
)
_XLA = flags.DEFINE_boolean("xla", False, "Compile each step with XLA.")
_MIXED_PRECISION = flags.DEFINE_boolean("mixed_precision", False, "Compute in bfloat16, keep weights in float32.")
_LOG_DEVICE_PLACEMENT = flags.DEFINE_boolean(
    "log_device_placement",
    False,
    "Print a table at the end: each operation, the device it asked for, and where it was.",
)
_SOFT_PLACEMENT = flags.DEFINE_boolean(
    "soft_placement", False, "Let TensorFlow choose a device for what cannot be where it asks to be; else an error."
)
_START_TIMEOUT = flags.DEFINE_float(
    "start_timeout", None, "Seconds that a process of a job waits for the others; default: 120.", lower_bound=0.001
)
_REPORT = flags.DEFINE_string("report", None, "File or URL for one JSON object: what ran, and what came out.")


@dataclass(frozen=True)
class SharedFlags:
    """The values of the shared flags, and what follows from them."""

    strategy: str
    cluster: Cluster | None
    replicas: int | None
    ps: int
    workers: int
    logdir: str | None
    seed: int
    xla: bool
    mixed_precision: bool
    report: str | None
    log_device_placement: bool = False
    soft_placement: bool = False
    start_timeout: float | None = None

    @property
    def needs_local_cluster(self) -> bool:
        """Whether the strategy needs several processes and the command names no cluster."""
        return self.strategy in ("ps", "multiworker") and self.cluster is None

    @property
    def role(self) -> Role:
        """The role of this process in its cluster."""
        return role_of(self.strategy, self.cluster)

    @property
    def evaluates(self) -> bool:
        """Whether this process is the job's evaluator."""
        return self.role is Role.EVALUATOR

    @property
    def leads(self) -> bool:
        """Whether this process prints and writes; one process of each job does (`roles.leader_of`)."""
        return self.cluster is None or self.cluster.task == leader_of(self.cluster)

    @property
    def layout(self) -> str:
        """The processes in words: "1 ps, 2 workers"."""
        if self.strategy not in ("ps", "multiworker"):
            return "1 process"
        counts = {job: self.cluster.count(job) for job in ("chief", "ps", "worker")} if self.cluster else {}
        return ", ".join(f"{n} {job}{'s' if n > 1 and job != 'ps' else ''}" for job, n in counts.items() if n)

    def replicas_in_sync(self) -> int | None:
        """Returns how many replicas share a global batch; None when only TensorFlow can tell the number of GPUs."""
        if self.strategy in ("one", "ps"):
            return 1
        each = self.replicas
        if each is None:
            if gpus.visible():
                return None
            each = 2 if self.strategy != "multiworker" else 1
        peers = 1
        if self.strategy == "multiworker":
            cluster = self.cluster  # of which an evaluator is no peer
            peers = cluster.count("chief") + cluster.count("worker") if cluster else self.workers
        return each * peers


def read(*, has_strategy: bool = True, cluster: Cluster | None = None) -> SharedFlags:
    """Reads the shared flags.

    Args:
      has_strategy: whether the trainer uses one; otherwise --strategy only decides which processes there are.
      cluster: from the trainer's own flags; takes precedence over the shared flags and the environment.

    Raises:
      UsageError, ClusterError: flags contradict each other or the environment.
    """
    check_local(f"--logdir={_LOGDIR.value}", _LOGDIR.value or "")
    files.check(f"--report={_REPORT.value}", _REPORT.value or "")
    if cluster is None:
        cluster = environments.from_hosts(_PS_HOSTS.value, _WORKER_HOSTS.value, _JOB_NAME.value, _TASK_INDEX.value)
    cluster = cluster or environments.from_environment()
    strategy = _STRATEGY.value or default_strategy(cluster)
    if strategy not in ("ps", "multiworker") and _given("ps", "workers"):
        raise UsageError(f"--ps and --workers are for strategies ps and multiworker, and the strategy is {strategy}")
    if strategy == "multiworker" and _given("ps"):
        raise UsageError("--ps is for strategy ps; multiworker has no parameter servers")
    for flag, job in (("ps", "ps"), ("workers", "worker")):
        if cluster and _given(flag) and flags.FLAGS[flag].value != cluster.count(job):
            raise UsageError(
                f"--{flag}={flags.FLAGS[flag].value} is for a local cluster, but this process is given one that has "
                f"{cluster.count(job)}"
            )
    if has_strategy and _REPLICAS.value and strategy in ("one", "ps") and _REPLICAS.value > 1:
        raise UsageError(
            f"--replicas={_REPLICAS.value} needs a strategy with several: mirrored, central or multiworker"
        )
    if _XLA.value and strategy in ("ps", "central"):
        raise UsageError(
            f"--xla compiles what is on one device, and --strategy={strategy} keeps the variables elsewhere; "
            "one, mirrored and multiworker keep them on it"
        )
    shared = SharedFlags(
        strategy, cluster, _REPLICAS.value, _PS.value, _WORKERS.value, _LOGDIR.value, _SEED.value, _XLA.value,
        _MIXED_PRECISION.value, _REPORT.value, _LOG_DEVICE_PLACEMENT.value, _SOFT_PLACEMENT.value,
        _START_TIMEOUT.value,
    )  # fmt: skip
    if cluster and shared.role is Role.EVALUATOR and not shared.logdir:
        raise UsageError("an evaluator follows the checkpoints in --logdir, and none is given; name that of the job")
    return shared


def _given(*names: str) -> bool:
    """Returns whether any of these flags is on the command line."""
    return any(flags.FLAGS[name].present for name in names)
