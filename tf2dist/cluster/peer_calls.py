"""How many calls each peer of a job has made, so that none waits for one that has ended its program."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator

from tf2dist.cluster.heartbeat import GRACE, TaskConnection
from tf2dist.errors import Preempted

_OF_WHAT = "fit, evaluate, predict or map_reduce"
_LOOK_SECONDS = 0.5  # between two looks at whether this process waits in a call that another one has left


class PeerCalls:
    """The calls that all peers of a job make together: how many this process has begun, and each other one has made.

    A peer that ends its program before the others, as by `sys.exit` in one of them, would let them wait for ever inside
    of a collective. It says how many calls it has made when it ends, so the others see that one of theirs cannot end.

    One that leaves a call by an exception says so too: its program may catch it. Mostly the others raise it as well. A
    peer that makes steps in that call, or exchanges something, for the grace period after that would do so for ever,
    and so would one that is in that call when the other has ended its program.

    Args:
      on_missing: called with a peer that this process waits for in vain, and one line. It must end this process.
      on_raised: called with the number of a call, counted from 1, that this process leaves by an exception.
    """

    def __init__(
        self,
        on_missing: Callable[[TaskConnection, str], object],
        on_raised: Callable[[int], object] = lambda call: None,
    ) -> None:
        self._on_missing, self._on_raised = on_missing, on_raised
        self._begun = self._made = 0
        self._open: dict[int, Callable[[], bool]] = {}  # by its number: does this process make steps in it?
        self._ended: dict[TaskConnection, int] = {}  # peers that have ended, and how many calls they have made

    @property
    def made(self) -> int:
        """Calls that have returned, raised an exception or ended all peers of a preempted job, which these do alike."""
        return self._made

    @contextlib.contextmanager
    def one(self, makes_steps: Callable[[], bool] = lambda: True) -> Generator[None]:
        """Counts the block as a call. It is not made if the program ends inside of it.

        Args:
          makes_steps: whether this process makes steps or waits for other peers just now, and runs no callback, say.
        """
        self._begun += 1
        number = self._begun
        self._open[number] = makes_steps
        self._check()
        try:
            yield
        except Exception:
            self._made += 1
            self._on_raised(number)
            raise
        except Preempted as end:
            self._made += not end.alone
            raise
        else:
            self._made += 1
        finally:
            del self._open[number]

    def end(self, connection: TaskConnection, made: str) -> None:
        """Notes that a peer has ended its program after so many calls; nothing if it did not say how many."""
        if made:
            self._ended[connection] = int(made)
            self._check()

    def raised(self, connection: TaskConnection, call: str) -> None:
        """Notes that a peer has left the call of this number by an exception; nothing if it did not say which."""
        if call:
            threading.Thread(target=self._watch, args=(connection, int(call)), name="monitor", daemon=True).start()

    def _watch(self, connection: TaskConnection, call: int) -> None:
        """Waits until this process leaves the call as well, or has waited in it for the grace period."""
        looks = 0
        while call > self._begun or call in self._open:
            time.sleep(_LOOK_SECONDS)
            makes_steps = self._open.get(call)
            # What has ended its program comes back to no call, whatever this process is at: it builds a model, say.
            waits = call in self._open and connection in self._ended
            looks = looks + 1 if waits or (makes_steps and makes_steps()) else 0
            if looks * _LOOK_SECONDS >= GRACE:
                why = f"has left call {call} of {_OF_WHAT} by an exception, and this task waits in it"
                self._on_missing(connection, f"{connection} {why}")
                return

    def _check(self) -> None:
        for connection, made in list(self._ended.items()):
            if self._open and made < self._begun:  # outside of calls this process waits for nobody
                why = f"has ended its program, and call {made + 1} of {_OF_WHAT} needs it"
                self._on_missing(connection, f"{connection} {why}")
