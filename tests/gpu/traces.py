"""What TensorFlow's functions were traced to: which operations, for which devices, and which of them XLA compiles."""

import contextlib

import tensorflow as tf


def nodes_of(concrete):
    """All operations, also of the functions that it calls, but for what XLA compiles."""
    definition = concrete.graph.as_graph_def()
    functions = {function.signature.name: function for function in definition.library.function}
    nodes, known = list(definition.node), set()
    for node in nodes:
        called = [f.name for value in node.attr.values() for f in (value.func, *value.list.func)]
        for function in (functions[name] for name in called if name in functions.keys() - known):
            known.add(function.signature.name)
            if not function.attr["_XlaMustCompile"].b:
                nodes += function.node_def  # which the loop comes to
    return nodes


def is_for_xla(concrete):
    """Must XLA compile this function, so that its call ends with an error if it cannot?"""
    return concrete.function_def.attr["_XlaMustCompile"].b


@contextlib.contextmanager
def functions_traced():
    """Collects all functions that are traced inside."""
    from tensorflow.python.eager.polymorphic_function import transform

    functions = []
    transform.CONCRETE_FUNCTION_CALLBACKS.append(functions.append)
    try:
        yield functions
    finally:
        transform.CONCRETE_FUNCTION_CALLBACKS.remove(functions.append)


@contextlib.contextmanager
def nodes_traced():
    """Collects the operations of all functions that are traced inside, but those that XLA compiles."""
    nodes = []
    with functions_traced() as functions:
        yield nodes
    nodes += [node for function in functions if not is_for_xla(function) for node in nodes_of(function)]


@contextlib.contextmanager
def hard_placement():
    """Inside, what asks for a device is there, or ends with an error."""
    before = tf.config.get_soft_device_placement()
    tf.config.set_soft_device_placement(False)
    try:
        yield
    finally:
        tf.config.set_soft_device_placement(before)


def where_computed(strategy, model, rows):
    """The devices on which a strategy's replicas multiply what a model makes of rows, as "GPU:0"."""
    function = tf.function(lambda: strategy.run(lambda: model(rows)))
    with hard_placement(), nodes_traced() as nodes:
        function()
    return sorted({node.device.rpartition("/device:")[2] for node in nodes if node.op == "MatMul"})
