"""Random games on so many replicas, against ten lines of NumPy:
python -m tests.trainers.life.programs.replicas REPLICAS.

A process of its own, since collectives of one process are all of one size.
"""

import sys

from hypothesis import given
from hypothesis import strategies as st

import tf2dist
from tests.trainers.life.random_games import boards, edges, examples, rules
from tests.trainers.life.test_engines import compare


def main(replicas: int) -> None:
    strategy = tf2dist.join("mirrored", replicas=replicas)
    from trainers.life.engines.packed import Packed

    @examples(4)
    @given(boards(), rules, edges, st.integers(1, 40), st.integers(1, 2), st.integers(1, 64))
    def game(cells, rule, edges, count, strips, halo):
        strips = max(1, min(strips, len(cells) // replicas))
        if len(cells) >= replicas:
            compare(Packed(rule, *cells.shape, edges, strategy, strips=strips, halo=halo), cells, rule, edges, count)

    game()
    print(f"done on {strategy.num_replicas_in_sync} replicas")


if __name__ == "__main__":
    main(int(sys.argv[1]))
