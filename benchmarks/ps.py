"""Parameter servers: `tf2dist.fit` beside others' programs, each with 1 server and 2 workers on this machine.

The network is the mnist trainer's preset `sigmoid` (784 -> 100 -> 10, SGD), 100 examples an update. A figure is the
updates a second of all workers together, from update `_FROM` on, when everybody has imported, traced and begun, to
the last one. All know loss and accuracy of every update.
"""

from __future__ import annotations

import bisect
import importlib.util
import json
import pathlib
import tempfile

from benchmarks.rounds import table
from tf2dist.errors import UsageError
from tf2dist.launch.backends import local

_FROM, _STEPS = 1000, 4000  # updates
_BATCH = 100
_DEADLINE = 240.0  # seconds for one measurement
_TF1, _TF1_SYNC = "TensorFlow 1 program", "TensorFlow 1, SyncReplicasOptimizer"
_KERAS, _KERAS_50 = "tf_keras, 1 step per execution", "tf_keras, 50 steps per execution"
_ASYNC, _LOCAL, _SYNC = "tf2dist.fit", "tf2dist.fit, local_steps=10", "tf2dist.fit, synchronous"
_CONTESTANTS = {
    _TF1: ("ps_tf1", ["async"]),
    _KERAS: ("ps_tf_keras", ["1"]),
    _KERAS_50: ("ps_tf_keras", ["50"]),
    _ASYNC: ("ps_tf2dist", ["async"]),
    _LOCAL: ("ps_tf2dist", ["local_steps"]),
    _SYNC: ("ps_tf2dist", ["sync"]),
    _TF1_SYNC: ("ps_tf1", ["sync"]),
}
_FEWER = {_SYNC: 5, _TF1_SYNC: 5, _KERAS: 5}  # so many times fewer updates: they are slower


def run(rounds: int) -> dict:
    """Measures each contestant `rounds` times, in turn; returns the figures and the ratios.

    Raises:
      UsageError: a package is missing.
    """
    if importlib.util.find_spec("tf_keras") is None:
        raise UsageError("ps measures Keras 2 too, and tf_keras is not installed (pip install -e '.[bench]')")
    figures: dict[str, list[float]] = {name: [] for name in _CONTESTANTS}
    for _ in range(rounds):
        for name, (program, arguments) in _CONTESTANTS.items():
            fewer = _FEWER.get(name, 1)
            figures[name].append(_measure(program, arguments, _FROM // fewer, _STEPS // fewer))
    title = f"1 parameter server, 2 workers: preset sigmoid, batch {_BATCH}"
    ratios = {name: table(title, "updates/s", figures, name) for name in (_ASYNC, _LOCAL, _SYNC)}
    return {"updates_per_second": figures, "over": ratios}


def _measure(program: str, arguments: list[str], since: int, steps: int) -> float:
    """Runs a contestant in a new cluster, which ends with it, however that is; returns updates a second.

    Raises:
      SystemExit: it failed, took too long, or was interrupted; why is on standard error.
    """
    with tempfile.TemporaryDirectory() as directory:
        status = local.run(
            [f"benchmarks.programs.{program}", directory, str(steps), str(_BATCH), *arguments],
            ps=1,
            workers=2,
            chief=program != "ps_tf1",  # a TensorFlow 1 cluster has none: its first worker is the chief
            timeout=_DEADLINE,
        )
        if status:
            raise SystemExit(status)
        watched = [json.loads(file.read_text()) for file in pathlib.Path(directory).iterdir()]
    return _rate(watched, since)


def _rate(watched: list[list[tuple[float, int]]], since: int) -> float:
    """Updates a second from when all who watched had seen number `since` to when the first of them saw its last.

    Args:
      watched: of each process that saw updates being made, the times and the numbers that it saw.
    """
    begin = max(next(time for time, step in points if step >= since) for points in watched)
    end = min(points[-1][0] for points in watched)
    first, *_ = watched
    (began, low), (ended, high) = _at(first, begin), _at(first, end)
    return (high - low) / (ended - began)


def _at(points: list[tuple[float, int]], time: float) -> tuple[float, int]:
    """The first thing that was seen at that time or later; the last if there is none."""
    return points[min(bisect.bisect_left(points, time, key=lambda point: point[0]), len(points) - 1)]
