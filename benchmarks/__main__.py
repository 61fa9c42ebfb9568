"""python -m benchmarks fit: how fast `tf2dist.fit` is beside a hand-written loop and beside Keras's own fit."""

import argparse
import importlib
import json
import pkgutil
import sys

import benchmarks


def main(argv: list[str]) -> int:
    names = sorted(m.name for m in pkgutil.iter_modules(benchmarks.__path__) if not m.name.startswith("_"))
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=[n for n in names if n != "rounds"])
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each contestant (default: 5)")
    parser.add_argument("--report", help="file for the figures as JSON")
    options = parser.parse_args(argv)
    if options.rounds < 1:
        parser.error(f"--rounds={options.rounds} must be at least 1")
    figures = importlib.import_module(f"benchmarks.{options.name}").run(options.rounds)
    if options.report:
        with open(options.report, "w") as file:
            json.dump(figures, file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
