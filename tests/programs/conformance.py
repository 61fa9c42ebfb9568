"""Run in every process of a cluster: trains the whole zoo and saves what came out, a pickle of names to results.

python -m launch local --workers=2 -- tests.programs.conformance STRATEGY OUT [CASE ...]
"""

import pathlib
import pickle
import sys

import tf2dist

strategy = tf2dist.join(sys.argv[1])
out = pathlib.Path(sys.argv[2])


from tests import zoo  # noqa: E402

leads = sys.argv[1] == "ps" or strategy.cluster_resolver.task_id == 0
results = {}
for name in sys.argv[3:] or zoo.CASES:
    try:
        model, results[name] = zoo.by_tf2dist(name, strategy)
    except Exception as error:  # the other cases shall run; the test of this one shows the error
        results[name] = f"{type(error).__name__}: {error}"
        continue
    if name in zoo.SAVED and leads:
        model.save(out / f"{name}.keras")
        model.export(out / name, verbose=False)
if leads:
    (out / "results.pickle").write_bytes(pickle.dumps(results))
    trained = sum(not isinstance(result, str) for result in results.values())
    print(f"trained {trained} of {len(results)} models")
