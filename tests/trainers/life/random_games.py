"""What tests of the Game of Life draw at random."""

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from trainers.life.rule import Rule

counts = st.frozensets(st.integers(0, 8))
rules = st.builds(Rule, counts, counts)
sizes = st.tuples(st.integers(3, 200), st.integers(3, 200))
edges = st.sampled_from(["torus", "dead"])


@st.composite
def boards(draw, sizes=sizes):
    """Cells u8[rows, columns] of some density."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return (generator.random(draw(sizes)) < draw(st.sampled_from([0.05, 0.3, 0.5, 0.9]))).astype(np.uint8)


def examples(count):
    """So many, the same ones every time; XLA compiles a graph for each, which takes a second or two."""
    return settings(max_examples=count, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
