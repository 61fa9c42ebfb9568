"""An executor for each thread of a coordinator, so that none waits for a server that does not answer."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context, executor


def use_own_executors() -> None:
    """Gives this thread and each thread that calls a worker an eager executor of its own.

    Whatever was a result of a worker is freed on it by that executor, and while the worker is stopped that does not
    end. TensorFlow waits for it after each call of any worker (`executor_scope` in
    tensorflow/python/eager/context.py makes an object for the executor that was left, which waits when it is freed),
    and before each element of a dataset (`execution_mode` in the same file).
    """
    context.context().executor = _own()
    context.executor_scope = _scope


@functools.cache
def _own() -> executor.Executor:
    return executor.new_executor(enable_async=False)


@contextlib.contextmanager
def _scope(used: executor.Executor) -> Iterator[None]:
    here = context.context()
    here.ensure_initialized()
    before = pywrap_tfe.TFE_ContextGetExecutorForThread(here._handle)
    here.executor = used
    try:
        yield
    finally:
        pywrap_tfe.TFE_ContextSetExecutorForThread(here._handle, before)
        pywrap_tfe.TFE_DeleteExecutor(before)
