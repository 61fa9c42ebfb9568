"""The description of one process of a process group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Process:
    """One process of a group.

    Args:
      name: its name in what the user reads, as "worker 0".
      argv: what Python is to run, as Python takes it: ("-m", module, args...) or (script, args...).
      env: added to the environment.
      serves: it runs for the others and ends by itself when they have ended.
      command: argv is a command of the system instead.
      coordinator: the name of the process that goes on without this one when it fails; while that one runs, this one
        is started again in its place. None if a failure of this process ends the group.
      is_needed: the coordinator waits for the one in its place, or fails; if there is none, the group ends.
      address: of the host that it is to be in an emulated network; None if there is none.
      lost_status: the exit status that says that it was lost with its host.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    serves: bool = False
    command: bool = False
    coordinator: str | None = None
    is_needed: bool = False
    address: str | None = None
    lost_status: int | None = None
