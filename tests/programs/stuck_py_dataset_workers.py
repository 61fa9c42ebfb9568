"""Trains on a `PyDataset` whose processes hang at the fork, before any code of ours runs in them, or while they send.

python -m tests.programs.stuck_py_dataset_workers fork|send
"""

import os
import signal
import sys
import time
from multiprocessing.connection import Connection

import tf2dist

tf2dist.join("one")

from tests.input.python_kinds import STEPS, Rows  # noqa: E402
from tests.models import OPTIMIZERS, classifier  # noqa: E402


def hang():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a lock of a library holds up the handler, too
    time.sleep(1000)


def send_a_part(self, buffer, write=os.write):
    write(self.fileno(), bytes(buffer[:2]))
    hang()


class Sends(Rows):
    def __getitem__(self, index):
        if os.getpid() != us and index == 3:
            Connection._send = send_a_part
        return super().__getitem__(index)


us = os.getpid()
if sys.argv[1] == "fork":
    os.register_at_fork(after_in_child=hang)
data = Sends(workers=2, use_multiprocessing=True)
tf2dist.fit(classifier(OPTIMIZERS["sgd"]()), data, steps_per_epoch=STEPS, shuffle=False)
