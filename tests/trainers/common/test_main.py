import contextlib
import json
import os
import sys
from types import SimpleNamespace

import pytest
from absl import flags as absl_flags
from absl.testing import flagsaver

from tests.conftest import sampled
from tf2dist.cluster.heartbeat import TaskLostError
from tf2dist.cluster.rendezvous import RendezvousError
from tf2dist.cluster.spec import ClusterError
from tf2dist.data.errors import DataError
from tf2dist.errors import UsageError
from tf2dist.launch import free_ports, network_namespace
from tf2dist.runtime import session
from trainers.common import main as trainer_main

SHORT = ("--dataset=synthetic", "--steps=4", "--batch_size=64")


@pytest.fixture
def main(monkeypatch, capsys):
    """main(prepare, *arguments): a trainer with this `prepare` in this process; its status, stdout and stderr."""
    for name in ("TF_CONFIG", "TF2DIST_PREPARED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(session, "_current", session.Session())
    kept = os.dup(2)  # a trainer that fails says one line and closes its standard error

    def main(prepare, *arguments):
        monkeypatch.setattr(sys, "argv", ["/somewhere/trainer.py", *arguments])
        with flagsaver.flagsaver(), pytest.raises(SystemExit) as caught:
            trainer_main.run(lambda run, prepared: {}, prepare)
        return caught.value.code, *capsys.readouterr()

    yield main
    os.dup2(kept, 2)
    os.close(kept)


def raising(error):
    def prepare(shared):
        raise error

    return prepare


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (UsageError("two\n  lines"), 2, "two lines"),
        (ClusterError("no worker"), 2, "no worker"),
        (DataError("file is truncated"), 2, "file is truncated"),
        (RendezvousError("ps 0 is missing"), 1, "ps 0 is missing"),
        (TaskLostError("ps 0 is gone"), 1, "ps 0 is gone"),
        (OSError(28, "No space left on device", "file"), 1, "[Errno 28] No space left on device: 'file'"),
        (TimeoutError("ps 0 did not start its server"), 1, "ps 0 did not start its server"),
        (MemoryError(), 1, "MemoryError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_what_a_user_can_mend_is_one_line(main, error, status, said):
    assert main(raising(error)) == (status, "", f"trainer: {said}\n")
    assert session.current().has_failed


def test_an_interrupt(main):
    assert main(raising(KeyboardInterrupt())) == (130, "", "")
    assert session.current().has_failed


@contextlib.contextmanager
def unread():
    """Standard output is a pipe that nobody reads; in the test, since pytest changes it between fixture and test."""
    kept = os.dup(1)
    read, write = os.pipe()
    os.close(read)
    os.dup2(write, 1)
    os.close(write)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def test_output_that_nobody_reads(main):
    """`| head`: status 141 without a line, as the launcher; any other broken pipe is a failure with a line."""
    with unread():
        assert main(raising(BrokenPipeError(32, "Broken pipe"))) == (141, "", "")
    assert session.current().has_failed
    assert main(raising(BrokenPipeError(32, "Broken pipe"))) == (1, "", "trainer: [Errno 32] Broken pipe\n")


def test_help_that_nobody_reads(start, no_tensorflow):
    trainer = start("--help", env=no_tensorflow)
    trainer.process.stdout.close()
    _, error = trainer.process.communicate(timeout=60)
    assert (trainer.process.returncode, error) == (141, "")


@pytest.mark.parametrize(("code", "failed"), [(0, False), (None, False), (3, True), ("text", True)])
def test_an_exit(main, code, failed):
    assert main(raising(SystemExit(code))) == (code, "", "")
    assert session.current().has_failed == failed


def test_a_bug_has_a_traceback(main):
    with pytest.raises(ZeroDivisionError):
        main(lambda shared: 1 / 0)


class OpError(Exception):
    """As those of TensorFlow, which need a graph to be made."""

    def __init__(self, message):
        super().__init__(message)
        self.message = message


class DataLossError(OpError):
    pass


class UnavailableError(OpError):
    pass


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("corrupted record at 12\n\t [[{{node Iterator}}]]", "corrupted record at 12"),
        ("Graph execution error:\n\nDetected at node x defined at (most recent call last):\n"
         '  File "a.py", line 3, in f\n\nbad label\nAdditional GRPC error information', "bad label"),
        ("Graph execution error:", "Graph execution error:"),
        ("", "no message"),
    ],
)  # fmt: skip
def test_what_tensorflow_found_while_running_is_one_line(main, monkeypatch, message, said):
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(errors=SimpleNamespace(OpError=OpError)))
    assert main(raising(DataLossError(message))) == (1, "", f"trainer: DataLossError: {said}\n")


def test_the_loss_of_another_task_says_more_than_what_tensorflow_found(main, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(errors=SimpleNamespace(OpError=OpError)))
    session.current().monitor_with(SimpleNamespace(first_loss=lambda limit: "ps 0 at p:1 is gone"))
    said = "trainer: ps 0 at p:1 is gone (UnavailableError)\n"
    assert main(raising(UnavailableError("Connection reset by peer"))) == (1, "", said)


def test_a_task_that_tensorflows_heartbeats_miss_is_named(main, monkeypatch):
    """They may notice before its heartbeat does, and before ssh does."""
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(errors=SimpleNamespace(OpError=OpError)))
    message = (
        "Collective ops is aborted by: Error reported from /job:worker/task:1: The following tasks are unhealthy "
        "(stopped sending heartbeats):\n/job:worker/replica:0/task:1\nThe tasks have crashed."
    )
    said = "trainer: worker 1 has given no sign of life (UnavailableError)\n"
    assert main(raising(UnavailableError(message))) == (1, "", said)


def test_devices_that_are_not_there_are_the_users_to_mend(main, monkeypatch):
    def join(*args, **kwargs):
        raise ValueError("4 replicas need 4 GPUs, and there are 2")

    monkeypatch.setattr("tf2dist.join", join)
    assert main(lambda shared: None) == (2, "", "trainer: 4 replicas need 4 GPUs, and there are 2\n")


@pytest.mark.parametrize("spelling", ["--help", "-help", "-h", "--helpfull"])
def test_help(run, no_tensorflow, tree, spelling):
    done = run("--strategy=nonsense", spelling, env=no_tensorflow)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("Trains a digit classifier on any strategy: python -m trainers.mnist --strategy=ps.")
    listed = ("strategy", "ps", "workers", "replicas", "ps_hosts", "worker_hosts", "job_name", "task_index", "task_id",
              "logdir", "seed", "xla", "mixed_precision", "report", "preset", "dataset", "data_dir", "epochs",
              "steps", "batch_size", "learning_rate")  # fmt: skip
    for name in listed:
        assert f"--{name}" in done.out.replace("--[no]", "--"), name
    assert tree() == {}


@pytest.mark.slow
def test_one_process_from_the_command_to_the_report(run, tree, tmp_path):
    done = run(*SHORT, "--report=report.json", "--logdir=new/logs", "--seed=5", env={"CUDA_VISIBLE_DEVICES": ""})
    assert (done.status, done.err) == (0, ""), done
    report = json.loads((tmp_path / "report.json").read_text())
    ran = {name: report[name] for name in ("trainer", "strategy", "processes", "replicas", "seed", "preset", "dataset")}
    assert ran == {"trainer": "mnist", "strategy": "one", "processes": {"solo": 1}, "replicas": 1, "seed": 5,
                   "preset": "mlp", "dataset": "synthetic"}  # fmt: skip
    assert set(report["versions"]) == {"tensorflow", "keras", "python"}
    assert [device for device in report["devices"] if "CPU" not in device] == []
    assert (report["steps"], report["batch_size"]) == (4, 64)
    assert 0 <= report["test_accuracy"] <= 1
    assert report["test_examples"] > 0
    assert {"new/logs/model.keras", "report.json"} <= set(tree())
    assert not [name for name in tree() if name.endswith(".part")]


@pytest.mark.parametrize("strategy", sampled(["ps", "multiworker"], (), ["ps"]))
def test_started_by_hand_as_under_tensorflow_1(start, tree, tmp_path, strategy):
    # One command a host, without --strategy, with single dashes, and each with a report of its own.
    with free_ports.hold(3) as held:
        first, second, third = (f"127.0.0.1:{port}" for port in held)
        hosts = [f"-worker_hosts={first},{second}"]
        tasks = [("worker", 0), ("worker", 1)]
        if strategy == "ps":
            hosts.append(f"-ps_hosts={third}")
            tasks.append(("ps", 0))
        processes = [
            start(*SHORT, *hosts, f"-job_name={name}", f"-task_id={index}", f"-report={name}{index}.json",
                  f"-logdir=logs_of_{name}{index}", env={"CUDA_VISIBLE_DEVICES": ""})
            for name, index in tasks
        ]  # fmt: skip
        done = [process.finish() for process in processes]
    assert [(one.status, one.err) for one in done] == [(0, "")] * len(tasks)
    assert [bool(one.out) for one in done] == [True] + [False] * (len(tasks) - 1)
    report = json.loads((tmp_path / "worker0.json").read_text())
    assert (report["strategy"], report["steps"]) == (strategy, 4)
    assert report["processes"] == ({"ps": 1, "worker": 2} if strategy == "ps" else {"worker": 2})
    assert {name.partition("/")[0] for name in tree()} == {"worker0.json", "logs_of_worker0"}
    assert all(process.all_gone() for process in processes)


@pytest.mark.slow
def test_a_local_cluster_has_a_network_of_its_own(run, tmp_path):
    if why := network_namespace.refusal():
        pytest.skip(f"no network namespaces here: {why}")
    (tmp_path / "isolated.py").write_text(
        "import os\nfrom trainers.common import main\nprint(os.readlink('/proc/self/ns/net'), flush=True)\n"
        "main.run(lambda run, prepared: {})\n"
    )
    done = run("--strategy=multiworker", "--workers=1", module="isolated")
    assert (done.status, done.err) == (0, "")
    here, theirs = done.out.split()
    assert here == os.readlink("/proc/self/ns/net")
    assert theirs.startswith("net:")
    assert theirs != here


def test_flags_are_not_left_set_by_these_tests():
    assert not absl_flags.FLAGS["strategy"].present
