"""Remote calls of TensorFlow that release Python's global interpreter lock while they wait."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
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


def release_gil_in_remote_calls() -> None:
    """Releases Python's global lock while TensorFlow tells the servers about a function, or waits for calls of theirs.

    Under a parameter server strategy TensorFlow does so by one call to each server and waits for the answer, and
    holds the lock: a server that does not answer stops all threads of the coordinator, also those that notice that it
    is gone, and that give signs of life to the others. `ctypes` calls the same functions of TensorFlow's C interface
    (tensorflow/c/eager/c_api.h) and releases the lock. Errors of a function that runs in this process then do not
    say where in Python each of its operations was made. A TensorFlow that is built into fewer files than the wheels
    for Linux are keeps its own way.

    A new seed of random numbers (`tf.random.set_seed`) makes TensorFlow forget what it has compiled, for which it waits
    until no worker is at anything. A function is to be forgotten when Python frees it, in the middle of something else:
    a thread of its own sees to it.
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
    forgetting.start()
    atexit.register(forgetting.end)


def _add(here, function) -> None:
    with c_api_util.tf_buffer() as buffer:
        pywrap_tf_session.TF_FunctionToFunctionDef(function, buffer)
        definition = bytes(pywrap_tf_session.TF_GetBuffer(buffer))
    _call("TFE_ContextAddFunctionDef", here, definition, ctypes.c_size_t(len(definition)))


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
    library = _library()
    status = _Pointer(library.TF_NewStatus())
    try:
        library[name](_pointer(here._handle), *arguments, status)
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
