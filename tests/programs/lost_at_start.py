"""Run in every process of a parameter server job: the coordinator waits when all serve, before it connects to them.

python -m tests.programs.lost_at_start OUT noticed|unnoticed

Then a worker is lost, which it has noticed when it connects, or not.
"""

import pathlib
import sys
import time

import tf2dist
from tf2dist.runtime import session

out = pathlib.Path(sys.argv[1])
make_strategy = session._make_strategy


def wait_for_loss():
    (out / "all_serve").write_text("")
    while not (out / "lost").exists():
        time.sleep(0.02)


def make_later(*arguments):
    if sys.argv[2] == "noticed":
        wait_for_loss()
        session.current().wait_for_loss(60.0)
    else:
        connect_later()
    return make_strategy(*arguments)


def connect_later():
    from tf2dist.runtime import make_strategy

    connecting_to = make_strategy.connecting_to

    def wait_and_connect(workers):
        wait_for_loss()
        return connecting_to(workers)

    make_strategy.connecting_to = wait_and_connect


session._make_strategy = make_later
strategy = tf2dist.join("ps")

from tests.models import OPTIMIZERS, classifier, data  # noqa: E402

with strategy.scope():
    model = classifier(OPTIMIZERS["sgd"]())
tf2dist.fit(model, data(), batch_size=16, epochs=3)
(out / "updates").write_text(str(tf2dist.updates(model)))
