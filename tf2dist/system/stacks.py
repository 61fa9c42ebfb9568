"""Where the Python threads of this process are, for a job that stands still."""

import sys
import threading
import traceback
from collections.abc import Callable
from types import CodeType


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


def places_within(is_within: Callable[[CodeType], bool]) -> int | None:
    """Returns a number that is the same as long as none of the threads that are inside of some code moves.

    Args:
      is_within: whether a thread with this code on its stack is one of them. None is returned where there is none.
    """
    places: list[tuple[int, tuple[tuple[CodeType, int], ...]]] = []
    for ident, frame in sorted(sys._current_frames().items()):  # pyright: ignore[reportPrivateUsage]
        stack = tuple((place.f_code, place.f_lasti) for place, _ in traceback.walk_stack(frame))
        if ident != threading.get_ident() and any(is_within(code) for code, _ in stack):
            places.append((ident, stack))
    return hash(tuple(places)) if places else None
