"""Calls that wait, made beside the test that goes on; and waits with an end."""

import threading
import time
from concurrent.futures import Future

DEADLINE = 20.0  # seconds; for what takes milliseconds on a machine that is not busy


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


def stays(future, seconds=0.2):
    """Whether a call has not returned after a time that is long for it."""
    try:
        future.result(timeout=seconds)
    except TimeoutError:
        return True
    return False


def wait_until(true):
    deadline = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def nobody_listens():
    """Waits for the ends of the threads of leaders and followers, all of whose connections have ended."""
    for thread in threading.enumerate():
        if thread.name == "monitor":
            thread.join(DEADLINE)
            assert not thread.is_alive()
