"""Scale: asynchronous training on more and more workers whose batches take a while each and no processor.

The machine is shared by all of them, so what is measured is what the servers and the coordinator cost, and what is left
of a job while one of its workers is lost. An update adds 1 to a weight on the server, which counts what was applied.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import statistics
import tempfile

from benchmarks import programs
from tf2dist.errors import UsageError
from tf2dist.launch.backends import local

_DEADLINE = 420.0  # seconds for one measurement
_EVENTS = {"kill": "killed", "stop": "stopped", "none": "lost"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `scale` alone has."""
    group = parser.add_argument_group("scale")
    group.add_argument(
        "--workers", default="1,2,4,8,16", help="how many, one job after the other (default: 1,2,...,16)"
    )
    group.add_argument("--servers", type=int, default=1, help="parameter servers (default: 1)")
    group.add_argument("--batch_ms", type=float, default=100.0, help="that a batch takes (default: 100)")
    group.add_argument("--megabytes", type=float, default=0.0, help="of weights; 0: a few bytes (default: 0)")
    group.add_argument("--gbit", type=float, help="a second of each task's link (default: they share the loopback)")
    group.add_argument("--latency_us", type=float, default=0.0, help="of a message through links (default: 0)")
    group.add_argument("--seconds", type=float, default=10.0, help="of each count, before and after (default: 10)")
    group.add_argument(
        "--kill", action=argparse.BooleanOptionalAction, default=True, help="kill one worker with SIGKILL"
    )
    group.add_argument("--stopped", action="store_true", help="hold one worker by SIGSTOP instead")


def run(rounds: int, options: argparse.Namespace) -> dict:
    """Prints a table, a line for each number of workers; returns the figures.

    Raises:
      UsageError: an option is out of its range.
    """
    counts = numbers(options.workers, "workers")
    if not 0 < options.batch_ms < math.inf:
        raise UsageError(f"--batch_ms={options.batch_ms:g} must be positive")
    if not 0 <= options.megabytes < math.inf:
        raise UsageError(f"--megabytes={options.megabytes:g} must be a number that is not negative")
    if options.servers < 1:
        raise UsageError(f"--servers={options.servers} must be at least 1")
    if options.seconds <= 0:
        raise UsageError(f"--seconds={options.seconds:g} must be positive")
    if options.gbit is not None and not 0 < options.gbit < math.inf:
        raise UsageError(f"--gbit={options.gbit:g} must be positive")
    if not 0 <= options.latency_us < math.inf:
        raise UsageError(f"--latency_us={options.latency_us:g} must be a number that is not negative")
    if options.latency_us and options.gbit is None:
        raise UsageError(f"--latency_us={options.latency_us:g} is for links, which --gbit=N makes")
    event = "stop" if options.stopped else "kill" if options.kill else "none"
    size = f", {options.megabytes:g} MB of weights" if options.megabytes else ""
    size += f", links of {options.gbit:g} Gbit/s" if options.gbit else ""
    print(
        f"{options.servers} ps, a chief and N workers on {os.cpu_count()} cores; {options.batch_ms:g} ms a batch{size} "
        f"(median of {rounds})"
    )
    print(f"workers  batches/s  of one worker  coordinator's cores  applied/asked  others when one is {_EVENTS[event]}")
    figures, points = {}, []
    for workers in counts:
        found = [_measure(workers, options, event) for _ in range(rounds)]
        figures[workers] = found
        rate, cores = (statistics.median(f[name] for f in found) for name in ("rate", "cores"))
        first = statistics.median(f["rate"] for f in figures[counts[0]]) / counts[0]
        applied = " ".join(f"{f['applied']:.0f}/{f['asked']}" for f in found)
        others = [f["others"] for f in found if f["others"] is not None]
        kept = f"{statistics.median(others):.2f} of before" if others else "-"
        print(f"{workers:7}  {rate:9.1f}  {rate / first:13.2f}  {cores:19.2f}  {applied:>13}  {kept}", flush=True)
        setting = {
            "workers": workers, "servers": options.servers, "batch_seconds": options.batch_ms / 1e3,
            "megabytes": options.megabytes, "cores": os.cpu_count(),
        }  # fmt: skip
        if options.gbit:
            setting |= {"bandwidth": options.gbit * 1e9 / 8, "latency": options.latency_us / 1e6}
        points.append({"setting": setting, "rate": rate, "cores": cores, "fitted": True})
    return {"servers": options.servers, "event": event, "by_workers": figures, "points": points}


def numbers(text: str, name: str) -> list[int]:
    """The numbers of an option like "1,2,4".

    Raises:
      UsageError: they are no whole numbers from 1 on.
    """
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise UsageError(f"--{name}={text} must be numbers from 1 on with commas between, as 1,2,4")
    return found


def link(gbit: float | None, latency_us: float) -> str | None:
    """The queueing discipline of each link, for `launch local --link`; a message goes through two of them."""
    if gbit is None:
        return None
    if latency_us:
        return f"netem delay {latency_us / 2:g}us rate {1e3 * gbit:g}mbit limit 100000"
    return f"tbf rate {1e3 * gbit:g}mbit burst 256k latency 500ms"


def _measure(workers: int, options: argparse.Namespace, event: str) -> dict:
    """Runs a job; returns its `summary`.

    Raises:
      SystemExit: it failed or took too long, or the counts are not exact.
    """
    with tempfile.TemporaryDirectory() as directory:
        of_batch = (str(options.batch_ms / 1e3), str(options.megabytes))
        status = local.run(
            [f"{programs.__name__}.scale_tf2dist", directory, str(options.seconds), event, *of_batch],
            ps=options.servers,
            workers=workers,
            timeout=_DEADLINE,
            link=link(options.gbit, options.latency_us),
        )
        if status:
            raise SystemExit(status)
        found = json.loads((pathlib.Path(directory) / "coordinator.json").read_text())
    return summary(found)


def summary(found: dict) -> dict:
    """The figures of one job, from what its coordinator has written.

    Returns:
      rate, cores: batches a second, and the cores that the coordinator used, before a worker is lost.
      others, lost: after it, the others' rate as a part of theirs before, and the lost one's; None if there is none.
      asked, applied: updates.

    Raises:
      SystemExit: not exactly the updates were made that were asked for.
    """
    if not found["asked"] == found["counted"] == found["applied"]:
        raise SystemExit(
            f"asked for {found['asked']} updates, counted {found['counted']}, applied {found['applied']:.0f}"
        )
    before, after = found["before"], found.get("after")
    others = sum(before["rates"][:-1])  # the last is lost
    kept = sum(after["rates"][:-1]) / others if after and others else None
    return {
        "rate": sum(before["rates"]),
        "cores": before["cores"],
        "asked": found["asked"],
        "applied": found["applied"],
        "others": kept,
        "lost": after["rates"][-1] if after else None,
    }
