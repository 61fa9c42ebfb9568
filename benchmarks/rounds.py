"""Contestants measured in turn, so that a machine whose speed drifts slows all of them alike."""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Callable, Mapping

Measure = Callable[[], float]


def in_turn(contestants: Mapping[str, Callable[[], Measure]], rounds: int) -> dict[str, list[float]]:
    """Measures each contestant once to warm up and then `rounds` times, A B C A B C ...

    Each has a process of its own, which does nothing while another one's turn lasts: threads and buffers that one
    leaves behind do not slow the next.

    Args:
      contestants: by name, a picklable function that gets ready and returns the function to be measured with, which
        returns a figure.

    Returns:
      Each contestant's figures.

    Raises:
      EOFError: a contestant failed; what it said is on standard error.
    """
    context = multiprocessing.get_context("spawn")
    figures: dict[str, list[float]] = {name: [] for name in contestants}
    pipes, processes = {}, []
    try:
        for name, contestant in contestants.items():
            pipes[name], theirs = context.Pipe()
            processes.append(context.Process(target=_contest, args=(contestant, theirs), daemon=True))
            processes[-1].start()
            theirs.close()
            pipes[name].recv()  # ready; one after the other, so that the machine is not full of beginners
        for turn in range(rounds + 1):
            for name, pipe in pipes.items():
                pipe.send(turn)
                figure = pipe.recv()
                if turn:
                    figures[name].append(figure)
    finally:
        for process in processes:
            process.kill()
            process.join()
    return figures


def _contest(contestant: Callable[[], Measure], pipe) -> None:
    measure = contestant()
    pipe.send("ready")
    while True:
        pipe.recv()
        pipe.send(measure())


def table(title: str, unit: str, figures: Mapping[str, list[float]], ours: str) -> dict[str, float]:
    """Prints medians, ranges and the median of each round's ratio of `ours` to the others; returns the ratios."""
    print(f"\n{title}\n  {'':34s} {'median':>10s} {'min':>10s} {'max':>10s}   {ours} is")
    ratios = {}
    for name, values in figures.items():
        ratios[name] = statistics.median(a / b for a, b in zip(figures[ours], values, strict=True))
        line = f"  {name:34s} {statistics.median(values):10,.0f} {min(values):10,.0f} {max(values):10,.0f}"
        print(line + (f"   {ratios[name]:.2f} times this" if name != ours else f"   ({unit})"), flush=True)
    return ratios
