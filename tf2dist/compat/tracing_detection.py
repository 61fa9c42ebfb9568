"""By which code on its stack a thread is known to trace a function for TensorFlow.

A trace calls Python, so it may take long, and there is no public way to ask whether one is under way. The thread that
traces is inside of `func_graph_from_py_func` (tensorflow/python/framework/func_graph.py), or, where Keras builds a
model, of `compute_output_spec` (keras/src/backend/tensorflow/core.py); and those that it starts for
the replicas of a MirroredStrategy inside of tensorflow/python/distribute/mirrored_run.py.
"""

from types import CodeType


def traces(code: CodeType) -> bool:
    """Whether a thread with this code on its stack traces, or waits for a thread that does."""
    if code.co_name == "compute_output_spec":
        return code.co_filename.endswith("/backend/tensorflow/core.py")
    return code.co_name == "func_graph_from_py_func" or code.co_filename.endswith("/distribute/mirrored_run.py")
