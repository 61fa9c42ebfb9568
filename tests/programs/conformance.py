"""Run in every process of a cluster: trains the whole zoo and saves what came out, a pickle of names to results.

python -m launch local --workers=2 -- tests.programs.conformance LAYOUT OUT [CASE ...]

The layout is a strategy, or a strategy and its workers: "ps, 2 workers".
"""

import pathlib
import pickle
import sys

import tf2dist

name, _, workers = sys.argv[1].partition(", ")
strategy = tf2dist.join(name)
out = pathlib.Path(sys.argv[2])


from tests import zoo  # noqa: E402

leads = name == "ps" or strategy.cluster_resolver.task_id == 0
results = {}
for case in sys.argv[3:] or zoo.CASES:
    try:
        expected = zoo.CASES[case].expected(name, asynchronous=workers == "2 workers")
        model, results[case] = zoo.by_tf2dist(case, strategy, expected)
    except Exception as error:  # the other cases shall run; the test of this one shows the error
        results[case] = f"{type(error).__name__}: {error}"
        continue
    if case in zoo.SAVED and leads:
        model.save(out / f"{case}.keras")
        model.export(out / case, verbose=False)
if leads:
    (out / "results.pickle").write_bytes(pickle.dumps(results))
    trained = sum(not isinstance(result, str) for result in results.values())
    print(f"trained {trained} of {len(results)} models")
