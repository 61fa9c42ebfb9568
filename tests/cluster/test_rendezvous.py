import contextlib
import dataclasses
import errno
import json
import socket
import subprocess
import sys
import threading

import pytest

from tests.conftest import every_third
from tests.threads import background
from tf2dist.cluster import heartbeat, rendezvous, task_monitor
from tf2dist.cluster.heartbeat import wait_until_done
from tf2dist.cluster.loss_policy import LossPolicy
from tf2dist.cluster.rendezvous import RendezvousError, check_port_free, wait_for_followers, wait_for_leader
from tf2dist.cluster.spec import Cluster, ClusterError, Task
from tf2dist.launch import free_ports
from tf2dist.runtime import logging_setup

DEADLINE = 20.0  # seconds; for what takes milliseconds on a machine that is not busy
SHORT = 0.3  # seconds that are to run out
CHIEF, PS, WORKER0, WORKER1 = Task("chief", 0), Task("ps", 0), Task("worker", 0), Task("worker", 1)
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"  # how a gRPC client begins
SETTINGS = b"\0\0\x12\4\0\0\0\0\0\0\3\0\0\0\x64\0\4\0\1\0\0\0\5\0\0\x40\0"  # how a gRPC server answers
pytestmark = pytest.mark.timeout(90)


@pytest.fixture(autouse=True)
def silent(monkeypatch):
    """Tasks that are still waiting when their test is over say nothing in the middle of the next ones."""
    monkeypatch.setattr(rendezvous, "_QUIET", 1000.0)
    logging_setup.log_to_stderr()


@pytest.fixture
def cluster():
    """A chief, a ps and two workers on ports that nobody else gets, seen by the chief."""
    with free_ports.hold(4) as held:
        at = [f"127.0.0.1:{port}" for port in held]
        yield Cluster({"chief": (at[0],), "ps": (at[1],), "worker": (at[2], at[3])}, CHIEF)


def follow(cluster, task, limit=DEADLINE):
    """A task that waits for the leader."""
    return background(wait_for_leader, cluster.at(task), CHIEF, limit)


def greeting(cluster, to):
    return json.dumps(rendezvous._greeting(cluster, to)).encode() + b"\n"


def call(cluster, task):
    """A connection to a task, as soon as it listens."""
    while True:
        try:
            return socket.create_connection(("127.0.0.1", cluster.port(task)), timeout=DEADLINE)
        except ConnectionRefusedError:
            pass


@pytest.fixture
def failed_to_connect(monkeypatch):
    """An event: somebody has tried to connect where nobody listens."""
    event = threading.Event()
    create = socket.create_connection

    def noted(*args, **kwargs):
        try:
            return create(*args, **kwargs)
        except OSError:
            event.set()
            raise

    monkeypatch.setattr(socket, "create_connection", noted)
    return event


class Stranger:
    """Something else that listens at the address of a task, and says the same to everyone who connects."""

    def __init__(self, port, says=b"", *, ends=False):
        self._server = socket.create_server(("127.0.0.1", port))
        self._says, self._ends = says, ends
        self._connections = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            connection.sendall(self._says)
            if self._ends:
                connection.close()
            self._connections.append(connection)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for connection in self._connections:
            connection.close()


def agreed(cluster, lines, following):
    """Asserts that the leader's lines lead to these followers, in their order."""
    assert [line.task for line in lines] == list(following)
    for line, follower in zip(lines, following.values(), strict=True):
        other = follower.result(DEADLINE)
        assert (other.task, other.address) == (CHIEF, cluster.address(CHIEF))
        line.send("there")
        other.send("back")
        assert (other.receive("there", limit=DEADLINE), line.receive("back", limit=DEADLINE)) == ("there", "back")
        assert line.address == cluster.address(line.task)
        line.close()
        other.close()


def test_the_leader_comes_last(cluster):
    following = {task: follow(cluster, task) for task in (PS, WORKER0, WORKER1)}
    for task in following:
        call(cluster, task).close()  # a stranger who only looks whether somebody is there
    agreed(cluster, wait_for_followers(cluster, list(following), DEADLINE), following)


def test_the_leader_comes_first(cluster, failed_to_connect):
    gathering = background(wait_for_followers, cluster, [PS, WORKER0, WORKER1], DEADLINE)
    assert failed_to_connect.wait(DEADLINE)
    following = {task: follow(cluster, task) for task in (PS, WORKER0, WORKER1)}
    agreed(cluster, gathering.result(DEADLINE), following)


def test_nobody_starts_before_all_are_there(cluster, failed_to_connect):
    early = follow(cluster, PS)
    gathering = background(wait_for_followers, cluster, [PS, WORKER0], DEADLINE)
    assert failed_to_connect.wait(DEADLINE)  # so the ps was found
    with pytest.raises(TimeoutError):
        early.result(timeout=0.2)
    following = {PS: early, WORKER0: follow(cluster, WORKER0)}
    agreed(cluster, gathering.result(DEADLINE), following)


def test_a_job_of_one(cluster):
    assert wait_for_followers(cluster, [], SHORT) == []


def test_the_port_is_free_for_tensorflow_afterwards(cluster):
    following = follow(cluster, PS)
    lines = wait_for_followers(cluster, [PS], DEADLINE)
    line = following.result(DEADLINE)
    with socket.create_server(("", cluster.port(PS))):
        pass
    lines[0].close()
    line.close()


def test_another_cluster(cluster, capfd):
    other = Cluster({**cluster.jobs, "ps": (*cluster.jobs["ps"], "127.0.0.1:1")}, PS)
    following = background(wait_for_leader, other, CHIEF, DEADLINE)
    with pytest.raises(RendezvousError) as caught:
        wait_for_followers(cluster, [PS], DEADLINE)
    said = str(caught.value)
    assert said.startswith(f"ps 0 at {cluster.address(PS)} was started with another cluster: ")
    assert str(other.spec) in said
    assert str(cluster.spec) in said
    # The task goes on waiting: the right leader may be still to come.
    agreed(cluster, wait_for_followers(other.at(CHIEF), [PS], DEADLINE), {PS: following})
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("ps 0: chief 0 came from 127.0.0.1, ")
    assert "was started with another cluster" in err
    assert err.count("\n") == 1


def test_another_job_at_the_same_addresses(cluster):
    mine, other = (dataclasses.replace(cluster, job_id=job_id) for job_id in ("7.0", "7.1"))
    following = follow(other, PS)
    with pytest.raises(RendezvousError) as caught:
        wait_for_followers(mine, [PS], DEADLINE)
    assert str(caught.value) == f"ps 0 at {cluster.address(PS)} belongs to another job: 7.1, not 7.0"
    agreed(cluster, wait_for_followers(other, [PS], DEADLINE), {PS: following})


@pytest.mark.parametrize("job_ids", [("7.0", ""), ("", "7.0")])
def test_a_job_of_which_only_some_tasks_know_the_name(cluster, job_ids):
    mine, theirs = (dataclasses.replace(cluster, job_id=job_id) for job_id in job_ids)
    following = {PS: follow(theirs, PS)}
    agreed(cluster, wait_for_followers(mine, [PS], DEADLINE), following)


def test_a_task_that_was_started_as_another(cluster):
    jobs = {**cluster.jobs, "worker": cluster.jobs["worker"][::-1]}
    follow(Cluster(jobs, CHIEF), WORKER1)  # listens where the others take worker 0 to be
    with pytest.raises(RendezvousError) as caught:
        wait_for_followers(cluster, [WORKER0], DEADLINE)
    where = cluster.address(WORKER0)
    assert str(caught.value) == f"worker 0 at {where} was started as worker 1, and is taken for worker 0"


def test_other_versions(cluster, monkeypatch):
    def versions():
        mine = threading.current_thread() is threading.main_thread()
        return {"tensorflow": "2.21.0" if mine else "2.20.0", "keras": "3.15.1"}

    monkeypatch.setattr(rendezvous, "versions", versions)
    follow(cluster, PS)
    with pytest.raises(
        RendezvousError, match=rf"ps 0 at {cluster.address(PS)} has other versions: .*2\.20\.0.*2\.21\.0"
    ):
        wait_for_followers(cluster, [PS], DEADLINE)


def test_versions_are_those_that_are_installed():
    import importlib.metadata

    assert rendezvous.versions() == {name: importlib.metadata.version(name) for name in ("tensorflow", "keras")}


@pytest.mark.slow
def test_a_missing_task(cluster):
    follow(cluster, PS)
    with pytest.raises(RendezvousError) as caught:
        wait_for_followers(cluster, [PS, WORKER0, WORKER1], 3.0)
    assert str(caught.value) == f"worker 0 at {cluster.address(WORKER0)} is missing after 3 s: connection refused"


def test_a_host_that_is_not_known(cluster):
    cluster = Cluster({**cluster.jobs, "ps": (f"no-such-host.invalid:{cluster.port(PS)}",)}, CHIEF)
    with pytest.raises(RendezvousError, match=r"ps 0 at .* is missing after 0\.3 s: no such host"):
        wait_for_followers(cluster, [PS], SHORT)


def test_a_missing_leader(cluster):
    with pytest.raises(RendezvousError) as caught:
        wait_for_leader(cluster.at(PS), CHIEF, SHORT)
    assert str(caught.value) == f"ps 0 waited 0.3 s for chief 0 at {cluster.address(CHIEF)}, which did not come"


@pytest.mark.slow
def test_a_leader_that_came_and_waits_for_others(cluster):
    waits = background(wait_for_followers, cluster, [PS, WORKER0], 8.0)
    with pytest.raises(RendezvousError) as caught:
        wait_for_leader(cluster.at(PS), CHIEF, 3.0)
    where = f"chief 0 at {cluster.address(CHIEF)}"
    assert str(caught.value) == f"ps 0 waited 3 s for {where}, which came and still waits for others"
    with pytest.raises(RendezvousError):
        waits.result(DEADLINE)


@pytest.mark.slow
def test_both_say_for_whom_they_wait(cluster, monkeypatch, capfd):
    monkeypatch.setattr(rendezvous, "_QUIET", 0.0)
    with pytest.raises(RendezvousError):
        wait_for_followers(cluster, [WORKER1], 5 * SHORT)
    said = f"chief 0 waits for worker 1 at {cluster.address(WORKER1)}: connection refused"
    assert set(capfd.readouterr().err.splitlines()) == {said}
    with pytest.raises(RendezvousError):
        wait_for_leader(cluster.at(PS), CHIEF, 5 * SHORT)
    said = f"ps 0 waits for chief 0 at {cluster.address(CHIEF)}"
    assert set(capfd.readouterr().err.splitlines()) == {said}


def test_the_server_that_a_coordinator_started_waits_without_a_word(cluster, monkeypatch, capfd):
    monkeypatch.setattr(rendezvous, "_QUIET", 0.0)
    with pytest.raises(RendezvousError):
        wait_for_leader(cluster.at(WORKER0), WORKER0, SHORT)
    assert capfd.readouterr() == ("", "")


STRANGE = {
    "says nothing": b"",
    "garbage": b"\xff\0\x80garbage",
    "http": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    "grpc server": SETTINGS,
    "grpc client": HTTP2,
    "http client": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "tls client": b"\x16\x03\x01\0\xf4\x01\0\0\xf0\x03\x03" + bytes(range(32)),
    "ssh server": b"SSH-2.0-OpenSSH_9.2\r\n",
    "a number": b"42\n",
    "a list": b"[]\n",
    "a string": b'"ok"\n',
    "null": b"null\n",
    "an empty object": b"{}\n",
    "not ok": b'{"ok": false}\n',
    "nested": b"[" * 100_000 + b"\n",
}


@pytest.mark.parametrize("ends", [False, True], ids=["stays", "ends"])
@every_third("says", [*STRANGE.values()], ids=STRANGE.keys())
def test_something_else_listens_at_the_address(cluster, says, ends):
    with Stranger(cluster.port(PS), says, ends=ends), pytest.raises(RendezvousError) as caught:
        wait_for_followers(cluster, [PS], SHORT)
    said = str(caught.value)
    assert said.startswith(f"ps 0 at {cluster.address(PS)} is missing after 0.3 s: ")
    assert "accepts connections, but does not answer" in said or "reset" in said
    assert "\n" not in said


@pytest.mark.parametrize("ends", [False, True], ids=["stays", "ends"])
@pytest.mark.parametrize("says", STRANGE.values(), ids=STRANGE.keys())
def test_somebody_else_calls_a_waiting_task(cluster, says, ends, monkeypatch):
    monkeypatch.setattr(rendezvous, "_ANSWER_TIMEOUT", 0.2)
    following = {PS: follow(cluster, PS)}
    with call(cluster, PS) as stranger:
        stranger.sendall(says)
        if ends:
            stranger.close()
        agreed(cluster, wait_for_followers(cluster, [PS], DEADLINE), following)


def test_strangers_who_stay_and_say_nothing_do_not_hold_up_the_leader(cluster, monkeypatch):
    monkeypatch.setattr(rendezvous, "_ANSWER_TIMEOUT", 1000.0)
    following = {PS: follow(cluster, PS)}
    strangers = [call(cluster, PS) for _ in range(3)]
    agreed(cluster, wait_for_followers(cluster, [PS], DEADLINE), following)
    for stranger in strangers:
        stranger.close()


def test_something_that_never_ends_its_line_is_given_up(cluster, monkeypatch):
    monkeypatch.setattr(rendezvous, "_ANSWER_TIMEOUT", 0.5)
    over = threading.Event()

    def drip():
        with socket.create_server(("127.0.0.1", cluster.port(PS))) as server, server.accept()[0] as connection:
            while not over.wait(0.02):
                with contextlib.suppress(OSError):
                    connection.sendall(b" ")

    background(drip)
    gathering = background(wait_for_followers, cluster, [PS], SHORT)
    with pytest.raises(RendezvousError, match=r"ps 0 at .* is missing after 0\.3 s"):
        gathering.result(DEADLINE)
    over.set()


def test_somebody_who_says_too_much(cluster):
    following = {PS: follow(cluster, PS)}
    with call(cluster, PS) as stranger:
        with contextlib.suppress(ConnectionError):  # it hangs up at some point
            for _ in range(1000):
                stranger.sendall(b"x" * 65536)
        agreed(cluster, wait_for_followers(cluster, [PS], DEADLINE), following)


@pytest.mark.slow
def test_many_who_look_whether_a_port_is_open(cluster):
    following = {PS: follow(cluster, PS)}
    for _ in range(200):
        call(cluster, PS).close()
    agreed(cluster, wait_for_followers(cluster, [PS], DEADLINE), following)


@pytest.mark.slow
def test_two_leaders_at_once(cluster):
    """Both were started for the same task: one of them gets the others, and the other one is told who is missing."""
    following = {PS: follow(cluster, PS), WORKER0: follow(cluster, WORKER0)}
    leaders = [background(wait_for_followers, cluster, list(following), 2.0) for _ in range(2)]
    errors = [leader.exception(DEADLINE) for leader in leaders]
    # Where one looks whether its own address leads to it, the other one finds its port in use.
    assert all(isinstance(error, (RendezvousError, ClusterError)) for error in errors if error)
    won = [leader.result() for leader, error in zip(leaders, errors, strict=True) if not error]
    assert len(won) <= 1
    for lines in won:
        agreed(cluster, lines, following)


def test_what_strangers_say_is_not_repeated_as_it_is(cluster, capfd):
    greeting = {"tf2dist": 1, "from": "\x1b[2J\nps 0: all is well", "to": "x" * 10_000}
    following = {PS: follow(cluster, PS)}
    with call(cluster, PS) as stranger:
        stranger.sendall(json.dumps(greeting).encode() + b"\n")
        assert "error" in json.loads(stranger.makefile().readline())
        agreed(cluster, wait_for_followers(cluster, [PS], DEADLINE), following)
    err = capfd.readouterr().err
    assert (err.count("\n"), "\x1b" in err) == (1, False)
    assert len(err) < 3000
    wrong = json.dumps({"error": "\x1b[2J\n" + "x" * 10_000}).encode() + b"\n"
    with Stranger(cluster.port(WORKER0), wrong), pytest.raises(RendezvousError) as caught:
        wait_for_followers(cluster, [WORKER0], DEADLINE)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 3000


def test_a_greeting_with_nothing_in_it(cluster, capfd):
    following = {PS: follow(cluster, PS)}
    with call(cluster, PS) as stranger:
        stranger.sendall(b'{"tf2dist": 1}\n')
        assert "error" in json.loads(stranger.makefile().readline())
        agreed(cluster, wait_for_followers(cluster, [PS], DEADLINE), following)
    assert "taken for None" in capfd.readouterr().err


def test_a_greeting_in_pieces(cluster):
    following = follow(cluster, PS)
    with call(cluster, PS) as leader:
        for byte in greeting(cluster, PS):
            leader.sendall(bytes([byte]))
        assert json.loads(leader.makefile().readline()) == {"ok": True}
        leader.sendall(b"g")
        leader.sendall(b"o\n")
        following.result(DEADLINE).close()


def test_a_leader_that_ends_before_it_said_go_may_come_again(cluster):
    following = {PS: follow(cluster, PS)}
    for _ in range(2):
        with call(cluster, PS) as leader:
            leader.sendall(greeting(cluster, PS))
            assert json.loads(leader.makefile().readline()) == {"ok": True}
    agreed(cluster, wait_for_followers(cluster, [PS], DEADLINE), following)


def test_a_leader_that_never_says_go(cluster):
    following = follow(cluster, PS, limit=SHORT)
    with call(cluster, PS) as leader:
        leader.sendall(greeting(cluster, PS))
        with pytest.raises(RendezvousError, match=r"ps 0 waited 0\.3 s for chief 0"):
            following.result(DEADLINE)


class ByHand:
    """A task that is played by the test: found by the leader, and then waiting for its word."""

    def __init__(self, cluster, task):
        with socket.create_server(("127.0.0.1", cluster.port(task))) as server:
            server.settimeout(DEADLINE)
            self.connection, _ = server.accept()
        self.connection.settimeout(DEADLINE)
        self.lines = self.connection.makefile("rb")
        assert json.loads(self.lines.readline())["to"] == str(task)
        self.connection.sendall(b'{"ok": true}\n')

    def next(self):
        return self.lines.readline().decode().strip()

    def end(self):
        self.lines.close()
        self.connection.close()


def test_a_task_that_ends_while_others_are_waited_for_may_come_again(cluster, failed_to_connect):
    gathering = background(wait_for_followers, cluster, [PS, WORKER0], DEADLINE)
    ByHand(cluster, PS).end()
    failed_to_connect.clear()
    assert failed_to_connect.wait(DEADLINE)  # the leader has gone on to worker 0
    following = {task: follow(cluster, task) for task in (PS, WORKER0)}
    agreed(cluster, gathering.result(DEADLINE), following)


@pytest.mark.slow
def test_a_task_that_ends_while_others_are_waited_for_and_stays_away(cluster, failed_to_connect):
    gathering = background(wait_for_followers, cluster, [PS, WORKER0], 2.0)
    ByHand(cluster, PS).end()
    failed_to_connect.clear()
    assert failed_to_connect.wait(DEADLINE)
    follow(cluster, WORKER0)
    with pytest.raises(
        RendezvousError, match=rf"ps 0 at {cluster.address(PS)} is missing after 2 s: connection refused"
    ):
        gathering.result(DEADLINE)


def test_tasks_that_were_found_hear_signs_of_life_while_others_are_waited_for(cluster, monkeypatch):
    # The limit of the wait is longer than the grace period: without them the first would think the leader gone.
    monkeypatch.setattr(heartbeat, "PING_INTERVAL", 0.01)
    gathering = background(wait_for_followers, cluster, [PS, WORKER0], DEADLINE)
    early = ByHand(cluster, PS)
    assert [early.next() for _ in range(3)] == ["ping"] * 3
    following = follow(cluster, WORKER0)
    lines = gathering.result(DEADLINE)
    while (word := early.next()) == "ping":
        pass
    assert word == "go"
    early.end()
    for line in (*lines, following.result(DEADLINE)):
        line.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", *["::"] * socket.has_dualstack_ipv6()])
def test_a_port_in_use(cluster, host):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    port, address = cluster.port(PS), cluster.address(PS)
    with socket.create_server((host, port), family=family, dualstack_ipv6=family == socket.AF_INET6):
        for check in (
            lambda: check_port_free(cluster.at(PS)),
            lambda: wait_for_leader(cluster.at(PS), CHIEF, DEADLINE),
        ):
            with pytest.raises(ClusterError, match=rf"port {port} of ps 0 \({address}\) is in use") as caught:
                check()
            assert "\n" not in str(caught.value)
    check_port_free(cluster.at(PS))


def test_the_same_task_started_twice(cluster):
    first = follow(cluster, PS)
    call(cluster, PS).close()
    with pytest.raises(ClusterError, match="is in use on this host"):
        wait_for_leader(cluster.at(PS), CHIEF, DEADLINE)
    agreed(cluster, wait_for_followers(cluster, [PS], DEADLINE), {PS: first})


def test_a_port_that_this_user_may_not_use(cluster, monkeypatch):
    def refused(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket, "create_server", refused)
    with pytest.raises(ClusterError, match=rf"port {cluster.port()} of chief 0 .* cannot be used: Permission denied"):
        check_port_free(cluster)


def leading_from(cluster, address):
    """The cluster with another address for its chief, which leads."""
    return Cluster({**cluster.jobs, "chief": (address,)}, CHIEF)


@pytest.mark.parametrize("others", [[], [PS]], ids=["alone", "with others"])
def test_an_address_of_the_leader_that_no_host_has(cluster, others):
    address = f"no-such-host.invalid:{cluster.port()}"
    expected = rf"chief 0's own address {address} does not lead to this process after {SHORT:g} s: no such host"
    with pytest.raises(RendezvousError, match=expected):
        wait_for_followers(leading_from(cluster, address), others, SHORT)


def test_an_address_of_the_leader_at_which_something_else_answers(cluster, monkeypatch):
    create = socket.create_connection

    def elsewhere(_address, **kwargs):
        return create(("127.0.0.1", cluster.port(WORKER0)), **kwargs)

    with Stranger(cluster.port(WORKER0)):
        monkeypatch.setattr(socket, "create_connection", elsewhere)
        with pytest.raises(RendezvousError, match=r"chief 0's own address .*: another host answers there"):
            wait_for_followers(cluster, [], SHORT)


def test_an_address_of_the_leader_that_is_known_a_little_later(cluster, monkeypatch):
    unknown = [socket.gaierror(socket.EAI_NONAME, "Name or service not known")]
    create = socket.create_connection

    def known_later(*args, **kwargs):
        if unknown:
            raise unknown.pop()
        return create(*args, **kwargs)

    monkeypatch.setattr(socket, "create_connection", known_later)
    assert wait_for_followers(cluster, [], DEADLINE) == []
    assert not unknown
    check_port_free(cluster)  # TensorFlow gets it


@pytest.mark.parametrize("host", ["localhost", *["[::1]"] * socket.has_dualstack_ipv6()])
def test_other_ways_to_write_the_host(cluster, host):
    jobs = {job: tuple(a.replace("127.0.0.1", host) for a in addresses) for job, addresses in cluster.jobs.items()}
    cluster = Cluster(jobs, CHIEF)
    following = {PS: follow(cluster, PS)}
    agreed(cluster, wait_for_followers(cluster, [PS], DEADLINE), following)


def test_from_rendezvous_to_the_end_with_real_processes(cluster):
    code = """
import sys
from tf2dist.cluster import heartbeat, rendezvous, roles, task_monitor
from tf2dist.cluster import Cluster
cluster = Cluster.from_tf_config(sys.argv[1])
line = rendezvous.wait_for_leader(cluster, roles.leader_of(cluster), 20)
line.send("ready")
heartbeat.wait_until_done(line)
"""
    tasks = [PS, WORKER0, WORKER1]
    processes = [subprocess.Popen([sys.executable, "-c", code, cluster.at(task).to_tf_config()]) for task in tasks]
    try:
        leader = task_monitor.LeaderMonitor(wait_for_followers(cluster, tasks, DEADLINE), LossPolicy(False), print)
        leader.wait_ready(DEADLINE)
        leader.end(together=False)
        for line in leader.connections:
            line._socket.shutdown(socket.SHUT_RDWR)  # as when this process ends
        assert [process.wait(DEADLINE) for process in processes] == [0, 0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_an_agreed_line_serves_until_done(cluster):
    following = follow(cluster, PS)
    [line] = wait_for_followers(cluster, [PS], DEADLINE)
    serving = background(wait_until_done, following.result(DEADLINE))
    line.send("done")
    line.close()
    serving.result(DEADLINE)


def test_a_task_that_was_started_again_is_found(cluster, failed_to_connect):
    found = background(rendezvous.wait_for_replacement, cluster, WORKER0, threading.Event())
    assert failed_to_connect.wait(DEADLINE)
    follower = follow(cluster, WORKER0)
    line = found.result(DEADLINE)
    line.send("go")
    agreed(cluster, [line], {WORKER0: follower})


@pytest.mark.slow
def test_a_task_that_was_started_again_with_another_cluster_is_named_once(cluster, capfd):
    other = Cluster({**cluster.jobs, "ps": (*cluster.jobs["ps"], "127.0.0.1:1")}, WORKER0)
    follower, over = background(wait_for_leader, other, CHIEF, 2.0), threading.Event()
    looking = background(rendezvous.wait_for_replacement, cluster, WORKER0, over)
    with pytest.raises(RendezvousError):
        follower.result(DEADLINE)
    over.set()
    assert looking.result(DEADLINE) is None
    err = capfd.readouterr().err
    assert err.count("tf2dist: worker 0 at ") == 1
    assert err.count("worker 0: chief 0 came from 127.0.0.1") == 1


def test_nobody_is_looked_for_when_the_job_is_over(cluster):
    over = threading.Event()
    over.set()
    assert rendezvous.wait_for_replacement(cluster, WORKER0, over) is None


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_a_time_limit_in_the_environment(monkeypatch, text):
    monkeypatch.setenv("TF2DIST_START_TIMEOUT", "2.5")
    assert rendezvous.start_timeout() == 2.5
    monkeypatch.setenv("TF2DIST_START_TIMEOUT", text)
    with pytest.raises(ClusterError, match="TF2DIST_START_TIMEOUT is"):
        rendezvous.start_timeout()
    monkeypatch.delenv("TF2DIST_START_TIMEOUT")
    assert rendezvous.start_timeout() == rendezvous.START_TIMEOUT
