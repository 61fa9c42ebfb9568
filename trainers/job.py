"""What is the same in every trainer: the local cluster, this process's role, and how errors end it."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from absl import flags

from launch import UsageError as LaunchError
from launch import linux
from tf2dist import placement
from tf2dist.cluster import Cluster, ClusterError
from tf2dist.data.errors import DataError
from tf2dist.errors import CheckpointError, ShardError, TrainingError
from tf2dist.lifeline import Gone
from tf2dist.preflight import PreflightError
from tf2dist.roles import Role
from trainers import report
from trainers.flags import Shared, UsageError, read

_PREPARED = "TF2DIST_PREPARED"  # what the launcher has found out for all its processes, as JSON
_LAUNCHED_AT = "TF2DIST_LAUNCHED_AT"  # Unix time at which the user's command began
_HEADINGS = ("Graph execution error", "Detected at node", "File ", "<stack", "Additional GRPC")


@dataclass
class Run:
    """What a trainer gets: the strategy, and what the shared flags said.

    Attributes:
      strategy: the `tf.distribute` strategy; None in a trainer that needs none.
      shared: the shared flags.
      leads: does this process print and write? One of each job does.
      report: what goes into `--report` besides what the trainer returns.
    """

    strategy: Any
    shared: Shared
    leads: bool
    began: float
    report: dict = field(default_factory=dict)

    @property
    def evaluates(self) -> bool:
        """Is this process the job's evaluator, whose `fit` does not train?"""
        return self.shared.evaluates

    def say(self, text: str) -> None:
        """Prints a line to standard output, once a job."""
        if self.leads:
            print(text, flush=True)


def run(
    train: Callable[[Run, Any], dict],
    prepare: Callable[[Shared], Any] = lambda shared: None,
    *,
    has_strategy: bool = True,
    cluster: Callable[[], Cluster | None] = lambda: None,
    positional: Sequence[str] = (),
) -> None:
    """The main of a trainer; exits the process.

    Args:
      train: called in the processes that run a loop, with what `prepare` returned; returns its part of the report.
      prepare: checks the trainer's own flags and finds its data, before TensorFlow is imported and any process is
        started; what it returns must be JSON. A local cluster's processes get it from the launcher.
      has_strategy: False for a program that places operations itself: it runs in the first task of a cluster, and
        the others serve it (`tf2dist.connect`).
      cluster: what the trainer's own flags say of it, if they do.
      positional: flags that may be given as plain arguments, in this order.
    """
    name = os.path.basename(sys.argv[0]).removesuffix(".py")
    try:
        status = _run(train, prepare, has_strategy, cluster, positional)
    except (UsageError, LaunchError, ClusterError, DataError, flags.Error) as error:
        status = _failed(name, error, 2)
    except (PreflightError, Gone, TrainingError, CheckpointError, ShardError, OSError, MemoryError) as error:
        status = _failed(name, error, 1)
    except KeyboardInterrupt:
        status = _failed(name, None, 130)
    except SystemExit as exit:
        if exit.code:
            _failed(name, None, 1)
        raise
    except Exception as error:
        line = _tensorflow_error(error)
        if line is None:
            raise  # a bug: the traceback is what is wanted
        status = _failed(name, line, 1)
    sys.exit(status)


def _failed(name: str, error: Any, status: int) -> int:
    from tf2dist import joining

    joining.failed()
    if error is not None:
        print(f"{name}: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr, flush=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # TensorFlow's threads complain at length while they end
    return status


def _tensorflow_error(error: Exception) -> str | None:
    """One line for an error that TensorFlow found while running (a server died, a file is damaged), else None."""
    if "tensorflow" not in sys.modules:
        return None
    import tensorflow as tf

    from tf2dist import joining

    if not isinstance(error, tf.errors.OpError):
        return None
    if misplaced := placement.explain(error):
        return f"{misplaced}; --soft_placement lets TensorFlow choose another device"
    time.sleep(0.2)  # when another task died, TensorFlow may know before its lifeline does
    if lost := joining.first_loss():
        return f"{lost} ({type(error).__name__})"
    if silent := _silent(error.message or ""):
        return f"{silent} has given no sign of life ({type(error).__name__})"
    lines = [line.strip() for line in (error.message or str(error)).splitlines()]
    # What comes first is often a heading and the place in the source of TensorFlow or Keras, not the reason.
    said = [line for line in lines if line and not line.startswith(_HEADINGS)]
    return f"{type(error).__name__}: {(said or lines or ['no message'])[0]}"


def _silent(message: str) -> str:
    """The tasks that TensorFlow's own heartbeats have missed, as "worker 1"; empty if it is not about these."""
    tasks = message.partition("(stopped sending heartbeats)")[2]
    return ", ".join(f"{job} {index}" for job, index in re.findall(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)", tasks))


def _run(train, prepare, has_strategy, cluster, positional) -> int:
    if any(a in ("--help", "-help", "-h", "--helpfull") for a in sys.argv[1:]):
        print(f"{sys.modules['__main__'].__doc__ or ''}\n{flags.FLAGS.get_help()}")
        return 0
    if positional and (negative := [a for a in sys.argv[1:] if a.startswith("-") and a[1:].isdecimal()]):
        raise UsageError(f"{negative[0]} is no {' or '.join(positional)}; numbers are from 1 on, see --help")
    try:
        rest = flags.FLAGS(sys.argv)[1:]
    except flags.UnrecognizedFlagError as error:
        raise UsageError(f"{str(error).rstrip('. ')}; see --help") from None
    _take(rest, positional)
    shared = read(has_strategy=has_strategy, cluster=cluster())
    if shared.leads:
        report.check_writable(shared)
    if shared.needs_local_cluster:
        return _launch(shared, prepare(shared))
    role = shared.role
    prepared = None
    if role is not Role.SERVER:
        text = os.environ.get(_PREPARED)
        prepared = json.loads(text) if text else prepare(shared)
    began = float(os.environ.get(_LAUNCHED_AT) or linux.began())
    outcome = _train(train, has_strategy, shared, prepared, began)
    if outcome is not None and shared.report:
        report.write(shared.report, outcome)
    return 0


def _take(rest: list[str], positional: Sequence[str]) -> None:
    """Gives plain arguments to the flags that they stand for."""
    for name, value in zip(positional, rest, strict=False):
        if flags.FLAGS[name].present:
            raise UsageError(f"{value!r} and --{name}={flags.FLAGS[name].value} both say which {name}; give one")
        flags.FLAGS[name].parse(value)
    for extra in rest[len(positional) :]:
        raise UsageError(f"unexpected argument {extra!r}; flags are written --name=value, see --help")


def _train(train, has_strategy: bool, shared: Shared, prepared, began: float) -> dict | None:
    """Joins the job and trains; the whole report, in the process that leads."""
    log = placement.begin(leads=shared.role is not Role.SERVER) if shared.log_device_placement else None
    strategy = _join(has_strategy, shared)
    import keras
    import tensorflow as tf

    tf.config.set_soft_device_placement(shared.soft_placement)

    keras.utils.set_random_seed(shared.seed)
    if shared.mixed_precision:
        # bfloat16 has float32's range, so no loss has to be scaled; CPUs and GPUs since Ampere compute in it.
        keras.config.set_dtype_policy("mixed_bfloat16")
    if shared.logdir and shared.leads:
        os.makedirs(shared.logdir, exist_ok=True)
    run = Run(strategy, shared, shared.leads, began, report=report.what_ran(shared, strategy))
    outcome = train(run, prepared)
    if log is not None and shared.leads:
        remote = shared.strategy == "ps" or not has_strategy  # others run graphs for this process
        run.say(log.table(shared.cluster.tasks if shared.cluster and remote else ()))
    return run.report | outcome if shared.leads else None


def _join(has_strategy: bool, shared: Shared):
    import tf2dist

    options = {"cluster": shared.cluster, "replicas": shared.replicas, "start_timeout": shared.start_timeout}
    try:
        return tf2dist.join(shared.strategy, **options) if has_strategy else tf2dist.connect(**options)
    except ClusterError:
        raise
    except ValueError as error:  # more GPUs than there are, say
        raise UsageError(str(error)) from None


def _launch(shared: Shared, prepared) -> int:
    """Starts a local cluster that runs this same command; returns its exit status."""
    from launch import local

    spec = sys.modules["__main__"].__spec__
    program = [spec.name if spec else os.path.abspath(sys.argv[0]), *sys.argv[1:]]
    return local.run(
        program,
        ps=shared.ps if shared.strategy == "ps" else 0,
        workers=shared.workers,
        env={_PREPARED: json.dumps(prepared)},
        quiet_prefix_for="chief 0" if shared.strategy == "ps" else "worker 0",
        # Nobody else can reach its ports; but then it cannot reach others, which a place like gs://... needs.
        isolate=not any("://" in argument for argument in sys.argv),
    )
