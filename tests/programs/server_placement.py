"""Run in every process of a job with two parameter servers: where the variables of models are, and what they come to.

python -m launch local --ps=2 --workers=1 -- tests.programs.server_placement OUT
"""

import pathlib
import pickle
import sys

import tf2dist

strategy = tf2dist.join("ps")

import keras  # noqa: E402

from tests.parameter_server import cases  # noqa: E402


def servers(model):
    """The servers of weights, and those of what the optimizer keeps, by path."""
    variables = (*model.variables, *model.optimizer.variables)
    return {v.path: int(v.value.device.split("task:")[1].split("/")[0]) for v in variables}


def wide():
    with strategy.scope():
        model = keras.Sequential([keras.Input((512,)), keras.layers.Dense(2048), keras.layers.Dense(512)])
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
    return servers(model)


found = {"first": wide()}
for update in ("async", "sync"):
    values, history = cases.by_tf2dist("words, rmsprop", strategy, tf2dist.ParameterServer(update))
    found[update] = values, history
with strategy.scope():
    small = cases.CASES["words, rmsprop"].build()
    small.optimizer.build(small.trainable_variables)
found["small"] = servers(small)
pathlib.Path(sys.argv[1]).write_bytes(pickle.dumps(found))
