"""Run in every process of a parameter server job: a worker is killed while results are copied from it and another.

python -m tests.programs.lost_copies OUT
"""

import pathlib
import sys
import threading

import tf2dist

strategy = tf2dist.join("ps")
out = pathlib.Path(sys.argv[1])

import tensorflow as tf  # noqa: E402
from tensorflow.python.distribute.coordinator.values import RemoteValueImpl  # noqa: E402

from tf2dist.compat.fetched_results import fetch_without_function  # noqa: E402

errors = {}
lost = threading.Event()


def copy_again_and_again(index):
    """As the coordinator's thread of this worker does."""
    remote = RemoteValueImpl(None, None)
    fetch_without_function(remote)
    with tf.device(f"/job:worker/task:{index}"):
        remote._set_values(tf.zeros([4 << 20 if index else 4]) + 1.0)
    try:
        while not lost.is_set():
            remote._copy_to_local()
            if index == 1:
                (out / "under_way").touch()
        remote._copy_to_local()
    except tf.errors.OpError as error:
        errors[index] = str(error)
        lost.set()


threads = [threading.Thread(target=copy_again_and_again, args=(index,)) for index in (1, 0, 0, 0, 0, 0, 0)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert set(errors) == {1}, errors
