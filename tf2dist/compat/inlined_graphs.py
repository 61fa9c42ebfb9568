"""Python functions that are traced once, and whose operations are put into a graph as often as they are called."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.framework.func_graph import FuncGraph, func_graph_from_py_func


class InlinedGraph:
    """What a function computes of tensors, called in graphs as if Python ran it there each time.

    A `tf.function` is traced once, too. But wherever TensorFlow puts its operations, all that it returns, and all that
    comes after it, waits until all of its operations with side effects have ended (`InlineFunctionBody` in
    tensorflow/core/common_runtime/inline_function_utils.cc): for a function with operations on other hosts these are
    messages, one after the other. Here they keep the order that TensorFlow gives to operations with side effects in the
    graph into which they are put. (Python would give each call other seeds for `tf.random.normal` and the like.)

    Args:
      function: of tensors, or structures of them; returns the same.
      arguments: like those of all calls, which are to be in functions that are traced inside of the current one.
    """

    def __init__(self, function: Callable[..., Any], *arguments: Any):
        self._graph = graph = FuncGraph(function.__name__)
        graph._add_control_dependencies = True  # in functions inside of it, as branches of conditions
        func_graph_from_py_func(graph.name, function, arguments, {}, func_graph=graph, add_control_dependencies=False)
        definition = graph.as_graph_def(add_shapes=True)
        functions = {function.signature.name: function for function in definition.library.function}
        inputs = {tensor.op.name for tensor in graph.inputs}
        # What it calls is known where it is put.
        self._definition = GraphDef(versions=definition.versions)
        self._definition.node.extend(node for node in definition.node if node.name not in inputs)
        names = {node.name for node in self._definition.node}
        for node in self._definition.node:
            _colocate_only_with(node, names)
        self._used = {name for node in self._definition.node for name in node.input}
        self._nodes = [*_with_called(self._definition.node, functions)]

    def copies(self, operations: int, nbytes: int) -> int:
        """How many calls may come one after the other, so that they add up to so many operations and bytes at most.

        Operations count with those of the functions that they call, but for what is a call of another host's
        (`_noinline`); of bytes most are constants. One, if that is too many, or if the numbers that it draws follow
        from how often an operation of TensorFlow has run: all calls would draw the same.
        """
        if any("seed2" in node.attr and (node.attr["seed"].i or node.attr["seed2"].i) for node in self._nodes):
            return 1
        return max(1, min(operations // len(self._nodes), nbytes // self._definition.ByteSize()))

    def __call__(self, *arguments: Any) -> Any:
        """Returns what the function does. In the graph of a function."""
        here, graph = tf.compat.v1.get_default_graph(), self._graph
        assert isinstance(here, FuncGraph)
        for called in graph._functions.values():
            here._add_function_recursive(called)
        given = [tf.convert_to_tensor(t) for t in tf.nest.flatten(arguments, expand_composites=True)]
        late = [value() for value in graph.deferred_external_captures]  # as that of a worker's lookup table
        captured = [*(tensor for tensor, _ in graph.captures), *tf.nest.flatten(late, expand_composites=True)]
        values = {i.name: here.capture(t) for i, t in zip(graph.inputs, [*given, *captured], strict=True)}
        made = [tensor.name for tensor in graph.outputs if tensor.name not in values]
        inputs = {name: value for i, value in values.items() for name in _input_names(i) if name in self._used}
        found = tf.graph_util.import_graph_def(self._definition, inputs, made, name="")
        values |= zip(made, found, strict=True)
        outputs = [values[tensor.name] for tensor in graph.outputs]
        return tf.nest.pack_sequence_as(graph.structured_outputs, outputs, expand_composites=True)


def _input_names(tensor: str) -> tuple[str, str]:
    """What nodes of a graph's definition call a placeholder as an input, and as what they come after."""
    name = tensor.removesuffix(":0")
    return name, f"^{name}"


def _with_called(nodes: Iterable[NodeDef], functions: Mapping[str, FunctionDef]) -> Iterator[NodeDef]:
    """These nodes, and those of the functions that they call as a part of the same graph."""
    for node in nodes:
        yield node
        for value in node.attr.values():
            for name in [value.func.name, *(function.name for function in value.list.func)]:
                if name in functions and not functions[name].attr["_noinline"].b:
                    yield from _with_called(functions[name].node_def, functions)


def _colocate_only_with(node: NodeDef, names: Collection[str]) -> None:
    """Drops that it is to be where others are; TensorFlow places operations at the resources that they are given."""
    if "_class" in node.attr:
        kept = [group for group in node.attr["_class"].list.s if group.decode().removeprefix("loc:@") in names]
        node.attr["_class"].list.s[:] = kept
        if not kept:
            del node.attr["_class"]
