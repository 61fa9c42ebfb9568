"""Where the Python threads of this process are, for a job that stands still."""

import sys
import threading
import traceback


def stacks() -> str:
    """Returns the stack of each thread but this one, the main thread's first, under its name."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    found = sorted(sys._current_frames().items(), key=lambda item: item[0] != main)
    return "\n".join(
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame)).rstrip()}"
        for ident, frame in found
        if ident != threading.get_ident()
    )


def place_of_main_thread() -> int:
    """Returns a number that is the same as long as the main thread stays where it is."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    places: list[tuple[int, int]] = []
    while frame is not None:
        places.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return hash(tuple(places))
