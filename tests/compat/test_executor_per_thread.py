"""Threads of a coordinator while a worker is stopped. (`tests/parameter_server/test_lost_tasks.py` has them go on.)"""


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
