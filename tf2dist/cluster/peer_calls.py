"""How many calls each peer of a job has made, so that none waits for one that has ended its program."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator

from tf2dist.cluster.heartbeat import TaskConnection
from tf2dist.errors import Preempted


class PeerCalls:
    """The calls that all peers of a job make together: how many this process has begun, and each other one has made.

    A peer that ends its program before the others, as by `sys.exit` in one of them, would let them wait for ever inside
    of a collective. It says how many calls it has made when it ends, so the others see that one of theirs cannot end.
    """

    def __init__(self, on_missing: Callable[[TaskConnection, str], object]) -> None:
        self._on_missing = on_missing
        self._begun = self._made = self._open = 0
        self._ended: dict[TaskConnection, int] = {}  # peers that have ended, and how many calls they have made

    @property
    def made(self) -> int:
        """Calls that have returned, raised an exception or ended all peers of a preempted job, which these do alike."""
        return self._made

    @contextlib.contextmanager
    def one(self) -> Generator[None]:
        """Counts the block as a call. It is not made if the program ends inside of it."""
        self._begun += 1
        self._open += 1
        self._check()
        try:
            yield
        except Exception:
            self._made += 1
            raise
        except Preempted as end:
            self._made += not end.alone
            raise
        else:
            self._made += 1
        finally:
            self._open -= 1

    def end(self, connection: TaskConnection, made: str) -> None:
        """Notes that a peer has ended its program after so many calls; nothing if it did not say how many."""
        if made:
            self._ended[connection] = int(made)
            self._check()

    def _check(self) -> None:
        for connection, made in list(self._ended.items()):
            if self._open and made < self._begun:  # outside of calls this process waits for nobody
                why = f"has ended its program, and call {made + 1} of fit, evaluate, predict or map_reduce needs it"
                self._on_missing(connection, f"{connection} {why}")
