"""Which thread's `CancellationManager` cancels a call."""

import importlib.util
import threading

import pytest


@pytest.fixture
def fresh(tf, monkeypatch):
    """TensorFlow's module as it comes, whatever was done to the one that others use; calls ask this one."""
    from tensorflow.python.eager import context

    spec = importlib.util.find_spec("tensorflow.python.eager.cancellation")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(context, "cancellation", module)
    return module


def outcome(tf, module, *, own):
    """What becomes of a call that waits for a queue, when a manager is cancelled that another thread has entered.

    Args:
      own: has the call's thread enter the manager, and the other one enter and leave one before.
    """
    queue = tf.queue.FIFOQueue(1, [tf.int32], [[]])
    began, found = threading.Event(), []

    @tf.function
    def take():
        return queue.dequeue()

    wait_for_element = take.get_concrete_function()
    manager = module.CancellationManager()

    def call():
        function = manager.get_cancelable_function(wait_for_element) if own else wait_for_element
        began.set()
        try:
            found.append(int(function()))
        except tf.errors.CancelledError:
            found.append("cancelled")

    caller = threading.Thread(target=call)
    with module.CancellationManagerContext(manager):
        caller.start()
        began.wait()
        caller.join(1.0)  # it is in the call then, and stays there
        assert caller.is_alive()
        manager.start_cancel()
        caller.join(1.0)
    if caller.is_alive():
        queue.enqueue(7)
        caller.join(60)
    return found


def leaves_while_another_is_inside(module):
    """The manager that a thread finds after another one, which had entered its own, has left that."""
    mine, other = module.CancellationManager(), module.CancellationManager()

    def come_and_go():
        with module.CancellationManagerContext(other):
            pass

    with module.CancellationManagerContext(mine):
        thread = threading.Thread(target=come_and_go)
        thread.start()
        thread.join()
        return module.context() is mine


def test_upstream_cancels_what_other_threads_call(tf, fresh):
    """Fails when `tf2dist.compat.cancellation_per_thread` is no longer needed."""
    assert outcome(tf, fresh, own=False) == ["cancelled"]
    assert not leaves_while_another_is_inside(fresh)


@pytest.mark.slow
def test_ours_cancels_what_the_same_thread_calls(tf, fresh):
    from tf2dist.compat.cancellation_per_thread import cancel_by_own_manager

    cancel_by_own_manager(fresh)
    assert outcome(tf, fresh, own=False) == [7]
    assert outcome(tf, fresh, own=True) == ["cancelled"]
    assert leaves_while_another_is_inside(fresh)
    assert fresh.context() is None
