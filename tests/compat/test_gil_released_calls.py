"""A coordinator that waits for a server which does not answer, and its other threads."""

import signal
import time

import pytest

from tests.conftest import sampled
from tests.programs import __name__ as PROGRAMS

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


@pytest.fixture
def stopped(by_hand, tmp_path):
    """stopped(*arguments): a job with a stopped worker, about which the coordinator knows nothing."""

    def start(*arguments):
        job = by_hand(f"{PROGRAMS}.frozen", str(tmp_path), *arguments)
        job.until("under_way")
        job.processes["worker 1"].send_signal(signal.SIGSTOP)
        (tmp_path / "stopped").write_text("")
        return job

    return start


def goes_on(job):
    job.processes["worker 1"].send_signal(signal.SIGCONT)
    assert job.ends("chief 0") == (0, "")
    assert job.ends("worker 1") == (0, "")


CHANGES = pytest.mark.parametrize("change", sampled(("added", "removed", "seeded"), (), ("added",)))


@CHANGES
def test_other_threads_run_while_a_server_is_told_or_waited_for(stopped, change):
    job = stopped(change, "ours")
    job.until("others_run")
    assert job.processes["chief 0"].poll() is None
    goes_on(job)


@CHANGES
def test_tensorflow_itself_still_stops_them(stopped, tmp_path, change):
    """Fails when `tf2dist.compat.gil_released_calls` is no longer needed."""
    job = stopped(change, "theirs")
    time.sleep(8)  # 8 times as long as they take otherwise
    assert not (tmp_path / "others_run").exists()
    goes_on(job)


def test_a_tensorflow_without_that_library_keeps_its_own_way(tf, monkeypatch):
    from tensorflow.python.eager import context

    from tf2dist.compat import gil_released_calls

    def missing():
        raise OSError("libtensorflow_cc.so.2: cannot open shared object file")

    monkeypatch.setattr(gil_released_calls, "_library", missing)
    gil_released_calls.release_gil_in_remote_calls()
    assert not {"add_c_function", "remove_function"} & set(vars(context.context()))
