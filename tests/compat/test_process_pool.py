"""Processes of a pool end by themselves where they can; those that hang: `tests/input/test_python_data_jobs.py`."""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import connection, util

from tf2dist.compat import process_pool


def write_at_exit(path):
    util.Finalize(None, path.write_text, ("ended",), exitpriority=1)
    return 7


def sleep(seconds):
    time.sleep(seconds)


def test_what_a_process_does_when_it_exits_is_done(tmp_path):
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    assert pool.submit(write_at_exit, tmp_path / "file").result(60) == 7
    process_pool.end(pool, 30.0)
    assert (tmp_path / "file").read_text() == "ended"


def test_what_takes_too_long_is_killed():
    others = {process.pid for process in multiprocessing.active_children()}
    pool = ProcessPoolExecutor(2, multiprocessing.get_context("spawn"))
    under_way = [pool.submit(sleep, seconds) for seconds in (0, 1000)]
    under_way[0].result(60)
    ended = [process.sentinel for process in multiprocessing.active_children() if process.pid not in others]
    began = time.monotonic()
    process_pool.end(pool, 0.5)
    assert len(ended) == 2
    for sentinel in ended:  # is_alive() is true for a moment of what the pool's thread has waited for
        assert connection.wait([sentinel], 10)
    assert time.monotonic() - began < 60


def test_python_has_no_such_methods():
    """Fails when `tf2dist.compat.process_pool` is no longer needed: all Pythons that we run on have them."""
    assert not hasattr(ProcessPoolExecutor, "kill_workers")
