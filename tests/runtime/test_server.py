"""A coordinator that is worker 0 serves in a child process, whose faults are logged."""

import logging

from tf2dist.cluster.spec import Cluster, Task
from tf2dist.runtime import server
from tf2dist.runtime.preemption import Preemption


def test_a_fault_in_the_server_of_worker_0_is_logged(monkeypatch, caplog, capfd):
    def fail(cluster, limit, preemption):
        raise RuntimeError(f"no server for {cluster.task}")

    ended = []
    monkeypatch.setattr(server.os, "fork", lambda: 0)
    monkeypatch.setattr(server.linux, "die_with_parent", lambda parent, signum: None)
    monkeypatch.setattr(server.signal, "signal", lambda *args: None)
    monkeypatch.setattr(server.gpus, "driver_is_open", lambda: False)
    monkeypatch.setattr(server, "serve_and_exit", fail)
    monkeypatch.setattr(server, "exit_now", ended.append)
    monkeypatch.delitem(server.sys.modules, "tensorflow", raising=False)  # which the tests have used
    log = logging.getLogger("tf2dist")  # as it is, whatever a test before has set up in this process
    monkeypatch.setattr(log, "handlers", [])
    monkeypatch.setattr(log, "propagate", True)
    monkeypatch.delenv("TF2DIST_PREEMPTIBLE", raising=False)
    cluster = Cluster({"worker": ("a:1",), "ps": ("b:1",)}, Task("worker", 0))
    with caplog.at_level(logging.INFO, "tf2dist"):
        server.fork_worker_0_server(cluster, 1.0, Preemption())
    assert ended == [1]
    assert "RuntimeError: no server for worker 0" in caplog.text
    assert capfd.readouterr() == ("", "")
