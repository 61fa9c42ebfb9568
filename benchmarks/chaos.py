"""Chaos: trainings whose tasks are killed, stopped, asked to stop and cut off at random moments, beside one in peace.

And those whose launcher is killed, after which the same command is given again; and whose disk is full for a while.
A training has come through if it ends with status 0, has made exactly its updates, and has the weights of the one that
nothing has disturbed, bit for bit. Under asynchronous servers no two trainings have the same weights: there each update
adds 1 to the only weight, which must be the number of updates. Under synchronous ones a killed worker's part of the
data is not read until it is back, so that the weights are others, and the updates are counted alone.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import random
import statistics
import zlib
from dataclasses import dataclass, field

import numpy as np

from benchmarks.chaos_jobs import FAULTS, JOBS, STEPS, fill_disk, kill_launcher, train
from benchmarks.programs.chaos_tf2dist import STEPS_PER_EPOCH
from tf2dist.errors import UsageError
from tf2dist.system.output_files import write_text

_KINDS = {"kill": "", "term": "", "stop": "+1s", "cut": "+1s"}
_OF_JOBS = {"launcher": "kill", "disk": "full"}  # what is done to the job as a whole, and how the table calls it


@dataclass
class Outcome:
    """What came of the jobs of one strategy, task and kind of fault.

    Attributes:
      tried, right: faults that were met, and those in jobs that came through all of theirs.
      recovery: seconds after each fault until there was a step more.
      lost: steps made again after each fault.
      goodput: of each job that came through.
      wrong: what was wrong with those that did not come through.
    """

    tried: int = 0
    right: int = 0
    recovery: list[float] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    goodput: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `chaos` alone has."""
    group = parser.add_argument_group("chaos")
    group.add_argument("--moments", type=int, default=20, help="faults of each kind for each task (default: 20)")
    group.add_argument("--strategies", default=",".join(JOBS), help=f"default: {','.join(JOBS)}")
    kinds = ",".join([*_KINDS, *_OF_JOBS])
    group.add_argument("--kinds", default=kinds, help=f"default: {kinds}")
    group.add_argument("--seed", type=int, default=0, help="of the moments (default: 0)")
    group.add_argument("--jobs", type=int, default=1, help="at a time (default: 1)")


def run(rounds: int, options: argparse.Namespace) -> dict:
    """Prints a table, a line for each strategy, task and kind of fault; returns the figures.

    Args:
      rounds: not used; `--moments` says how many.

    Raises:
      UsageError: an option is out of its range.
      SystemExit: a training that nothing disturbs has failed; or, in the end, one that something has.
    """
    if options.moments < 1:
        raise UsageError(f"--moments={options.moments} must be at least 1")
    if options.jobs < 1:
        raise UsageError(f"--jobs={options.jobs} must be at least 1")
    strategies, kinds = _chosen(options, "strategies", [*JOBS]), _chosen(options, "kinds", [*_KINDS, *_OF_JOBS])
    print(f"{STEPS} updates a training; {options.moments} faults of each kind, up to {FAULTS} in one training")
    print(
        "strategy     task      kind  right/met  recovery: median, worst  steps lost: mean, most  goodput", flush=True
    )
    figures: dict[str, dict] = {}
    quiet_seconds, quiet_results = dict[str, float](), dict[str, dict]()
    for strategy in strategies:
        quiets = [train(strategy, "none", 0) for _ in range(2)]  # files are in the system's cache the second time
        quiet, quiet_result = min(quiets, key=lambda found: found[0]["seconds"])
        if quiet_result is None or quiet["status"] or quiet["steps"] != STEPS:
            raise SystemExit(f"{strategy}: a training that nothing disturbs has failed: {quiet}")
        quiet_seconds[strategy], quiet_results[strategy] = quiet["seconds"], quiet_result
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        try:
            cases = {
                (strategy, task, kind): pool.submit(
                    _break, strategy, task, kind, options, quiet_seconds[strategy], quiet_results[strategy]
                )
                for strategy in strategies
                for task, kind in _cases(strategy, kinds)
            }
            for case, broken in cases.items():
                outcome = broken.result()
                figures[" ".join(case)] = vars(outcome)
                print(_line(*case, outcome), flush=True)
        finally:
            pool.shutdown(cancel_futures=True)
    if wrong := [f"{name}: {why}" for name, found in figures.items() for why in found["wrong"]]:
        if options.report:
            write_text(options.report, json.dumps(figures, indent=2))
        raise SystemExit("\n".join(wrong))
    return figures


def _cases(strategy: str, kinds: list[str]) -> list[tuple[str, str]]:
    """The tasks of a strategy, and the job as a whole, each with what is done to it."""
    cases = [(task, kind) for task in JOBS[strategy][1] for kind in kinds if kind in _KINDS]
    if strategy in ("one", "mirrored"):
        cases = [(task, kind) for task, kind in cases if kind != "cut"]  # their only task talks to nobody
    return cases + [(what, kind) for what, kind in _OF_JOBS.items() if what in kinds]


def _chosen(options: argparse.Namespace, name: str, known: list[str]) -> list[str]:
    chosen = getattr(options, name).split(",")
    if unknown := [choice for choice in chosen if choice not in known]:
        raise UsageError(f"--{name}: {unknown[0]!r} is none of {', '.join(known)}")
    return chosen


def _break(strategy: str, task: str, kind: str, options: argparse.Namespace, seconds: float, expected: dict) -> Outcome:
    """Runs jobs until so many faults were met.

    Args:
      seconds: that a job takes in peace.
      expected: what it comes to.
    """
    outcome, job = Outcome(), 0
    while (count := min(FAULTS, options.moments - outcome.tried)) > 0:
        part = (STEPS - STEPS_PER_EPOCH) // count  # the last steps are for what is left to be right
        seed = zlib.crc32(f"{options.seed} {strategy} {task} {kind} {job}".encode())
        if task in _OF_JOBS:
            draw = random.Random(seed)
            steps = [draw.randint(1 + n * part, (n + 1) * part) for n in range(count)]
            faults = f"{kind} {task} at steps {', '.join(map(str, steps))}"
            found, result = (kill_launcher if task == "launcher" else fill_disk)(strategy, steps)
        else:
            moments = [f"step{1 + n * part}..{(n + 1) * part}" for n in range(count)]
            faults = ",".join(f"{kind}:{task}@{moment}{_KINDS[kind]}" for moment in moments)
            found, result = train(strategy, faults, seed)
        met = len(found["faults"])  # one whose turn came too late is for the next job
        outcome.tried += met
        compared = expected if _has_same_weights(strategy, task, kind) else {}
        if why := _wrong(strategy, found, result, compared):
            outcome.wrong.append(f"{faults}, seed {seed}: {why}")
            outcome.tried += 0 if met else count  # or there would be no end
        else:
            outcome.right += met
            outcome.goodput.append(seconds / found["seconds"])
        outcome.recovery += [f["recovery_seconds"] for f in found["faults"] if f["recovery_seconds"] is not None]
        outcome.lost += [f["lost_steps"] for f in found["faults"]]
        job += 1
    return outcome


def _has_same_weights(strategy: str, task: str, kind: str) -> bool:
    return strategy != "ps" and (strategy, task, kind) != ("ps-sync", "worker", "kill")


def _wrong(strategy: str, found: dict, result: dict | None, expected: dict) -> str:
    """What is wrong with a training; empty if nothing is.

    Args:
      strategy: one of `JOBS`.
      found: what its launcher says.
      result: what its program has written.
      expected: the same of a training that nothing has disturbed, as far as it must be equal.
    """
    if found["status"]:
        return f"it ended with status {found['status']}"
    if result is None:
        return "it has written no result"
    if not found["faults"]:
        return "it met no fault"
    if not int(result["updates"]) == found["steps"] == STEPS:
        return f"it made {result['updates']} updates, and said {found['steps']}, of {STEPS}"
    if strategy == "ps":
        applied = float(result["weight 0"].item())
        return "" if applied == STEPS else f"{applied:g} updates were applied, of {STEPS}"
    differing = [name for name, value in expected.items() if not np.array_equal(value, result[name])]
    return f"other numbers: {', '.join(differing)}" if differing else ""


def _line(strategy: str, task: str, kind: str, outcome: Outcome) -> str:
    recovery, lost = outcome.recovery or [float("nan")], outcome.lost or [0]
    times = f"{statistics.median(recovery):.1f} s, {max(recovery):.1f} s"
    steps = f"{statistics.mean(lost):.1f}, {max(lost)}"
    met = f"{outcome.right}/{outcome.tried}"
    goodput = statistics.mean(outcome.goodput or [float("nan")])
    return f"{strategy:11}  {task:8}  {kind:4}  {met:>9}  {times:>23}  {steps:>22}  {goodput:7.2f}"
