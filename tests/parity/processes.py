"""Functions run in processes of their own that begin with TensorFlow imported: one import serves all of them.

TensorFlow 1's graph mode is switched on for a whole process, and so are virtual devices, servers and the log of
placements. So each call of `alone` and each task of `cluster` is a new process, forked from one that has imported
TensorFlow and done nothing with it: that takes a tenth of a second, where an import takes four.
"""

import atexit
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import runpy
import signal
import sys
import tempfile
import threading
import traceback

from tf2dist import Cluster, Task
from tf2dist.launch import free_ports

DEADLINE = 250.0  # seconds for all of a program's tasks
_fork = multiprocessing.get_context("forkserver")
_fork.set_forkserver_preload(["tensorflow.compat.v1", "keras", "pytest", "tf2dist.training.api"])


def alone(function, *args):
    """What `function(*args)` returns in a process of its own. All of it must pickle."""
    with _started({"alone": (function, args, {}, False)}) as tasks:
        return _results(tasks, ["alone"])["alone"]


def cluster(function, jobs, *args):
    """What `function(*args)` returns in each task of a cluster on loopback, by the task's name, as "worker 1".

    Args:
      function: called in every task, which finds its place in TF_CONFIG; None comes from one that exits by itself.
      jobs: how many tasks each job has.
    """
    with _cluster(function, jobs, args, stay=False) as running:
        return _results(running, list(running))


def tf1_cluster(function, jobs, *args):
    """As `cluster`, for servers of TensorFlow 1: each stays until the last worker has done, and is killed then.

    What comes for the job "ps", which is in `server.join()`, is whether it was still running then.
    """
    with _cluster(function, jobs, args, stay=True) as running:
        joined = [name for name in running if name.startswith("ps ")]
        results = _results(running, [name for name in running if name not in joined])
        return results | {name: running[name][0].is_alive() for name in joined}


def command(module, *arguments):
    """Runs `python -m MODULE ARGUMENTS` in this process; returns the status and the lines of both streams.

    To be called by `alone` or `cluster`, which have imported already what a command takes seconds to import.
    """
    sys.argv = [module, *arguments]
    status = 0
    with caught() as lines:
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            status = end.code
    return status, lines


@contextlib.contextmanager
def caught():
    """What is written to the standard streams, also below Python, in the list that it gives."""
    lines = []
    with tempfile.TemporaryFile("w+") as file:
        kept = [os.dup(stream) for stream in (1, 2)]
        try:
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)
            yield lines
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for stream, copy in zip((1, 2), kept, strict=True):
                os.dup2(copy, stream)
            file.seek(0)
            lines += file.read().splitlines()


@contextlib.contextmanager
def _cluster(function, jobs, args, *, stay):
    tasks = [Task(job, index) for job, count in jobs.items() for index in range(count)]
    with free_ports.hold(len(tasks)) as held:
        at = dict(zip(tasks, (f"127.0.0.1:{port}" for port in held), strict=True))
        spec = {job: tuple(at[t] for t in tasks if t.job == job) for job in jobs}
        configs = {t: {"TF_CONFIG": Cluster(spec, t).to_tf_config()} for t in tasks}
        with _started({str(t): (function, args, configs[t], stay) for t in tasks}) as running:
            yield running


@contextlib.contextmanager
def _started(calls):
    """Starts a process for each call, gives them with their connections by name, and in the end kills all."""
    running = {}
    try:
        for name, call in calls.items():
            ours, theirs = _fork.Pipe(duplex=False)
            process = _fork.Process(target=_run, args=(theirs, *call), daemon=True)
            process.start()
            theirs.close()
            running[name] = process, ours
        yield running
    finally:
        for process, connection in running.values():
            process.kill()
            process.join()
            connection.close()


def _run(connection, function, args, environment, stay):
    threading.Thread(target=_end_with_the_tests, daemon=True).start()
    os.environ.update(environment)
    try:
        connection.send((function(*args), None))
        atexit._run_exitfuncs()  # a coordinator of ours lets its servers end
    except BaseException:
        connection.send((None, traceback.format_exc()))
    if stay:
        signal.pause()
    os._exit(0)  # TensorFlow's servers cannot be stopped, and their threads must not outlive Python's end


def _end_with_the_tests():
    """Ends this process when the tests have ended, however they did.

    Its parent is the forkserver, which stays as long as one of its children does: so its end would never come.
    """
    tests = multiprocessing.parent_process()
    assert tests is not None
    tests.join()
    os.kill(os.getpid(), signal.SIGKILL)


def _results(running, names):
    """What the named tasks have sent; the first task to fail, named or not, says why."""
    pending = {connection: name for name, (_, connection) in running.items()}
    results = {}
    while set(names) - set(results):
        ready = multiprocessing.connection.wait(list(pending), DEADLINE)
        assert ready, f"{sorted(set(names) - set(results))} have not ended within {DEADLINE:g} s"
        for connection in ready:
            name = pending.pop(connection)
            try:
                results[name], error = connection.recv()
                assert error is None, f"{name}:\n{error}"
            except EOFError:
                running[name][0].join()
                assert running[name][0].exitcode == 0, f"{name} ended with status {running[name][0].exitcode}"
                results[name] = None
    return results
