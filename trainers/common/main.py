"""The main of every trainer: reads flags, starts a local cluster or joins the job, trains, writes the report."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from absl import flags

from tf2dist.cluster.roles import Role
from tf2dist.cluster.spec import Cluster, ClusterError
from tf2dist.data.errors import DataError
from tf2dist.errors import UsageError
from tf2dist.runtime import logging_setup, placement_log
from tf2dist.system import environment_variables, files, linux
from trainers.common import exit_status, flag_requirements, report
from trainers.common.shared_flags import SharedFlags, read


@dataclass
class Run:
    """What a trainer's `train` gets.

    Attributes:
      strategy: the `tf.distribute` strategy; None for a trainer without one.
      shared: the shared flags.
      began: Unix time at which the user's command began.
      report: keys for `--report` besides those that the trainer returns.
    """

    strategy: Any
    shared: SharedFlags
    began: float
    report: dict = field(default_factory=dict)

    @property
    def leads(self) -> bool:
        """Whether this process prints and writes; one process of each job does."""
        return self.shared.leads

    @property
    def evaluates(self) -> bool:
        """Whether this process is the job's evaluator, whose `fit` does not train."""
        return self.shared.evaluates

    def say(self, text: str) -> None:
        """Prints a line to standard output, in the process that leads."""
        if self.leads:
            print(text, flush=True)

    def check_same(self, what: str, found: str) -> None:
        """Raises DataError, in all peers of a multi-worker job, if one of them has found something else.

        Args:
          what: the flag: "--dataset".
          found: what this process has found, in words. All peers must call it together; elsewhere nothing happens.
        """
        from tf2dist.runtime import peer_arguments

        if different := peer_arguments.difference(self.strategy, {what: found}):
            raise DataError(f"{what} is not the same for all processes: {different[1]}; give all of them the same")


def run(
    train: Callable[[Run, Any], dict],
    prepare: Callable[[SharedFlags], Any] = lambda shared: None,
    *,
    has_strategy: bool = True,
    cluster: Callable[[], Cluster | None] = lambda: None,
    positional: Sequence[str] = (),
) -> None:
    """Runs a trainer and exits the process; `exit_status` says how a failure ends.

    Args:
      train: called with what `prepare` returned, in the processes that run a training loop; returns the trainer's
        part of the report.
      prepare: checks the trainer's own flags and finds its data, before TensorFlow is imported and any process is
        started. Its result must be JSON: the launcher of a local cluster calls it once and passes the result on.
      has_strategy: False for a program that places operations itself: it runs in the first task of a cluster, and
        the others serve it (`tf2dist.connect`).
      cluster: returns the cluster that the trainer's own flags describe, or None.
      positional: flags that may be given as positional arguments, in this order.
    """
    linux.open_closed_streams()
    logging_setup.log_to_stderr()
    logging_setup.quiet_tensorflow()
    os.environ.setdefault(environment_variables.PREEMPTIBLE, "1")
    program = os.path.basename(sys.argv[0].removesuffix("/__main__.py")).removesuffix(".py")
    try:
        status = _run(train, prepare, has_strategy, cluster, positional)
        sys.stdout.flush()
    except BaseException as error:
        failed = exit_status.report_failure(program, error)
        if failed is None:
            raise
        status = failed
    sys.exit(status)


def _run(train, prepare, has_strategy, cluster, positional) -> int:
    """Returns the exit status."""
    if any(a in ("--help", "-help", "-h", "--helpfull") for a in sys.argv[1:]):
        print(f"{sys.modules['__main__'].__doc__ or ''}\n{flags.FLAGS.get_help()}")
        return 0
    _parse_flags(positional)
    shared = read(has_strategy=has_strategy, cluster=cluster())
    if shared.leads:
        flag_requirements.check_shared_outputs(shared)
    if shared.needs_local_cluster:
        return _run_local_cluster(shared, prepare(shared))
    prepared = None
    if shared.role is not Role.SERVER:
        text = os.environ.get(environment_variables.PREPARED)
        prepared = json.loads(text) if text else prepare(shared)
    began = float(os.environ.get(environment_variables.LAUNCHED_AT) or linux.began())
    outcome = _run_task(train, has_strategy, shared, prepared, began)
    if outcome is not None and shared.report:
        report.write(shared.report, outcome)
    return 0


def _parse_flags(positional: Sequence[str]) -> None:
    """Parses the command line; positional arguments become values of the flags that they stand for."""
    if positional and (negative := [a for a in sys.argv[1:] if a.startswith("-") and a[1:].isdecimal()]):
        raise UsageError(f"{negative[0]} is no {' or '.join(positional)}; numbers are from 1 on, see --help")
    try:
        arguments = flags.FLAGS(sys.argv)[1:]
    except flags.UnrecognizedFlagError as error:
        raise UsageError(f"{str(error).rstrip('. ')}; see --help") from None
    for name, value in zip(positional, arguments, strict=False):
        if flags.FLAGS[name].present:
            raise UsageError(f"{value!r} and --{name}={flags.FLAGS[name].value} both say which {name}; give one")
        flags.FLAGS[name].parse(value)
    for extra in arguments[len(positional) :]:
        raise UsageError(f"unexpected argument {extra!r}; flags are written --name=value, see --help")


def _run_task(train, has_strategy: bool, shared: SharedFlags, prepared, began: float) -> dict | None:
    """Joins the job as this process's task and trains; returns the whole report, in the process that leads."""
    log = placement_log.begin(leads=shared.role is not Role.SERVER) if shared.log_device_placement else None
    strategy = _join(has_strategy, shared)
    import keras
    import tensorflow as tf

    gc.freeze()  # or the end of the process looks through all that these imports have made: a second
    tf.config.set_soft_device_placement(shared.soft_placement)

    keras.utils.set_random_seed(shared.seed)
    if shared.mixed_precision:
        # bfloat16 has float32's range, so no loss has to be scaled; CPUs and GPUs since Ampere compute in it.
        keras.config.set_dtype_policy("mixed_bfloat16")
    if shared.logdir and shared.leads:
        os.makedirs(shared.logdir, exist_ok=True)
    run = Run(strategy, shared, began, report=report.what_ran(shared, strategy))
    outcome = train(run, prepared)
    if log is not None and shared.leads:
        remote = shared.strategy == "ps" or not has_strategy  # other processes run graphs for this one
        run.say(log.table(shared.cluster.tasks if shared.cluster and remote else ()))
    return run.report | outcome if shared.leads else None


def _join(has_strategy: bool, shared: SharedFlags):
    """Returns the strategy; None without one. Processes that serve exit in here when the job is done."""
    import tf2dist

    options = {"cluster": shared.cluster, "replicas": shared.replicas, "start_timeout": shared.start_timeout}
    try:
        return tf2dist.join(shared.strategy, **options) if has_strategy else tf2dist.connect(**options)
    except ClusterError:
        raise
    except ValueError as error:  # more replicas than GPUs, for example
        raise UsageError(str(error)) from None


def _run_local_cluster(shared: SharedFlags, prepared) -> int:
    """Runs this same command in every process of a local cluster; returns its exit status."""
    from tf2dist.launch import cluster_layout
    from tf2dist.launch.backends import local

    if needs_network := _needs_network():
        print(
            "launch: no private network here (a flag is a URL): other machines can reach the job's ports",
            file=sys.stderr,
        )
    spec = sys.modules["__main__"].__spec__
    program = [spec.name if spec else os.path.abspath(sys.argv[0]), *sys.argv[1:]]
    ps = shared.ps if shared.strategy == "ps" else 0
    return local.run(
        program,
        ps=ps,
        workers=shared.workers,
        env={environment_variables.PREPARED: json.dumps(prepared)},
        quiet_prefix_for=str(cluster_layout.place_tasks(ps, shared.workers).leader),
        isolate=not needs_network,  # keeps others from its ports
    )


def _needs_network() -> bool:
    """Returns whether a flag, or where tensorflow-datasets keeps its data, is a URL of a store elsewhere."""
    values = [*flags.FLAGS.flag_values_dict().values(), os.environ.get("TFDS_DATA_DIR")]
    return any(isinstance(value, str) and files.needs_network(value) for value in values)
