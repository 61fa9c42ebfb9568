"""Threads of a coordinator while a worker is stopped. (`tests/parameter_server/test_lost_tasks.py` has them go on.)"""

import os
import threading


def waits(monkeypatch, work):
    """How often `work()` waits for an executor."""
    from tensorflow.python.eager.executor import Executor

    found = []
    with monkeypatch.context() as patch:
        patch.setattr(Executor, "wait", lambda self: found.append(self))
        work()
    return len(found)


def test_tensorflow_itself_waits_for_what_all_threads_have_begun(tf, monkeypatch):
    """Fails when `tf2dist.compat.executor_per_thread` is no longer needed."""
    from tensorflow.python.eager import context

    def leave():
        here = context.context()
        old = here.executor  # as in `executor_scope`
        del old

    elements = iter(tf.data.Dataset.range(2))
    assert waits(monkeypatch, leave) == 1
    assert waits(monkeypatch, lambda: next(elements)) > 0


def test_our_scope_does_not_wait(tf, monkeypatch):
    from tensorflow.python.eager import executor

    from tf2dist.compat import executor_per_thread

    used = executor.new_executor(enable_async=False)

    def call():
        with executor_per_thread._scope(used):
            assert int(tf.constant(1) + 1) == 2

    assert waits(monkeypatch, call) == 0
    assert int(tf.constant(1) + 1) == 2


def test_an_error_of_what_was_under_way_ends_with_its_thread(tf, monkeypatch):
    """As of a server that is lost; Python would print it, and the executor would stay."""
    from tensorflow.python import pywrap_tfe
    from tensorflow.python.eager.executor import Executor

    from tf2dist.compat import executor_per_thread

    events = []

    def wait(executor):
        events.append("wait")
        if "clear" not in events:
            raise tf.errors.UnavailableError(None, None, "the server is gone")

    own = executor_per_thread._Own()
    delete = pywrap_tfe.TFE_DeleteExecutor
    with monkeypatch.context() as patch:
        patch.setattr(Executor, "wait", wait)
        patch.setattr(Executor, "clear_error", lambda executor: events.append("clear"))
        patch.setattr(pywrap_tfe, "TFE_DeleteExecutor", lambda handle: (events.append("delete"), delete(handle)))
        del own
    assert events == ["wait", "clear", "wait", "delete"]


def test_a_forked_process_does_not_wait_for_what_other_threads_have_begun(tf, monkeypatch):
    """What they have begun ends in the parent only: the worker processes of a `PyDataset` waited for ever."""
    from tensorflow.python import pywrap_tfe

    from tf2dist.compat.executor_per_thread import in_own_executor

    begun, may_end = threading.Event(), threading.Event()

    def work():
        with in_own_executor():
            pass
        begun.set()
        may_end.wait()

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(10)
    us = os.getpid()
    really = pywrap_tfe.TFE_ExecutorWaitForAllPendingNodes
    with monkeypatch.context() as patch:
        patch.setattr(
            pywrap_tfe,
            "TFE_ExecutorWaitForAllPendingNodes",
            lambda handle: really(handle) if os.getpid() == us else os._exit(3),
        )
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        may_end.set()
        thread.join()
    assert status == 0
