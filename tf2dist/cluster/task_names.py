"""Tasks by name, in messages."""

# pyright: strict

from __future__ import annotations

_MOST = 5


def listed(names: list[str], most: int = _MOST) -> str:
    """Names tasks, the first few of many, as "worker 0, worker 1 and 7 more"."""
    if len(names) > most:
        names = [*names[:most], f"{len(names) - most} more"]
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
