"""Remote calls of TensorFlow that release Python's global interpreter lock while they wait."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import math
import os
import queue
import threading

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.eager import context
from tensorflow.python.framework import c_api_util

_Pointer = ctypes.c_void_p
_END_SECONDS = 1.0


def release_gil_in_remote_calls(connect_seconds: float = math.inf) -> None:
    """Releases Python's global lock while TensorFlow connects to servers, tells them of a function, or waits for them.

    Under a parameter server strategy TensorFlow does so by one call to each server and waits for the answer, and
    holds the lock: a server that does not answer stops all threads of the coordinator, also those that notice that it
    is gone, and that give signs of life to the others. `ctypes` calls the same functions of TensorFlow's C interface
    (tensorflow/c/eager/c_api.h) and releases the lock. Errors of a function that runs in this process then do not
    say where in Python each of its operations was made. A TensorFlow that is built into fewer files than the wheels
    for Linux are keeps its own way.

    When it connects it waits for all servers, for ever: for a worker that was lost just then, and that waits for this
    process to find it again. So the job would stand still until the others miss its signs of life.

    A new seed of random numbers (`tf.random.set_seed`) makes TensorFlow forget what it has compiled, for which it waits
    until no worker is at anything. A function is to be forgotten when Python frees it, in the middle of something else:
    a thread of its own sees to it.

    Args:
      connect_seconds: how long to wait for servers when it connects; then `tf.errors.DeadlineExceededError` is raised.
    """
    try:
        _library()
    except OSError:
        return
    here = context.context()
    here.add_c_function = functools.partial(_add, here)
    forgetting = _Forgetting(here)
    here.remove_function = forgetting.names.put
    pywrap_tfe.TFE_ContextClearCaches = _clear_caches
    pywrap_tfe.TFE_ContextSetServerDef = functools.partial(_connect, connect_seconds)
    forgetting.start()
    atexit.register(forgetting.end)


def _add(here, function) -> None:
    with c_api_util.tf_buffer() as buffer:
        pywrap_tf_session.TF_FunctionToFunctionDef(function, buffer)
        definition = bytes(pywrap_tf_session.TF_GetBuffer(buffer))
    _call("TFE_ContextAddFunctionDef", here, definition, ctypes.c_size_t(len(definition)))


def _connect(limit: float, handle, keep_alive_secs: int, definition: bytes) -> None:
    """Connects in a thread of its own, which stays where it is if a server does not answer."""
    failed: list[Exception] = []

    def connect() -> None:
        try:
            _checked("TFE_ContextSetServerDef", handle, keep_alive_secs, definition, ctypes.c_size_t(len(definition)))
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=connect, name="connect", daemon=True)
    thread.start()
    thread.join(limit if math.isfinite(limit) else None)
    if thread.is_alive():
        raise tf.errors.DeadlineExceededError(None, None, f"not all servers could be connected to in {limit:g} s")
    if failed:
        raise failed[0]


def _clear_caches(handle) -> None:
    _library().TFE_ContextClearCaches(_pointer(handle))


class _Forgetting(threading.Thread):
    """Has servers forget the functions whose names are put into a queue."""

    def __init__(self, here: context.Context):
        super().__init__(name="forgotten functions", daemon=True)
        self.names: queue.SimpleQueue[str | None] = queue.SimpleQueue()  # may be used while Python frees something
        self._here = here

    def run(self) -> None:
        while (name := self.names.get()) is not None:
            with contextlib.suppress(tf.errors.OpError):  # where a server is gone
                _call("TFE_ContextRemoveFunction", self._here, tf.compat.as_bytes(name))

    def end(self) -> None:
        """Ends it before TensorFlow ends; a server that is stopped is not waited for."""
        self.names.put(None)
        self.join(_END_SECONDS)


def _call(name: str, here, *arguments) -> None:
    here.ensure_initialized()
    _checked(name, here._handle, *arguments)


def _checked(name: str, handle, *arguments) -> None:
    """Calls a function of the C interface; raises the error that it returns."""
    library = _library()
    status = _Pointer(library.TF_NewStatus())
    try:
        library[name](_pointer(handle), *arguments, status)
        if code := library.TF_GetCode(status):
            message = library.TF_Message(status).decode(errors="replace")
            raise tf.errors.exception_type_from_error_code(code)(None, None, message)
    finally:
        library.TF_DeleteStatus(status)


def _pointer(capsule) -> ctypes.c_void_p:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = _Pointer, (ctypes.py_object, ctypes.c_char_p)
    return _Pointer(get(capsule, None))


@functools.cache
def _library() -> ctypes.CDLL:
    """What TensorFlow's Python modules call, loaded already."""
    library = ctypes.CDLL(os.path.join(tf.sysconfig.get_lib(), "libtensorflow_cc.so.2"))
    library.TF_NewStatus.restype = _Pointer
    library.TF_Message.restype = ctypes.c_char_p
    return library
