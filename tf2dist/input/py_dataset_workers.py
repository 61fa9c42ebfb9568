"""The batches of a `keras.utils.PyDataset`, made by its workers: threads, or processes.

Keras's own `OrderedEnqueuer` (keras/src/trainers/data_adapters/py_dataset_adapter.py) waits without a limit for a
process that was killed.
"""

from __future__ import annotations

import concurrent.futures
import functools
import multiprocessing
import os
import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any

import keras

from tf2dist.compat import process_pool
from tf2dist.errors import TrainingError
from tf2dist.system import linux

_LOOK_SECONDS = 0.5
_END_SECONDS = 3.0  # that processes get to end by themselves
_dataset: Any = None  # in a process of a pool: the dataset as it was when the pass began


def read(dataset: keras.utils.PyDataset, indices: Iterable[int], is_over: Callable[[], bool]) -> Iterator[Any]:
    """Yields the batches of these indices in this order, as they were before the pass.

    Args:
      is_over: whether nobody wants more; asked while workers are waited for.

    Raises:
      TrainingError: a process of its workers has died.
      BaseException: what `__getitem__` has raised.
    """
    if dataset.use_multiprocessing and dataset.workers > 0:
        return _by_processes(dataset, indices, is_over)
    if dataset.workers > 1:
        return _by_threads(dataset, indices, is_over)
    return (dataset[index] for index in indices)


def _in_order(
    indices: Iterable[int], ahead: int, submit: Callable[[int], Future[Any]], is_over: Callable[[], bool]
) -> Iterator[Any]:
    """Yields the result of `submit` for each index, in order; up to `ahead` of them are computed before."""
    under_way: deque[Future[Any]] = deque()
    left = iter(indices)
    while True:
        for index in left:
            under_way.append(submit(index))
            if len(under_way) >= max(1, ahead):
                break
        if not under_way:
            return
        while not concurrent.futures.wait([under_way[0]], _LOOK_SECONDS).done:
            if is_over():
                return
        yield under_way.popleft().result()


def _by_threads(dataset: keras.utils.PyDataset, indices: Iterable[int], is_over: Callable[[], bool]) -> Iterator[Any]:
    """As `_in_order`, in threads, for which Python does not wait when it exits, as it does for an executor's."""
    wanted: queue.SimpleQueue[tuple[int, Future[Any]] | None] = queue.SimpleQueue()

    def work() -> None:
        while (item := wanted.get()) is not None:
            index, future = item
            try:
                future.set_result(dataset[index])
            except BaseException as error:
                future.set_exception(error)

    def submit(index: int) -> Future[Any]:
        future: Future[Any] = Future()
        wanted.put((index, future))
        return future

    for _ in range(dataset.workers):
        threading.Thread(target=work, name="tf2dist-py-dataset", daemon=True).start()
    try:
        yield from _in_order(indices, dataset.max_queue_size, submit, is_over)
    finally:
        for _ in range(dataset.workers):
            wanted.put(None)


def _by_processes(dataset: keras.utils.PyDataset, indices: Iterable[int], is_over: Callable[[], bool]) -> Iterator[Any]:
    """As `_in_order`, in processes that end with the thread that reads this."""
    pool = concurrent.futures.ProcessPoolExecutor(
        dataset.workers, multiprocessing.get_context(), initializer=_begin, initargs=(dataset, os.getpid())
    )
    try:
        submit = functools.partial(pool.submit, _make)
        yield from _in_order(indices, dataset.max_queue_size, submit, is_over)
    except concurrent.futures.BrokenExecutor:
        process_pool.kill(pool)
        raise TrainingError(
            f"a worker process of the {type(dataset).__name__} has died while it made a batch; its own output says why"
        ) from None
    finally:
        process_pool.end(pool, _END_SECONDS)


def _begin(dataset: keras.utils.PyDataset, parent: int) -> None:
    """Begins a process of a pool: it must not outlive its parent, nor do what the parent does at a signal."""
    global _dataset
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
    linux.die_with_parent(parent, signal.SIGKILL)
    _dataset = dataset


def _make(index: int) -> Any:
    return _dataset[index]
