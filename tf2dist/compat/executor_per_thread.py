"""An executor for each thread of a coordinator, so that a server's silence or loss is felt by no other thread."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context, executor
from tensorflow.python.framework import errors

_here = threading.local()


def use_own_executors() -> None:
    """Gives this thread and each thread that calls a worker an eager executor of its own.

    Whatever was a result of a worker is freed on it by that executor, and while the worker is stopped that does not
    end. TensorFlow waits for it after each call of any worker (`executor_scope` in
    tensorflow/python/eager/context.py makes an object for the executor that was left, which waits when it is freed),
    and before each element of a dataset (`execution_mode` in the same file).
    """
    context.context().executor = _of_this_thread()
    context.executor_scope = _scope


@contextlib.contextmanager
def in_own_executor() -> Iterator[None]:
    """Inside, operations of this thread do not end with an error of another thread's.

    Those that are under way in one executor, as the default one of all threads, all end when one of them fails
    (`EagerExecutor::NodeDone` in tensorflow/core/common_runtime/eager/eager_executor.cc): two copies of results, say,
    of which one is from a worker that is killed. A `ClusterCoordinator` would take both workers for lost, and wait
    until the lost one is back before it uses the other.
    """
    with _scope(_of_this_thread()):
        yield


class _Own(executor.Executor):
    """A synchronous executor that waits for what was begun in it only in the process that made it.

    A forked process frees the executors of its parent's other threads before it runs any code of its own, and what
    they had begun does not end there. An error of what was under way at a server that is lost ends with it, too: nobody
    could catch it here, and Python would print it.
    """

    __slots__ = ["_made_in"]

    def __init__(self) -> None:
        super().__init__(pywrap_tfe.TFE_NewExecutor(False, True, 0))
        self._made_in = os.getpid()

    def __del__(self) -> None:
        if os.getpid() != self._made_in:
            return
        try:
            super().__del__()
        except errors.OpError:
            self.clear_error()
            super().__del__()


def _of_this_thread() -> executor.Executor:
    if not hasattr(_here, "executor"):
        _here.executor = _Own()
    return _here.executor


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
