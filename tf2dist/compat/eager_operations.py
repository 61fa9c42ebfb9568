"""Operations that a coordinator runs itself, without a function that all servers are told."""

from __future__ import annotations

from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context


def run_operations_without_functions() -> None:
    """Makes TensorFlow run eager operations directly, without wrapping each in a function.

    TensorFlow makes a function of each new kind of operation (`__wrapped__AddV2_...`; `WrapInCallOp` in
    tensorflow/core/common_runtime/eager/execute.cc), tells it to all servers one after the other, and waits for their
    answers (`EagerContext::AddFunctionDef` in tensorflow/core/common_runtime/eager/context.cc). While a worker is
    stopped, a coordinator that only makes a variable in its own memory would stand still.
    """
    here = context.context()
    here.ensure_initialized()
    pywrap_tfe.TFE_ContextSetRunEagerOpAsFunction(here._handle, False)
