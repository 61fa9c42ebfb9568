"""Contestants measured in turn, so that a machine whose speed drifts slows all of them alike."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Mapping


def in_turn(contestants: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Calls each contestant once to warm up and then `rounds` times, A B C A B C ...; returns what they returned."""
    figures: dict[str, list[float]] = {name: [] for name in contestants}
    for contestant in contestants.values():
        contestant()
    for _ in range(rounds):
        for name, contestant in contestants.items():
            gc.collect()
            figures[name].append(contestant())
    return figures


def table(title: str, unit: str, figures: Mapping[str, list[float]], ours: str) -> dict[str, float]:
    """Prints medians, ranges and the median of each round's ratio of `ours` to the others; returns the ratios."""
    print(f"\n{title}\n  {'':34s} {'median':>10s} {'min':>10s} {'max':>10s}   {ours} is")
    ratios = {}
    for name, values in figures.items():
        ratios[name] = statistics.median(a / b for a, b in zip(figures[ours], values, strict=True))
        line = f"  {name:34s} {statistics.median(values):10,.0f} {min(values):10,.0f} {max(values):10,.0f}"
        print(line + (f"   {ratios[name]:.2f} times this" if name != ours else f"   ({unit})"), flush=True)
    return ratios
