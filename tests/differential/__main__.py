"""python -m tests.differential [--strategy=NAME,NAME] [--seeds=0:60] [--always=train_step]
python -m tests.differential --strategy=NAME [--replicas=N] [--workers=N] ... [--seeds=0:60]

Trains random configurations by Keras on one device and by tf2dist on a strategy, all settings of `jobs.SETTINGS` if
none is named. Prints a line for each configuration that gives other numbers, with the fewest options that do, and then
what was refused, and why. Exits with 1 if there was a mismatch.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence

from tests.differential.configurations import OPTIONS
from tests.differential.jobs import SETTINGS, Setting
from tests.differential.search import Reference, Search
from tf2dist.cluster.strategy_names import STRATEGIES


def _seeds(text: str) -> range:
    first, _, end = text.rpartition(":")
    return range(int(first or 0), int(end))


def _left_out(text: str) -> dict[str, set[str] | None]:
    """The values of each option that are not to be drawn; None for all but the simplest."""
    left: dict[str, set[str] | None] = {}
    for item in text.split(","):
        name, equal, value = item.partition("=")
        if name not in OPTIONS:
            raise argparse.ArgumentTypeError(f"there is no option {name!r}; there are {', '.join(OPTIONS)}")
        left[name] = {value, *(left.get(name) or ())} if equal else None
    return left


def _names(text: str) -> list[str]:
    return list(_left_out(text))


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__.partition("\n\n")[2])
    parser.add_argument("--strategy", help=f"one of tf2dist's, or settings: {','.join(SETTINGS)}")
    parser.add_argument("--replicas", type=int)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--update", choices=("async", "sync"), default="async")
    parser.add_argument("--local_steps", type=int, default=1)
    parser.add_argument("--seeds", type=_seeds, default=range(60), help="FIRST:END")
    parser.add_argument("--without", type=_left_out, default={}, help="options to leave out: data=function,batch_hooks")
    parser.add_argument("--always", type=_names, default=[], help="options to draw always: train_step,validation")
    parser.add_argument("--no-shrink", dest="shrinks", action="store_false", help="print configurations as drawn")
    given = vars(parser.parse_args(arguments))
    seeds, shrinks, without, always = (given.pop(name) for name in ("seeds", "shrinks", "without", "always"))
    if given["strategy"] is None:
        chosen = SETTINGS
    elif set(names := given["strategy"].split(",")) <= set(SETTINGS):
        chosen = {name: SETTINGS[name] for name in names}
    elif given["strategy"] not in STRATEGIES:
        parser.error(f"unknown --strategy={given['strategy']}: one of {', '.join(STRATEGIES)}, or settings of "
                     f"{','.join(SETTINGS)}")  # fmt: skip
    else:
        setting = Setting(**given)
        chosen = {" ".join(str(v) for v in dataclasses.astuple(setting) if v): setting}
    mismatches = 0
    with Reference() as reference:
        for name, setting in chosen.items():
            print(f"{name}:", flush=True)
            began = time.monotonic()
            search = Search(
                setting, reference, shrinks=shrinks, without=without, always=always,
                say=lambda line: print(line, flush=True),
            )  # fmt: skip
            report = search.run(seeds)
            print(f"{report}\n{time.monotonic() - began:.0f} s for {len(seeds)} seeds\n", flush=True)
            mismatches += len(report.mismatches)
    return int(mismatches > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
