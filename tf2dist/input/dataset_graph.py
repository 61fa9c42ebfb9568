"""The graph of a `tf.data.Dataset`: what is in it, and changed copies of it, of which any process makes a Dataset.

Several processes that read one dataset together must see the same order, so what is random in it is given a seed.
TensorFlow draws one for each process where none is given, as in `dataset.shuffle(1000)`; and an operation with
`deterministic=False` gives elements as they come, whatever the dataset's options say.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

_IGNORE_STATE = 1  # of tf.data.experimental.ExternalStatePolicy: what has a state travels as it is now
# Datasets whose seeds are tensors, and the places of these among their inputs.
_SEED_INPUTS = {
    "ShuffleDataset": (2, 3),
    "ShuffleDatasetV3": (2, 3),
    "ShuffleAndRepeatDataset": (2, 3),
    "ShuffleAndRepeatDatasetV2": (2, 3),
    "RandomDataset": (0, 1),
    "RandomDatasetV2": (0, 1),
    "SamplingDataset": (2, 3),
}
_GENERATOR_INPUT = {"ShuffleDatasetV3": 4, "ShuffleAndRepeatDatasetV2": 5, "RandomDatasetV2": 2}
_SERVED = "tf2dist_data_service"  # begins the name of the operation after a data service; see `mark_served`
_SERVED_NAME = re.compile(rb"tf2dist_data_service_(\d+)_(known|unknown)_(lossy|whole)")
# What goes by the place of elements in a pass, or keeps a pass for good.
BY_PLACE = ("Zip", "Take", "Skip", "Shard", "Scan", "Window", "Cache")
_ASSERTION = "AssertCardinalityDataset"
_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


_marked: list[bool] = []  # has this process ever marked a dataset?


def mark_served(dataset: tf.data.Dataset, steps: int, workers: int, *, lossy: bool) -> tf.data.Dataset:
    """Notes in a dataset whose elements a data service makes how many there are, and how many workers make them.

    TensorFlow does not know how many elements a service yields, so neither a program that asks for `cardinality()`. An
    assertion would fail a pass in which elements were lost with a worker.

    Args:
      dataset: of what is served.
      steps: its cardinality.
      workers: how many make it.
      lossy: may elements be missing in a pass, with a worker that was lost?
    """
    _marked.append(True)
    known = "unknown" if steps == tf.data.UNKNOWN_CARDINALITY else "known"
    return dataset.take(max(steps, -1), name=f"{_SERVED}_{workers}_{known}_{'lossy' if lossy else 'whole'}")


def may_be_served() -> bool:
    """Has this process any dataset that `mark_served` has marked?"""
    return bool(_marked)


class DatasetGraph:
    """A dataset's graph, which another process can make the dataset of."""

    def __init__(self, dataset: tf.data.Dataset):
        variant = tf.data.experimental.to_variant(dataset)
        serialized = tf.raw_ops.DatasetToGraphV2(
            input_dataset=variant, external_state_policy=_IGNORE_STATE, strip_device_assignment=True
        )
        self._graph = tf.compat.v1.GraphDef.FromString(serialized.numpy())

    @property
    def calls_python(self) -> bool:
        """Does it call functions that only this process has?"""
        return any(node.op in _PYTHON for _, nodes in self._bodies() for node in nodes)

    @property
    def reads_service(self) -> bool:
        """Does it read a tf.data service, which gives each process that reads it other elements?"""
        return any(node.op.startswith("DataServiceDataset") for _, nodes in self._bodies() for node in nodes)

    @property
    def operations(self) -> list[str]:
        """The names of the operations of the pipeline itself, without what its functions do with an element."""
        return [node.op for node in self._graph.node if node.op.rstrip("V0123456789").endswith("Dataset")]

    @property
    def same_each_pass(self) -> str:
        """Names what is random, or changes, and the same in each pass of a graph that is made anew; "" if none is."""
        for _, nodes in self._bodies():
            known = {node.name: node for node in nodes}
            for node in nodes:
                if node.op == "VarHandleOp":
                    return "a variable, as of a layer of random numbers"
                if _draws_seed(node, known) is False:
                    return f"{node.op.partition('Dataset')[0]} with a seed (its own, or tf.random.set_seed's)"
                if "reshuffle_each_iteration" in node.attr and not node.attr["reshuffle_each_iteration"].b:
                    return "Shuffle with reshuffle_each_iteration=False"
        return ""

    @property
    def served_by_place(self) -> str:
        """Names an operation on what a data service makes that goes by the order of elements; "" if there is none."""
        readers: dict[str, list[Any]] = {}
        for node in self._graph.node:
            for name in node.input:
                readers.setdefault(name.lstrip("^").partition(":")[0], []).append(node)
        after = [node for node in self._graph.node if _served(node)]
        for node in after:
            known = {each.name for each in after}
            after += [reader for reader in readers.get(node.name, []) if reader.name not in known]
            name = node.op.rstrip("V0123456789").removesuffix("Dataset")
            if name in BY_PLACE and not _served(node):
                return name
        return ""

    @property
    def may_lack_elements(self) -> bool:
        """May elements that a data service makes be missing in a pass?"""
        return any(found[3] == b"lossy" for found in map(_served, self._graph.node) if found)

    @property
    def served_by(self) -> int:
        """How many workers make the elements that `mark_served` has noted; 0 if there are none."""
        return max((int(found[1]) for found in map(_served, self._graph.node) if found), default=0)

    def counted(self) -> tf.Tensor:
        """The graph as string[], in which what `mark_served` has noted is known, and its absence an error."""
        graph = self._copy()
        for node in graph.node:
            found = _served(node)
            if found and found[2] == b"known":
                node.op = _ASSERTION
                del node.attr["metadata"]
        return tf.constant(graph.SerializeToString())

    @property
    def caches_in_files(self) -> bool:
        """Does it keep elements in files that it finds again?"""
        for _, nodes in self._bodies():
            known = {node.name: node for node in nodes}
            for node in (n for n in nodes if n.op in ("CacheDataset", "CacheDatasetV2")):
                name = known.get(node.input[1].partition(":")[0])
                if name is None or name.op != "Const" or tf.make_ndarray(name.attr["value"].tensor).item():
                    return True
        return False

    @property
    def may_differ(self) -> bool:
        """Would two processes that read it see different things?"""
        return any(True for found in (self._unseeded, self._unordered) for _ in found(self._graph))

    def seeded(self, seed: int) -> tf.Tensor:
        """The graph as string[], with seeds that follow from this one where there are none."""
        graph = self._copy()
        for node in self._unordered(graph):
            node.attr["deterministic"].s = b"true"
        numbers = random.Random(seed)
        for body, node in list(self._unseeded(graph)):
            seeds = [numbers.randrange(1, 1 << 31) for _ in range(2)]
            if node.op not in _SEED_INPUTS:
                node.attr["seed"].i, node.attr["seed2"].i = seeds
                continue
            for place, value in zip(_SEED_INPUTS[node.op], seeds, strict=True):
                node.input[place] = _add_constant(body, value)
            if node.op in _GENERATOR_INPUT:
                _add_generator(body, node)
        _rename_functions(graph, f"_seeded_{seed}")  # functions of one name must be the same in a process
        return tf.constant(graph.SerializeToString())

    def without_assertions(self) -> tf.Tensor:
        """The graph as string[], without assertions of how many elements there are: a part of them is fewer."""
        graph = self._copy()
        asserted = {node.name: node.input[0] for node in graph.node if node.op == _ASSERTION}
        for node in graph.node:
            for place, name in enumerate(node.input):
                while (base := name.partition(":")[0]) in asserted:
                    name = asserted[base]
                node.input[place] = name
        for node in [n for n in graph.node if n.name in asserted]:
            graph.node.remove(node)
        return tf.constant(graph.SerializeToString())

    @property
    def asserts_cardinality(self) -> bool:
        """Does it assert how many elements there are?"""
        return any(node.op == _ASSERTION for node in self._graph.node)

    def apart(self) -> tf.Tensor:
        """The graph as string[] of a copy; a pass over it uses up none of the dataset's random numbers."""
        graph = self._copy()
        for body, nodes in self._bodies(graph):
            for node in [n for n in nodes if n.op in _GENERATOR_INPUT]:
                _add_generator(body, node)
        _rename_functions(graph, "_apart")
        return tf.constant(graph.SerializeToString())

    def _copy(self) -> Any:
        graph = tf.compat.v1.GraphDef()
        graph.CopyFrom(self._graph)
        return graph

    def _bodies(self, graph=None) -> Iterator[tuple[Any, Any]]:
        """The graph, and each function that it calls, with its nodes, in the order in which they are first called.

        The library is in another one, that of a hash of names, which differ from process to process by a number.
        """
        graph = graph or self._graph
        left = {function.signature.name: function for function in graph.library.function}
        bodies: list[tuple[Any, Any]] = [(graph, graph.node)]
        for body, nodes in bodies:
            yield body, nodes
            called = (name for node in nodes for name in (node.op, *(f.name for f in _functions_of(node))))
            bodies += [(found, found.node_def) for name in called if (found := left.pop(name, None)) is not None]
        yield from ((function, function.node_def) for function in left.values())  # that nothing calls

    def _unordered(self, graph) -> Iterator[Any]:
        """Nodes of operations that were made with `deterministic=False`."""
        for _, nodes in self._bodies(graph):
            yield from (n for n in nodes if "deterministic" in n.attr and n.attr["deterministic"].s == b"false")

    def _unseeded(self, graph) -> Iterator[tuple[Any, Any]]:
        """Nodes that draw a seed of their own, with the graph or function that they are in."""
        for body, nodes in self._bodies(graph):
            known = {node.name: node for node in nodes}
            yield from ((body, node) for node in nodes if _draws_seed(node, known))


def _served(node) -> re.Match[bytes] | None:
    return _SERVED_NAME.search(node.attr["metadata"].s) if node.op == "TakeDataset" else None


def _draws_seed(node, known: dict[str, Any]) -> bool | None:
    """Does an operation draw a seed of its own, since it was given none? None if it has no use for one.

    Args:
      known: the nodes of its graph or function, by name.
    """
    if node.op in _SEED_INPUTS:
        inputs = [known.get(node.input[place].partition(":")[0]) for place in _SEED_INPUTS[node.op]]
        return all(i is not None and i.op == "Const" and not _value(i) for i in inputs)
    if "seed" in node.attr and "seed2" in node.attr:
        return not (node.attr["seed"].i or node.attr["seed2"].i)
    return None


def _value(constant) -> int:
    return int(tf.make_ndarray(constant.attr["value"].tensor))


def _add_constant(body, value: int) -> str:
    """Adds an i64[] to a graph or function; returns its name as an input."""
    constant, name = _add_node(body, "Const", "output")
    constant.attr["dtype"].type = tf.int64.as_datatype_enum
    constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.int64))
    return name


def _add_generator(body, node) -> None:
    """Gives a node a seed generator of its own.

    In the process that has made the dataset, the old one would be found, with the seeds that it drew.
    """
    _, node.input[_GENERATOR_INPUT[node.op]] = _add_node(body, "DummySeedGenerator", "handle")


def _add_node(body, op: str, output: str) -> tuple[Any, str]:
    """Adds a node to a graph or function; returns it, and the name of its output as an input."""
    is_graph = isinstance(body, tf.compat.v1.GraphDef)
    nodes = body.node if is_graph else body.node_def
    node = nodes.add(name=f"seed_{len(nodes)}", op=op)
    return node, node.name if is_graph else f"{node.name}:{output}:0"


def _functions_of(node) -> Iterator[Any]:
    """The functions that a node's attributes name, by the name of the attribute."""
    for _, attribute in sorted(node.attr.items()):
        yield from [attribute.func] if attribute.HasField("func") else attribute.list.func


def _rename_functions(graph, suffix: str) -> None:
    names = {function.signature.name for function in graph.library.function}

    def rename(nodes) -> None:
        for node in nodes:
            node.op += suffix if node.op in names else ""
            for function in _functions_of(node):
                function.name += suffix if function.name in names else ""

    rename(graph.node)
    for function in graph.library.function:
        function.signature.name += suffix
        rename(function.node_def)
