"""Simulation: how fast asynchronous training on parameter servers would be with machines that are not here.

A discrete-event simulation of a coordinator, workers, servers and the links between them. What an execution, a step, an
update and a byte cost is fitted to what `python -m benchmarks scale` has measured here (`scale_points.json`); some of
its points are left out of the fit, and the simulation is compared with them. What a step computes, how long its input
takes, how large the model is, and how fast machines and links are is what is asked about.

A worker makes one batch ahead. A step fetches the weights from all servers at once, computes, and sends as many bytes
of gradients back; the next one begins when the servers have applied them. The coordinator keeps two executions a worker
under way, whose steps the same tuner chooses as in training. Links carry one message at a time in each direction, in
pieces that pass through the server's link and then through the worker's.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from benchmarks.scale import numbers
from tf2dist.errors import UsageError
from tf2dist.execution.steps_per_execution import StepsPerExecutionTuner
from tf2dist.system.output_files import check_writable

POINTS = pathlib.Path(__file__).with_name("scale_points.json")
_PIECES = 8  # of a message, between few servers
_ENDLESS = 1 << 62  # steps that are left


@dataclass(frozen=True)
class Costs:
    """Seconds of one core.

    Attributes:
      execution: of the coordinator, for an execution.
      step: of a worker, for a step, beside what it computes.
      update: of each server, for an update.
      byte: of a server, for each byte that it sends or receives, and of a worker.
    """

    execution: float
    step: float
    update: float
    byte: float


COSTS = Costs(execution=6.0e-3, step=1.35e-3, update=3.3e-4, byte=7.8e-10)  # by `--fit`


@dataclass(frozen=True)
class Setting:
    """A training, and the machines for it.

    Attributes:
      workers, servers: how many.
      batch_seconds: that a batch takes its worker, without a processor.
      compute_seconds: that a step computes, on a device that the worker has for itself.
      megabytes: of weights, which each step reads and changes.
      bandwidth: of each machine's link, in bytes a second in each direction.
      latency: of a message, in seconds.
      cores: of each machine.
      together: whether all tasks share the cores of one machine; each has a link of its own all the same.
    """

    workers: int
    servers: int = 1
    batch_seconds: float = 0.0
    compute_seconds: float = 0.0
    megabytes: float = 0.0
    bandwidth: float = math.inf
    latency: float = 0.0
    cores: int = 2
    together: bool = False


@dataclass(frozen=True)
class Found:
    """What a training comes to: batches a second, and the cores that the coordinator and a server use."""

    rate: float
    coordinator: float
    server: float


class _Machine:
    """Cores, which it may share with others, and a link in each direction."""

    def __init__(self, env: simpy.Environment, cores: simpy.Resource):
        self.cores = cores
        self.sends, self.receives = simpy.Resource(env, 1), simpy.Resource(env, 1)


class _Task:
    """A process on a machine; `used` is its processor time in seconds."""

    def __init__(self, env: simpy.Environment, machine: _Machine):
        self._env, self.machine, self.used = env, machine, 0.0

    def compute(self, seconds: float) -> Generator[Any, Any, None]:
        """Uses a core for so long, when one is free."""
        if seconds <= 0:
            return
        with self.machine.cores.request() as core:
            yield core
            yield self._env.timeout(seconds)
        self.used += seconds


class _Training:
    """One training, from its beginning."""

    def __init__(self, setting: Setting, costs: Costs):
        self.env = env = simpy.Environment()
        self._setting, self._costs = setting, costs
        shared = simpy.Resource(env, setting.cores) if setting.together else None

        def task() -> _Task:
            return _Task(env, _Machine(env, shared or simpy.Resource(env, setting.cores)))

        self.coordinator, self.servers = task(), [task() for _ in range(setting.servers)]
        self.steps = 0
        self._executions, self._results = simpy.Store(env), simpy.Store(env)
        env.process(self._coordinate())
        for _ in range(setting.workers):
            worker, batches = task(), simpy.Store(env, 1)
            env.process(self._read(batches))
            env.process(self._work(worker, batches))

    def _coordinate(self) -> Generator[Any, Any, None]:
        tuner, in_flight, most = StepsPerExecutionTuner(), 0, 2 * self._setting.workers
        while True:
            while in_flight < most:
                yield from self.coordinator.compute(self._costs.execution / 2)
                self._executions.put((tuner.next(_ENDLESS, most), tuner.limit))
                in_flight += 1
            steps, seconds = yield self._results.get()
            yield from self.coordinator.compute(self._costs.execution / 2)
            tuner.observe(steps, seconds)
            in_flight -= 1

    def _read(self, batches: simpy.Store) -> Generator[Any, Any, None]:
        while True:
            yield self.env.timeout(self._setting.batch_seconds)
            yield batches.put(None)

    def _work(self, worker: _Task, batches: simpy.Store) -> Generator[Any, Any, None]:
        while True:
            steps, limit = yield self._executions.get()
            began, made = self.env.now, 0
            while made < steps and (not made or self.env.now < began + limit):
                yield batches.get()
                yield from worker.compute(self._costs.step)
                yield self._with_all(worker, self._fetch)
                yield self.env.timeout(self._setting.compute_seconds)
                yield self._with_all(worker, self._send)
                made += 1
                self.steps += 1
            self._results.put((made, self.env.now - began))

    def _with_all(self, worker: _Task, exchange) -> simpy.Event:
        return self.env.all_of([self.env.process(exchange(worker, server)) for server in self.servers])

    def _fetch(self, worker: _Task, server: _Task) -> Generator[Any, Any, None]:
        yield self.env.timeout(2 * self._setting.latency)  # it asks first
        yield from self._transfer(server, worker, server.machine.sends, worker.machine.receives)

    def _send(self, worker: _Task, server: _Task) -> Generator[Any, Any, None]:
        yield self.env.timeout(self._setting.latency)
        yield from self._transfer(worker, server, worker.machine.sends, server.machine.receives)
        yield from server.compute(self._costs.update)
        yield self.env.timeout(self._setting.latency)  # it answers

    def _transfer(self, sender: _Task, receiver: _Task, first, second) -> Generator[Any, Any, None]:
        size = self._setting.megabytes * 1e6 / len(self.servers)
        yield from sender.compute(size * self._costs.byte)
        if size and self._setting.bandwidth < math.inf:
            pieces = max(1, _PIECES // len(self.servers))
            seconds = size / pieces / self._setting.bandwidth
            yield self.env.all_of([self.env.process(self._piece(seconds, first, second)) for _ in range(pieces)])
        yield from receiver.compute(size * self._costs.byte)

    def _piece(self, seconds: float, first, second) -> Generator[Any, Any, None]:
        for link in (first, second):
            with link.request() as turn:
                yield turn
                yield self.env.timeout(seconds)


def simulate(setting: Setting, costs: Costs, seconds: float = 10.0) -> Found:
    """Simulates a training; counts for `seconds`, or longer where its steps do, once it has come into its stride."""
    training = _Training(setting, costs)
    transfers = 2 * setting.megabytes * 1e6 / setting.bandwidth
    queued = max(1.0, setting.workers / setting.servers)
    step = max(setting.batch_seconds, setting.compute_seconds + transfers * queued)
    training.env.run(until=(begin := max(seconds / 2, 6 * step)))
    before = training.steps, training.coordinator.used, training.servers[0].used
    training.env.run(until=begin + (counted := max(seconds, 12 * step)))
    after = training.steps, training.coordinator.used, training.servers[0].used
    return Found(*((high - low) / counted for low, high in zip(before, after, strict=True)))


@dataclass(frozen=True)
class Point:
    """What was measured: a setting, batches a second, and the coordinator's cores; `fitted` if the costs are to fit."""

    setting: Setting
    rate: float
    coordinator: float
    fitted: bool


def read_points(path: pathlib.Path) -> list[Point]:
    """Reads points from a file, or from a report of `scale`.

    Raises:
      UsageError: it is not one of them.
    """
    try:
        rows = json.loads(path.read_text())
        rows = rows["points"] if isinstance(rows, dict) else rows
        return [
            Point(Setting(**row["setting"], together=True), row["rate"], row["cores"], row["fitted"]) for row in rows
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"--points={path} must be a file as {POINTS.name}: {error!r}") from None


def fit(points: Sequence[Point], start: Costs, seconds: float = 2.0) -> Costs:
    """Finds the costs for which simulated rates differ least, in proportion, from those of the points.

    What an execution costs is told by the coordinator's cores.
    """

    known, names = [p for p in points if p.fitted], ["step", "update", "byte"]
    for _ in range(2):  # how many executions there are in a second depends on the other costs
        start = _fit_rates(known, start, names, seconds)
        busy = [(p.coordinator, simulate(p.setting, start, seconds).coordinator) for p in known if p.coordinator > 0.1]
        start = dataclasses.replace(start, execution=start.execution * float(np.median([a / b for a, b in busy])))
    return start


def _fit_rates(points: Sequence[Point], start: Costs, names: Sequence[str], seconds: float) -> Costs:
    from scipy.optimize import minimize

    def costs(logs) -> Costs:
        return dataclasses.replace(start, **{n: float(math.exp(x)) for n, x in zip(names, logs, strict=True)})

    def off(logs) -> float:
        rates = [simulate(p.setting, costs(logs), seconds).rate for p in points]
        return sum(math.log(rate / p.rate) ** 2 for rate, p in zip(rates, points, strict=True))

    first = np.log([getattr(start, name) for name in names])
    wide = np.stack([first, *(first + 1.5 * one for one in np.eye(len(names)))])  # rates fall with each of them
    options = {"initial_simplex": wide, "xatol": 0.02, "fatol": 1e-4}
    return costs(minimize(off, first, method="Nelder-Mead", options=options).x)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `simulate` alone has."""
    group = parser.add_argument_group("simulate")
    group.add_argument("--points", help="file of what `scale --report` has measured (default: that of this machine)")
    group.add_argument("--fit", action="store_true", help="fit the costs to those points, which takes minutes")
    group.add_argument("--workers", default="10,30,100,300", help="how many (default: 10,30,100,300)")
    group.add_argument("--servers", default="1,4,16", help="how many (default: 1,4,16)")
    group.add_argument("--megabytes", type=float, default=100.0, help="of weights (default: 100)")
    group.add_argument("--batch_ms", type=float, default=0.0, help="that a batch's input takes (default: 0)")
    group.add_argument("--compute_ms", type=float, default=100.0, help="that a step computes (default: 100)")
    group.add_argument("--gbit", type=float, default=10.0, help="a second of each machine's link (default: 10)")
    group.add_argument("--latency_us", type=float, default=100.0, help="of a message (default: 100)")
    group.add_argument("--cores", type=int, default=16, help="of each machine (default: 16)")
    group.add_argument("--plot", help="file for a picture of it, as .svg or .png")


def run(rounds: int, options: argparse.Namespace) -> dict:
    """Prints measured points beside simulated ones, and what other machines would come to; returns the figures.

    Args:
      rounds: not used: each simulation of a setting is the same.

    Raises:
      UsageError: an option is out of its range.
    """
    settings = _settings(options)
    if options.plot:
        if not options.plot.endswith((".svg", ".png")):
            raise UsageError(f"--plot={options.plot} must end in .svg or .png")
        check_writable(f"--plot={options.plot}", options.plot)
    points = read_points(pathlib.Path(options.points) if options.points else POINTS)
    costs = fit(points, COSTS) if options.fit else COSTS
    print(", ".join(f"{name} {value:.3g} s" for name, value in dataclasses.asdict(costs).items()))
    compared = compare(points, costs)
    print(_TITLE)
    for point, found in compared:
        print(_line(point.setting, found, costs, point.rate, "fitted" if point.fitted else "left out"))
    off = [found.rate / point.rate - 1 for point, found in compared if not point.fitted]
    if off:
        print(f"points that were left out of the fit are {max(map(abs, off)):.1%} off at most")
    print(f"{options.megabytes:g} MB, {options.compute_ms:g} ms a step, {options.gbit:g} Gbit/s, {options.cores} cores")
    print(_TITLE)
    found = {}
    for setting in settings:
        found[setting] = simulate(setting, costs, seconds=5.0)
        print(_line(setting, found[setting], costs), flush=True)
    if options.plot:
        plot(found, options.plot)
    return {
        "costs": dataclasses.asdict(costs),
        "points": [[dataclasses.asdict(point), dataclasses.asdict(simulated)] for point, simulated in compared],
        "simulated": [[dataclasses.asdict(s), dataclasses.asdict(f)] for s, f in found.items()],
    }


def compare(points: Sequence[Point], costs: Costs) -> list[tuple[Point, Found]]:
    """What each point's setting comes to by simulation."""
    return [(point, simulate(point.setting, costs)) for point in points]


_TITLE = "workers  servers  batch ms       MB  batches/s   of one's  coordinator's cores  server's  measured"


def _line(setting: Setting, found: Found, costs: Costs, measured: float | None = None, kind: str = "") -> str:
    beside = "" if measured is None else f"{measured:8.1f}, {found.rate / measured - 1:+.1%}, {kind}"
    alone = simulate(dataclasses.replace(setting, workers=1), costs, seconds=5.0).rate
    return (
        f"{setting.workers:7}  {setting.servers:7}  {1e3 * setting.batch_seconds:8.1f}  {setting.megabytes:7g}  "
        f"{found.rate:9.1f}  {found.rate / alone:9.2f}  {found.coordinator:19.3f}  {found.server:8.2f}  {beside}"
    )


def _settings(options: argparse.Namespace) -> list[Setting]:
    for name in ("megabytes", "batch_ms", "compute_ms", "latency_us"):
        if not 0 <= getattr(options, name) < math.inf:
            raise UsageError(f"--{name}={getattr(options, name):g} must be a number that is not negative")
    if not 0 < options.gbit < math.inf:
        raise UsageError(f"--gbit={options.gbit:g} must be positive")
    if options.cores < 1:
        raise UsageError(f"--cores={options.cores} must be at least 1")
    if not options.batch_ms + options.compute_ms:
        raise UsageError("--batch_ms and --compute_ms are both 0: nothing but this machine would be measured")
    workers, servers = (numbers(getattr(options, name), name) for name in ("workers", "servers"))
    return [
        Setting(
            w, s, options.batch_ms / 1e3, options.compute_ms / 1e3, options.megabytes, options.gbit * 1e9 / 8,
            options.latency_us / 1e6, options.cores,
        )
        for s in servers
        for w in workers
    ]  # fmt: skip


def plot(found: dict[Setting, Found], path: str) -> None:
    """Draws batches a second over the number of workers, a line for each number of servers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for servers in dict.fromkeys(setting.servers for setting in found):
        line = [(s.workers, f.rate) for s, f in found.items() if s.servers == servers]
        axes.plot(*zip(*line, strict=True), marker="o", label=f"{servers} servers" if servers > 1 else "1 server")
    axes.set(xscale="log", yscale="log", xlabel="workers", ylabel="batches/s")
    axes.legend()
    figure.savefig(path)
