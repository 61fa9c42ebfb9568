"""Where the Python threads of this process are, for a job that stands still."""

import sys
import threading
import traceback


def stacks() -> str:
    """Returns the stack of each thread but this one, the main thread's first, under its name."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    found = sorted(sys._current_frames().items(), key=lambda item: item[0] != main)  # pyright: ignore[reportPrivateUsage]
    return "\n".join(
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame)).rstrip()}"
        for ident, frame in found
        if ident != threading.get_ident()
    )


def places_within(function: str) -> int | None:
    """Returns a number that is the same as long as no thread but this one moves.

    Args:
      function: the name of one that the main thread is to be inside of; else None is returned.
    """
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
    frames.pop(threading.get_ident(), None)
    places = {
        ident: [(place.f_code.co_name, id(place.f_code), place.f_lasti) for place, _ in traceback.walk_stack(frame)]
        for ident, frame in frames.items()
    }
    if all(name != function for name, *_ in places.get(threading.main_thread().ident or 0, ())):
        return None
    return hash(tuple((ident, tuple(found)) for ident, found in sorted(places.items())))
