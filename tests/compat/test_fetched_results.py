"""How a coordinator fetches results: by which calls of TensorFlow, what comes, and what the errors of lost ones say."""

import pathlib
import subprocess
import sys

import pytest

from tests.programs import __name__ as PROGRAMS
from tf2dist.compat.fetched_results import _copied

pytestmark = pytest.mark.timeout(300)


def functions_made_to_fetch(whose, workers):
    """How many functions TensorFlow makes to fetch results by `tests.programs.fetches`."""
    done = subprocess.run(
        [sys.executable, "-m", f"{PROGRAMS}.fetches", whose, str(workers)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.slow
def test_results_are_fetched_without_functions():
    assert functions_made_to_fetch("ours", workers=6) == 0


@pytest.mark.slow
def test_tensorflow_itself_makes_a_function():
    """Fails when `tf2dist.compat.fetched_results` is no longer needed."""
    assert functions_made_to_fetch("theirs", workers=1) > 0


def test_tensorflow_keeps_pointers_into_a_vector_that_grows(tf):
    """Fails when it may have mended that; then `tf2dist.compat.fetched_results` can go."""
    header = "tensorflow/core/distributed_runtime/eager/cluster_function_library_runtime.h"
    assert "std::vector<FunctionData> function_data_" in (pathlib.Path(tf.sysconfig.get_include()) / header).read_text()


@pytest.mark.slow
def test_the_error_of_a_lost_result_is_taken_for_that_of_a_lost_worker(by_hand, tmp_path):
    job = by_hand(f"{PROGRAMS}.lost_result", str(tmp_path))
    job.until("under_way")
    job.processes["worker 1"].kill()
    job.processes["worker 1"].wait()
    (tmp_path / "killed").write_text("")
    status, error = job.ends("chief 0")
    assert status == 0, error


@pytest.mark.slow
def test_a_copy_that_fails_leaves_that_of_another_worker_alone(by_hand, tmp_path):
    """Else the coordinator waits, for both workers, until both are back."""
    job = by_hand(f"{PROGRAMS}.lost_copies", str(tmp_path))
    job.until("under_way")
    job.processes["worker 1"].kill()
    status, error = job.ends("chief 0")
    assert status == 0, error


def test_the_error_says_where_the_result_was(tf, monkeypatch):
    """The coordinator asks for that; TensorFlow's own may say no more than "sendmsg: Broken pipe (32)"."""
    tensor = tf.constant(1)

    def numpy(_):
        raise tf.errors.UnavailableError(None, None, "sendmsg: Broken pipe (32)")

    monkeypatch.setattr(type(tensor), "numpy", numpy)
    with pytest.raises(tf.errors.UnavailableError, match=r"Broken pipe.*/device:CPU:0"):
        _copied(tensor)


def test_what_is_fetched_is_what_was_returned(tf):
    ragged = tf.ragged.constant([["a"], ["b", "c"]])
    variable = tf.Variable(1.0)
    for tensor in (tf.zeros([0], tf.string), tf.constant([1.5], tf.bfloat16), tf.constant(True), variable.handle):
        assert _copied(tensor).dtype == tensor.dtype
        assert _copied(tensor).shape == tensor.shape
    assert _copied(ragged).to_list() == ragged.to_list()
    assert _copied(None) is None
