"""Trains on a `PyDataset` whose processes hang at the fork, before any code of ours runs in them.

python -m tests.programs.stuck_py_dataset_workers
"""

import os
import signal
import time

import tf2dist

tf2dist.join("one")

from tests.input.python_kinds import STEPS, Rows  # noqa: E402
from tests.models import OPTIMIZERS, classifier  # noqa: E402


def hang():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a lock of a library holds up the handler, too
    time.sleep(1000)


os.register_at_fork(after_in_child=hang)
tf2dist.fit(classifier(OPTIMIZERS["sgd"]()), Rows(workers=2, use_multiprocessing=True), steps_per_epoch=STEPS)
