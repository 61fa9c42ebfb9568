"""Calls that wait, made beside the test that goes on."""

import threading
from concurrent.futures import Future


def background(function, *args, **kwargs):
    """Calls a function in a thread; its future."""
    future: Future = Future()

    def call():
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return future
