"""Measures this project beside its alternatives, in one run.

python -m benchmarks before: parameter servers by this checkout beside another one, as of an older commit
python -m benchmarks chaos: trainings whose tasks are killed, stopped, asked to stop and cut off at random moments
python -m benchmarks checkpoint: for how long steps stand still while a large table is saved
python -m benchmarks fit: `tf2dist.fit` beside a hand-written loop and beside Keras's own fit
python -m benchmarks gpu: `tf2dist.fit` on a GPU beside Keras on TensorFlow, JAX and torch; Life and matmul beside CuPy
python -m benchmarks launch: time to the first step against the number of workers
python -m benchmarks life: engines of the Game of Life beside bgolly, in one process and in two
python -m benchmarks pi: random points beside NumPy's, and one worker beside two
python -m benchmarks ps: asynchronous parameter servers beside TensorFlow 1 programs and Keras 2
python -m benchmarks scale: asynchronous training on 1 to 16 workers, one of which is killed or stopped
python -m benchmarks simulate: the same on machines that are not here, by a simulation that is fitted to `scale`
"""

import argparse
import importlib
import json
import pkgutil
import signal
import sys

import benchmarks
from benchmarks import before, chaos, checkpoint, scale, simulate
from tf2dist.errors import UsageError
from tf2dist.system.commands import Parser
from tf2dist.system.output_files import check_writable, write_text


def main(argv: list[str]) -> int:
    names = sorted(m.name for m in pkgutil.iter_modules(benchmarks.__path__) if not m.name.startswith("_"))
    parser = Parser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=[n for n in names if n not in ("programs", "rounds")])
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each contestant (default: 5)")
    parser.add_argument("--report", help="file for the figures as JSON")
    with_options = {"before": before, "chaos": chaos, "checkpoint": checkpoint, "scale": scale, "simulate": simulate}
    for name, benchmark in with_options.items():
        if name in argv:
            benchmark.add_arguments(parser)  # others refuse them
    options = parser.parse_args(argv)
    if options.rounds < 1:
        parser.error(f"--rounds={options.rounds} must be at least 1")
    # What is ended by SIGTERM ends its jobs, also those that are stopped by SIGSTOP.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        if options.report:
            check_writable(f"--report={options.report}", options.report, takes_special=True)
        if options.name in with_options:
            figures = with_options[options.name].run(options.rounds, options)
        else:
            figures = importlib.import_module(f"benchmarks.{options.name}").run(options.rounds)
    except UsageError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    if options.report:
        write_text(options.report, json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
