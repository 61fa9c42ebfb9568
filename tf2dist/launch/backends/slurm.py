"""Submits a job to Slurm, or prints its batch script; each task finds its place from what srun tells it."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence

from tf2dist.cluster.loss_policy import WORKER_RESTARTS
from tf2dist.cluster.spec import Task
from tf2dist.errors import START_AGAIN, UsageError
from tf2dist.launch import cluster_layout
from tf2dist.launch.backend import Backend
from tf2dist.launch.cluster_layout import LOCALHOST, Layout
from tf2dist.launch.restart_budget import WRONG_COMMAND
from tf2dist.launch.user_program import python_arguments
from tf2dist.system import environment_variables

_WAIT = 60  # seconds that tasks may run on when the first has ended
_COUNTS = ("nodes", "cpus_per_task", "gpus_per_task")
# What each task runs where some are started again in their places, with its command as arguments. Slurm signals all
# processes of a task, and this one waits until the program has saved. A worker that is done with must not end before
# the others: `srun --wait` would kill them some time after it, and --kill-on-bad-exit at once. Without --wait it can,
# with status 0.
_TASK = """
trap "asked=1" TERM
exec 3>&2 2> /dev/null  # this shell would say what has killed a program
needed=
case " {workers} " in
  *" $SLURM_PROCID "*) left={restarts} ;;
  *)
    "$@" 2>&3 3>&-
    status=$?
    [ "$SLURM_PROCID" != 0 ] || echo $status > "$TF2DIST_PREEMPTED_FILE.status"
    exit $status ;;
esac
case " {needed} " in
  *" $SLURM_PROCID "*) needed=yes ;;
esac
{names}
while true; do
  "$@" 2>&3 3>&-
  status=$?
  case $status in
    0 | {again}) exit $status ;;
    {wrong}) [ $left -lt {restarts} ] || exit $status ;;
  esac
  [ -z "$asked" ] || break
  if [ $left -eq 0 ]; then
    [ -z "$needed" ] || exit $status
    echo "launch: $task ended with status $status; it is not started again" >&3
    break
  fi
  left=$((left - 1))
  echo "launch: $task ended with status $status; it is started again ($left more to go)" >&3
  sleep 1
done
trap "" TERM
{end}
"""
# Slurm counts how often a job was started. `srun` may have killed tasks that were about to end, so its status says less
# than the file. A job that somebody has cancelled saves as well, and must not come back.
_END = """
status=$?
if [ -e "$TF2DIST_PREEMPTED_FILE.status" ]; then status=$(cat "$TF2DIST_PREEMPTED_FILE.status"); fi
if [ -e "$TF2DIST_PREEMPTED_FILE" ]; then
  status=75
  case $(scontrol show job --oneliner "$SLURM_JOB_ID") in
    *" JobState=RUNNING "*)
      if [ "${{SLURM_RESTART_COUNT:-0}}" -lt {requeues} ]; then
        echo "launch: the job was preempted and has saved; it is queued again" >&2
        scontrol requeue "$SLURM_JOB_ID" && sleep 60  # which ends this script
      fi ;;
  esac
fi
exit $status
"""


class SlurmBackend:
    """`python -m launch slurm`."""

    summary = "Submits a job to Slurm, or prints its batch script; each task finds its place from what srun tells it."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options of `python -m launch slurm`."""
        cluster_layout.add_arguments(parser)
        group = parser.add_argument_group("Slurm")
        group.add_argument("--nodes", type=int, metavar="N", help="to spread the tasks over (default: Slurm chooses)")
        group.add_argument("--cpus_per_task", type=int, metavar="N")
        group.add_argument("--gpus_per_task", type=int, metavar="N")
        group.add_argument("--partition", metavar="NAME")
        group.add_argument("--account", metavar="NAME")
        group.add_argument("--time", metavar="LIMIT", help="as 2:00:00")
        group.add_argument("--output", metavar="FILE", help="what the tasks print (default: slurm-JOB.out)")
        group.add_argument("--wait", action="store_true", help="until the job has ended, and end with its status")
        group.add_argument(
            "--grace",
            type=int,
            default=120,
            metavar="S",
            help="seconds before the end of --time at which the job is asked to save, and is then queued again; at "
            "most a quarter of it; 0 for never, as for a program that saves nothing (default: 120)",
        )
        group.add_argument(
            "--max_requeues",
            type=int,
            default=100,
            metavar="N",
            help="after preemptions (default: 100); with 0 not after the loss of a node either",
        )
        group.add_argument(
            "--max_restarts",
            type=int,
            default=WORKER_RESTARTS,
            metavar="N",
            help="how often each worker under parameter servers, server and data worker is started again in its place "
            f"when it has failed (default: {WORKER_RESTARTS})",
        )
        group.add_argument("--python", default=sys.executable, metavar="PATH", help="of every node (default: this one)")
        group.add_argument("--sbatch", action="append", default=[], metavar="OPTION", help="any other option of sbatch")

    def start(self, options: argparse.Namespace, program: Sequence[str]) -> int:
        """Submits the job that the command line asks for; returns the exit status of sbatch, 0 when it was printed.

        Raises:
          UsageError: the options are wrong, or there is no Slurm.
        """
        text = script(options, program)
        if options.dry_run:
            print(text, end="")
            return 0
        if not shutil.which("sbatch"):
            raise UsageError("there is no sbatch on this machine; --dry_run prints the script, for one that has Slurm")
        command = ["sbatch", *(["--wait"] if options.wait else [])]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, errors="surrogateescape") as sbatch:
            assert sbatch.stdin is not None
            assert sbatch.stdout is not None
            with contextlib.suppress(BrokenPipeError):  # it did not want it, and says why
                sbatch.stdin.write(text)
                sbatch.stdin.close()
            job, there = "", list[str]()
            try:
                said = sbatch.stdout.readline()
                print(said, end="", flush=True)
                if submitted := re.search(r"\bjob (\d+)(?: on cluster (\S+))?", said):
                    job = submitted[1]
                    there = ["-M", submitted[2]] if submitted[2] else []
                status = sbatch.wait()
            except KeyboardInterrupt:
                end = shlex.join(["scancel", *there, job])
                unknown = "sbatch has not said whether it has made a job; `squeue --me` lists yours"
                print(f"launch: job {job} goes on; `{end}` ends it" if job else f"launch: {unknown}", file=sys.stderr)
                return 130
        return _report_end(job, there, status) if options.wait and job else status


BACKEND: Backend = SlurmBackend()


def _report_end(job: str, there: Sequence[str], status: int) -> int:
    """Says how a job of Slurm has failed, if it has; sbatch may end with 0 when a node was lost.

    Args:
      job: its number.
      there: the options by which Slurm's commands find it.
      status: what sbatch has ended with.
    """
    show = ["scontrol", *there, "show", "job", "--oneliner", job]
    told = ""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        told = subprocess.run(show, capture_output=True, errors="surrogateescape", check=False, timeout=30).stdout
    found = dict(word.split("=", 1) for word in told.split() if "=" in word)
    state, reason = found.get("JobState", "an error"), found.get("Reason", "None")
    # A job completes for as long as a node of it is gone; was that why it ended?
    if status == 0 and (state in ("COMPLETED", "an error") or (state == "COMPLETING" and reason == "None")):
        return 0
    state += f" ({reason})" * (reason != "None")
    where = f"; what it has printed is in {found['StdOut']}" if "StdOut" in found else ""
    print(f"launch: job {job} ended with {state}{where}", file=sys.stderr)
    return status or 1


def script(options: argparse.Namespace, program: Sequence[str]) -> str:
    """The batch script.

    Raises:
      UsageError: the options are wrong.
    """
    layout = cluster_layout.from_options(options)
    layout.check_fixed("launch slurm")
    if options.cluster is not None:
        raise UsageError(f"--cluster={options.cluster} says hosts, which Slurm chooses; use --ps and --workers")
    for name in _COUNTS:
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise UsageError(f"--{name}={getattr(options, name)} must be 1 or more")
    for name in ("grace", "max_requeues", "max_restarts"):
        if getattr(options, name) < 0:
            raise UsageError(f"--{name}={getattr(options, name)} must be 0 or more")
    argv = shlex.join([options.python, *python_arguments(program)])
    # Tasks end together, and one whose node is gone is not waited for; an evaluator has a checkpoint to go.
    wait = "" if layout.count("evaluator") else f" --wait={_WAIT}"
    task = _task(layout, options.max_restarts, "exec sleep infinity" if wait else "exit 0")
    lines = [
        f"--job-name={shlex.quote(os.path.basename(program[0]).removesuffix('.py'))}",
        f"--ntasks={len(layout.placed)}",
    ]
    hosts = [host for host in layout.hosts if host != LOCALHOST]
    nodes = options.nodes or len(hosts)
    lines += [f"--nodes={nodes}"] if nodes else []
    lines += [f"--nodelist={','.join(hosts)}"] if hosts else []
    lines += [
        f"--{name.replace('_', '-')}={shlex.quote(str(getattr(options, name)))}"
        for name in ("cpus_per_task", "gpus_per_task", "partition", "account", "time", "output")
        if getattr(options, name) is not None
    ]
    # The output of a job that was queued again follows that before. The signal is for the tasks, not for this script.
    lines += ["--requeue", "--open-mode=append"] if options.max_requeues else ["--no-requeue"]
    grace = _grace(options)
    lines += [f"--signal=TERM@{grace}"] if grace else []
    lines += options.sbatch
    if broken := [line for line in lines if "\n" in line]:
        raise UsageError(f"{broken[0]!r} has more than one line")
    env = {environment_variables.SLURM_TASKS: _tasks(layout), **cluster_layout.task_environment(options)}
    env |= {environment_variables.SLURM_PORT: str(options.port)} if options.port is not None else {}
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {line}" for line in lines),
            f"cd {shlex.quote(os.getcwd())} || exit 1",
            "unset TF_CONFIG CLUSTER_SPEC  # of where this was submitted",
            *(f"export {name}={shlex.quote(value)}" for name, value in env.items()),
            "export PYTHONUNBUFFERED=1",
            f'export {environment_variables.PREEMPTIBLE}="${{{environment_variables.PREEMPTIBLE}:-1}}"',
            "marks=$(mktemp -d) || exit 1",
            """trap 'rm -rf "$marks"' EXIT""",
            "# The first task, on this node, makes this file when the job was asked to stop and has saved.",
            f'export {environment_variables.PREEMPTED_FILE}="$marks/preempted"',
            "# What srun itself no longer takes from sbatch, since Slurm 22.05.",
            'if [ -n "$SLURM_CPUS_PER_TASK" ]; then export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK; fi',
            "# One task that fails ends the others; nobody waits for it. Tasks have these variables even if sbatch had",
            "# --export=NONE.",
            *([f"task={shlex.quote(task)}"] if task else []),
            f"srun --export=ALL --kill-on-bad-exit=1{wait} --distribution=block --label "
            + ('bash -c "$task" task ' if task else "")
            + argv,
        ]
    ) + _END.format(requeues=options.max_requeues)


def _task(layout: Layout, restarts: int, end: str) -> str:
    """What a task runs where workers are started again in their place; empty where the loss of each task ends all.

    Args:
      restarts: how often, each of them.
      end: what a worker does that is done with.
    """
    tasks = [Task(job, index) for job, count in _counts(layout).items() for index in range(count)]
    numbers = [str(number) for number, task in enumerate(tasks) if layout.coordinator_of(task)]
    if not numbers:
        return ""
    needed = [str(number) for number, task in enumerate(tasks) if layout.coordinator_needs(task)]
    first = {job: tasks.index(Task(job, 0)) for job, count in _counts(layout).items() if count}
    names = [
        f'[ "$SLURM_PROCID" -lt {number} ] || task="{job} $((SLURM_PROCID - {number}))"'
        for job, number in first.items()
    ]
    return _TASK.format(
        workers=" ".join(numbers), needed=" ".join(needed), names="\n".join(names), restarts=restarts, end=end,
        wrong=WRONG_COMMAND, again=START_AGAIN,
    )  # fmt: skip


def _grace(options: argparse.Namespace) -> int:
    """Seconds before the end of --time at which Slurm asks the tasks to save; 0 for never.

    At most a quarter of a short time: Slurm would ask when the job begins, and then there is nothing to save.
    """
    if options.time is None:
        return 0
    found = re.fullmatch(r"(?:(\d{1,9})-)?(\d{1,9})(?::(\d{1,9}))?(?::(\d{1,9}))?", options.time)
    if found is None:
        return options.grace  # as `infinite`, or something that sbatch refuses
    days, *given = found.groups()
    numbers = [int(number) for number in given if number is not None]
    if days is None and len(numbers) < 3:  # minutes, or minutes:seconds
        numbers.insert(0, 0)
    hours, minutes, seconds = [*numbers, 0, 0][:3]
    return min(options.grace, (((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds) // 4)


def _tasks(layout: Layout) -> str:
    """The tasks in the order of their numbers, as `tf2dist.cluster.environments.slurm` reads them."""
    return ",".join(f"{job}:{count}" for job, count in _counts(layout).items())


def _counts(layout: Layout) -> dict[str, int]:
    return {job: layout.count(job) for job in dict.fromkeys(task.job for task in layout.tasks)}
