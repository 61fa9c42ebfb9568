"""Famous patterns by name."""

from __future__ import annotations

from trainers.life import pattern_files
from trainers.life.pattern_files import Pattern

# As RLE, without headers. Gosper's gun (1970) sends a glider every 30 generations; the R-pentomino settles after
# 1,103 generations with 116 cells, the acorn after 5,206 with 633.
_BODIES = {
    "acorn": "bo$3bo$2o2b3o!",
    "beacon": "2o$o$3bo$2b2o!",
    "blinker": "3o!",
    "block": "2o$2o!",
    "diehard": "6bo$2o$bo3b3o!",
    "glider": "bo$2bo$3o!",
    "gosper": (
        "24bo$22bobo$12b2o6b2o12b2o$11bo3bo4b2o12b2o$2o8bo5bo3b2o$2o8bo3bob2o4b"
        "obo$10bo5bo7bo$11bo3bo$12b2o!"
    ),
    "lwss": "bo2bo$o$o3bo$4o!",
    "pentadecathlon": "2bo4bo$2ob4ob2o$2bo4bo!",
    "pulsar": (
        "2b3o3b3o2$o4bobo4bo$o4bobo4bo$o4bobo4bo$2b3o3b3o2$2b3o3b3o$o4bobo4bo$o"
        "4bobo4bo$o4bobo4bo2$2b3o3b3o!"
    ),
    "r-pentomino": "b2o$2o$bo!",
    "toad": "b3o$3o!",
}  # fmt: skip

NAMES = tuple(_BODIES)


def find(name: str) -> Pattern:
    """Returns the pattern of that name, one of NAMES, in its bounding box; for the rule B3/S23."""
    loose = pattern_files.parse(f"x = 99, y = 99, rule = B3/S23\n{_BODIES[name]}")
    rows, columns = (loose.cells.max(0) + 1).tolist()
    return Pattern(loose.cells, rows, columns, loose.rule)
