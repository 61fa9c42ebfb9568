"""Engines that compute generations. All compute the same boards, bit for bit.

An engine holds no board: `load` converts a packed board (`trainers.life.packed_board`) to a state of its own, and
`board` converts it back. States are immutable. In a job of several processes, every process makes the same calls in the
same order.
"""

from trainers.life.engines.engine import Engine
from trainers.life.engines.engine_choice import ENGINES, SMALLEST, check, make_engine

__all__ = ["ENGINES", "SMALLEST", "Engine", "check", "make_engine"]
