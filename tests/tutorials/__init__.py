"""Programs in the form of tf.distribute's tutorials, and the same programs with as few lines changed as possible.

Each of `programs` teaches what the tutorial teaches that it names, with a small model and made-up data, in the words of
tf.distribute and Keras. Its text is run with the lines of `CHANGES` in the places of its own, and, where both come to
the same numbers, as it is, on one device. docs/tutorials.md lists the changes.
"""

from __future__ import annotations

import linecache
import pathlib
from typing import Any

PROGRAMS = pathlib.Path(__file__).parent / "programs"
FIT = {"model.fit(": "tf2dist.fit(model, "}
PEERS = {"tf.distribute.MultiWorkerMirroredStrategy()": 'tf2dist.join("multiworker")'}
MIRRORED = {"tf.distribute.MirroredStrategy()": 'tf2dist.make_strategy("mirrored", replicas=2)'}
# What is changed of each program.
CHANGES = {
    "keras_fit": MIRRORED | FIT | {"model.evaluate(": "tf2dist.evaluate(model, "},
    "custom_training": MIRRORED,
    "multi_worker_fit": PEERS | FIT,
    "multi_worker_loop": PEERS,
    "parameter_server_fit": {
        "strategy = tf.distribute.ParameterServerStrategy(cluster_resolver, variable_partitioner=partitioner)": (
            'strategy = tf2dist.join("ps")'
        ),
        **FIT,
        "keras.utils.experimental.DatasetCreator(dataset_fn)": "dataset_fn",
    },
    "parameter_server_loop": {
        "strategy = tf.distribute.ParameterServerStrategy(cluster_resolver)": 'strategy = tf2dist.join("ps")',
    },
}
LEFT_OUT = ("cluster_resolver = ", "if cluster_resolver.task_type", "    config = ", "    server", "partitioner = ")
_ONE_DEVICE = "tf.distribute.get_strategy()"


def changed(name: str) -> tuple[str, list[tuple[str, str]]]:
    """The text with tf2dist; and the lines that are others in it, with what stands in their places ("" for nothing)."""
    lines, changes, ours = (PROGRAMS / f"{name}.py").read_text().splitlines(), [], []
    for line in lines:
        found = line
        for theirs, wanted in CHANGES[name].items():
            found = found.replace(theirs, wanted)
        if name.startswith("parameter_server") and line.startswith(LEFT_OUT):
            found = ""
        if found != line:
            changes.append((line, found))
        ours.append(found)
    at = next(number for number, line in enumerate(ours) if line.startswith("import "))
    return "\n".join([*ours[:at], "import tf2dist", *ours[at:]]), changes


def run(name: str, *, ours: bool) -> dict[str, Any]:
    """The `results` of a program with tf2dist, in every process of its job, or as it is, on one device."""
    if ours:
        text, _ = changed(name)
    else:
        text = (PROGRAMS / f"{name}.py").read_text()
        for theirs in (*PEERS, *MIRRORED):
            text = text.replace(theirs, _ONE_DEVICE)
    scope: dict[str, Any] = {"__name__": "__main__"}
    file = f"{name} {'with' if ours else 'without'} tf2dist"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file  # where AutoGraph looks for it
    exec(compile(text, file, "exec"), scope)
    return scope["results"]
