"""The rule for trainings whose numbers cannot be Keras's own: they go as far as one device does, give or take a part.

Imports no TensorFlow; whoever uses it says how loss and metrics were found.
"""

from __future__ import annotations

from collections.abc import Mapping

FRACTION = 0.2  # of the way that one device goes; twice of what workers that do not take turns were seen to be off
_CLEARLY = 0.3  # of its size a metric has to move on one device, or it says nothing about training


def outside(untrained: Mapping[str, float], theirs: Mapping[str, float], ours: Mapping[str, float], fraction=FRACTION):
    """What is not where it should be, a line each, of a training on one device (`theirs`) and of `ours`.

    All are loss and metrics by name, evaluated on the same data; `untrained` those of the model as built. The loss is
    what training minimizes: it must go as far as on one device, give or take `fraction` of the way, so that updates
    which are lost are found, and such as are made twice. A metric, which may jump from one example to the next, must
    go as far at least, less `fraction`; one that does not move clearly on one device is left out.
    """
    found = []
    for name, begin in untrained.items():
        way = theirs[name] - begin
        if name != "loss" and abs(way) < _CLEARLY * max(abs(begin), abs(theirs[name])):
            continue
        covered = (ours[name] - begin) / way
        if not 1 - fraction <= covered <= (1 + fraction if name == "loss" else float("inf")):
            found.append(f"{name}: {covered:.0%} of the way from {begin:.4g} to {theirs[name]:.4g}: {ours[name]:.4g}")
    return found
