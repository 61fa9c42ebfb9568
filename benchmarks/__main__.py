"""Measures this project beside its alternatives, in one run.

python -m benchmarks fit: `tf2dist.fit` beside a hand-written loop and beside Keras's own fit
python -m benchmarks launch: time to the first step against the number of workers
python -m benchmarks life: engines of the Game of Life beside bgolly, in one process and in two
python -m benchmarks pi: random points beside NumPy's, and one worker beside two
python -m benchmarks ps: asynchronous parameter servers beside a TensorFlow 1 program
"""

import argparse
import importlib
import json
import pkgutil
import sys

import benchmarks
from tf2dist.system.commands import Parser


def main(argv: list[str]) -> int:
    names = sorted(m.name for m in pkgutil.iter_modules(benchmarks.__path__) if not m.name.startswith("_"))
    parser = Parser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=[n for n in names if n not in ("programs", "rounds")])
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
