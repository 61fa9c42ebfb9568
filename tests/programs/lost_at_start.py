"""Run in every process of a parameter server job: the coordinator waits when all serve, before it connects to them.

python -m tests.programs.lost_at_start OUT
"""

import pathlib
import sys
import time

import tf2dist
from tf2dist.runtime import session

out = pathlib.Path(sys.argv[1])
make_strategy = session._make_strategy


def make_later(*arguments):
    (out / "all_serve").write_text("")
    while not (out / "lost").exists():
        time.sleep(0.02)
    return make_strategy(*arguments)


session._make_strategy = make_later
strategy = tf2dist.join("ps")

from tests.models import OPTIMIZERS, classifier, data  # noqa: E402

with strategy.scope():
    model = classifier(OPTIMIZERS["sgd"]())
tf2dist.fit(model, data(), batch_size=16, epochs=3)
(out / "updates").write_text(str(tf2dist.updates(model)))
