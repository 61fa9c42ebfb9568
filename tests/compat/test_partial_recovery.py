"""A coordinator that follows which workers are there, with TensorFlow's connections replaced by a list."""

import threading
from types import SimpleNamespace

import pytest

from tests.threads import DEADLINE, background, stays, wait_until

pytestmark = pytest.mark.timeout(60)
ADDRESSES = {0: "a:1", 1: "b:1", 2: "c:1"}


class Presence:
    def __init__(self, starts):
        self.starts, self.connected, self._callbacks, self.silent = dict(starts), None, [], set()
        self.servers_answer = True

    def present(self):
        return dict(self.starts)

    def wait_for_change(self, known, limit):
        return dict(self.starts)

    def answer(self, workers):
        return {worker: starts for worker, starts in workers.items() if worker not in self.silent}

    def parameter_servers_answer(self):
        return self.servers_answer

    def on_change(self, callback):
        self._callbacks.append(callback)

    def note_connected(self, workers):
        self.connected = dict(workers)

    def become(self, **starts):
        self.starts = {int(name[1:]): n for name, n in starts.items()}
        for callback in self._callbacks:
            callback()


class Worker:
    """What the handler does with a worker's resources."""

    def __init__(self):
        self.did = []

    def _on_resource_closure_failure(self, error):
        assert "/job:worker" in str(error)  # by which upstream knows whose error it is
        self.did.append("lost")

    def _on_worker_recovery(self):
        self.did.append("recovered")


def server_def_of(workers):
    import tensorflow as tf

    spec = {"chief": ["x:1"], "ps": ["y:1"], "worker": {worker: ADDRESSES[worker] for worker in workers}}
    cluster = tf.train.ClusterSpec(spec).as_cluster_def()
    return tf.train.ServerDef(cluster=cluster, job_name="chief", task_index=0, protocol="grpc")


def workers_of(server_def):
    return {index: at for job in server_def.cluster.job if job.name == "worker" for index, at in job.tasks.items()}


@pytest.fixture
def updates(tf, monkeypatch):
    """The workers of each definition of the cluster that TensorFlow was given; an error in `fails` is raised."""
    from tensorflow.python.eager import context

    found = SimpleNamespace(made=[], fails=[], refuses=None, last=server_def_of([0, 1]))

    def update(server_def):
        if found.fails:
            raise found.fails.pop()
        if found.refuses in workers_of(server_def).values():
            raise tf.errors.InternalError(None, None, "something else")
        found.last = server_def
        found.made.append(workers_of(server_def))

    devices = lambda device_type=None: []  # noqa: E731
    fake = SimpleNamespace(update_server_def=update, get_server_def=lambda: found.last, list_logical_devices=devices)
    monkeypatch.setattr(context, "context", lambda: fake)
    return found


@pytest.fixture
def followed(tf, updates):
    """A handler that is connected to workers 0 and 1 of three, with what it uses."""
    from tf2dist.compat.partial_recovery import PartialRecovery, WorkerGate

    presence, gate = Presence({0: 1, 1: 1}), WorkerGate([0, 1])
    queue = SimpleNamespace(_cancellation_mgr=SimpleNamespace(is_cancelled=False))
    cluster = SimpleNamespace(
        workers=[Worker() for _ in ADDRESSES],
        closure_queue=queue,
        _record_and_ignore_transient_ps_failure=lambda error: False,
        _record_and_ignore_transient_timeouts=lambda error: False,
    )
    handler = PartialRecovery(updates.last, cluster, presence, {0: 1, 1: 1}, gate)
    handler.begin(ADDRESSES, 0)
    yield SimpleNamespace(handler=handler, presence=presence, gate=gate, workers=cluster.workers)
    handler.stop()


def test_upstream_connects_to_all_workers_or_none(tf, updates):
    """Fails when `tf2dist.compat.partial_recovery` may be simpler."""
    from tensorflow.python.distribute.coordinator import cluster_coordinator

    queue = SimpleNamespace(_cancellation_mgr=SimpleNamespace(is_cancelled=False))
    everything = server_def_of(ADDRESSES)
    upstream = cluster_coordinator.WorkerPreemptionHandler(everything, SimpleNamespace(closure_queue=queue))
    upstream._cluster_due_for_update_or_finish.set()
    wait_until(lambda: updates.made)
    upstream.stop()
    assert updates.made[0] == ADDRESSES


def test_servers_that_were_started_again_are_connected_to(tf, followed, updates):
    """Workers keep what they hold, and are used meanwhile; one that was lost is none of those that are connected to."""
    followed.handler.reconnect()
    assert updates.made == [{0: "a:1", 1: "b:1"}]
    assert followed.workers[0].did == followed.workers[1].did == []
    assert followed.gate.enter(0)
    followed.gate.leave(0)


def test_a_worker_that_was_lost_with_a_server_is_used_when_it_is_back(followed, updates):
    """Whichever of the two is connected to first."""
    followed.presence.starts = {0: 1, 1: 2}
    followed.handler.reconnect()
    assert updates.made[0] == {0: "a:1"}
    assert followed.workers[1].did[0] == "lost"
    wait_until(lambda: followed.gate.enter(1))
    assert updates.made[-1] == {0: "a:1", 1: "b:1"}
    assert followed.workers[1].did == ["lost", "recovered"]
    assert followed.workers[0].did == []


@pytest.mark.parametrize("missing", ["server", "worker", "all"])
def test_nothing_is_connected_to_while_a_server_is_silent(tf, followed, updates, missing):
    """TensorFlow would wait for it, however long."""
    followed.presence.servers_answer = missing != "server"
    followed.presence.silent = {"server": set(), "worker": {1}, "all": {0, 1}}[missing]
    with pytest.raises(tf.errors.UnavailableError, match="not all servers answer"):
        followed.handler.reconnect()
    assert updates.made == []


def test_a_worker_does_not_join_while_a_parameter_server_is_missing(followed, updates):
    followed.presence.servers_answer = False
    followed.presence.become(w0=1, w1=1, w2=1)
    assert stays(background(followed.gate.wait_until_open, 2, lambda: False))
    assert updates.made == []
    followed.presence.servers_answer = True
    wait_until(lambda: followed.gate.enter(2))


def test_a_worker_joins(followed, updates):
    assert followed.workers[2].did == ["lost"]  # what is made for all workers is made there when it comes
    assert not followed.gate.enter(2)
    followed.presence.become(w0=1, w1=1, w2=1)
    wait_until(lambda: followed.gate.enter(2))
    assert updates.made == [ADDRESSES]
    assert followed.presence.connected == {0: 1, 1: 1, 2: 1}
    assert followed.workers[2].did == ["lost", "recovered"]
    assert followed.workers[0].did == followed.workers[1].did == []


def test_an_idle_worker_is_lost_and_back_while_another_one_is_missing(followed, updates):
    followed.presence.become(w0=1)
    wait_until(lambda: followed.workers[1].did == ["lost"])
    assert not followed.gate.enter(1)
    followed.presence.become(w1=2)
    wait_until(lambda: followed.gate.enter(1))
    assert updates.made == [{1: "b:1"}]  # not for the loss alone
    assert followed.workers[1].did == ["lost", "recovered"]
    assert followed.workers[0].did == ["lost"]
    followed.presence.become(w0=2, w1=2)
    wait_until(lambda: followed.gate.enter(0))
    assert updates.made[1:] == [{0: "a:1", 1: "b:1"}]


def test_one_that_was_started_again_unseen_is_connected_to_again(followed, updates):
    followed.presence.become(w0=1, w1=2)
    wait_until(lambda: followed.presence.connected == {0: 1, 1: 2})
    assert updates.made == [{0: "a:1", 1: "b:1"}]
    assert followed.workers[1].did == ["lost", "recovered"]


def fails_once(tf, followed, did):
    """What a worker's thread does whose call fails; it has entered by the gate."""
    with followed.handler.wait_on_failure(
        on_failure_fn=lambda error: did.append("failed"),
        on_recovery_fn=lambda: did.append("goes on"),
        worker_device_name="/job:worker/replica:0/task:1",
    ):
        raise tf.errors.UnavailableError(None, None, "/job:worker/replica:0/task:1: Socket closed")


def test_a_worker_whose_call_has_failed_waits_for_its_own_return(tf, followed, updates):
    did = []
    assert followed.gate.enter(1)
    followed.presence.starts = {0: 1}
    thread = background(fails_once, tf, followed, did)
    assert stays(thread)
    assert did == ["failed"]
    followed.presence.become(w0=1, w1=2)
    thread.result(DEADLINE)
    assert did == ["failed", "goes on"]
    assert followed.workers[1].did == []  # it has done that itself


def test_a_call_that_has_failed_is_made_again_where_the_worker_lives(tf, followed, updates):
    did = []
    assert followed.gate.enter(1)
    background(fails_once, tf, followed, did).result(DEADLINE)
    assert did == ["failed", "goes on"]
    assert updates.made == []


def test_calls_of_a_connected_worker_that_go_on_failing_have_the_connection_made_anew(tf, followed, updates):
    did = []
    for _ in range(2):
        assert followed.gate.enter(1)
        background(fails_once, tf, followed, did).result(DEADLINE)
    assert did == ["failed", "goes on"] * 2
    assert updates.made == [{0: "a:1", 1: "b:1"}]


@pytest.mark.parametrize("then", ["answers", "is lost"])
def test_where_a_used_one_does_not_answer_others_wait_for_that(followed, updates, caplog, then):
    """TensorFlow would wait for it, for ever. It is used meanwhile: it may be busy."""
    followed.presence.silent = {1}
    followed.presence.become(w0=1, w1=1, w2=1)
    wait_until(lambda: caplog.messages)
    assert stays(background(wait_until, lambda: updates.made))
    assert caplog.messages == ["tf2dist: worker 1 must answer, or count as lost, before others that have come are used"]
    assert followed.gate.is_open(1)
    assert followed.workers[1].did == []
    if then == "answers":
        followed.presence.silent = set()
    else:
        followed.presence.become(w0=1, w2=1)
    wait_until(lambda: followed.gate.is_open(2))
    assert updates.made == [ADDRESSES if then == "answers" else {0: "a:1", 2: "c:1"}]


def test_one_that_comes_and_does_not_answer_is_not_waited_for(followed, updates):
    followed.presence.silent = {2}
    followed.presence.become(w0=1, w1=2, w2=1)
    wait_until(lambda: followed.presence.connected == {0: 1, 1: 2})
    assert stays(background(wait_until, lambda: len(updates.made) > 1))
    assert updates.made == [{0: "a:1", 1: "b:1"}]
    assert not followed.gate.is_open(2)
    followed.presence.silent = set()
    wait_until(lambda: followed.gate.is_open(2))
    assert updates.made[-1] == ADDRESSES


def test_one_that_cannot_be_connected_to_does_not_keep_out_others(tf, followed, updates, caplog, monkeypatch):
    monkeypatch.setattr(updates, "refuses", "c:1")
    followed.presence.become(w0=1, w1=2, w2=1)
    wait_until(lambda: followed.presence.connected == {0: 1, 1: 2})
    assert stays(background(wait_until, lambda: followed.gate.is_open(2)))
    assert caplog.messages == ["tf2dist: cannot connect to the workers that are there: something else"]
    assert followed.handler._error_from_recovery is None  # of no call
    monkeypatch.setattr(updates, "refuses", None)
    wait_until(lambda: followed.gate.is_open(2))
    assert updates.made[-1] == ADDRESSES


def test_no_cluster_without_workers_is_asked_for(tf, followed, updates):
    """Both are lost; who comes cannot be connected to, and then does not answer."""
    updates.refuses = "c:1"
    followed.presence.become(w2=1)
    wait_until(lambda: followed.handler._broken)
    followed.presence.silent = {2}
    assert stays(background(wait_until, lambda: updates.made))
    updates.refuses = None
    followed.presence.silent = set()
    wait_until(lambda: followed.gate.is_open(2))
    assert updates.made == [{2: "c:1"}]


def test_a_look_that_fails_is_not_the_last_one(followed, updates, caplog, monkeypatch):
    monkeypatch.setattr(followed.presence, "answer", lambda workers: 1 / 0)
    followed.presence.become(w0=1, w1=1, w2=1)
    wait_until(lambda: caplog.messages)
    assert caplog.messages == ["tf2dist: cannot look for workers that have come: division by zero"]
    monkeypatch.undo()


def test_one_with_other_gpus_is_not_used(tf, followed, updates, monkeypatch, caplog):
    gpu = SimpleNamespace(name="/job:worker/replica:0/task:2/device:GPU:0")
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [gpu])
    followed.presence.become(w0=1, w1=1, w2=1)
    wait_until(lambda: updates.made == [ADDRESSES])
    wait_until(lambda: followed.presence.connected == {0: 1, 1: 1})
    assert not followed.gate.enter(2)
    assert caplog.messages == ["tf2dist: worker 2 has 1 GPUs, and those before have 0; it is not used"]
    followed.presence.become(w1=1, w2=1)
    wait_until(lambda: followed.workers[0].did == ["lost"])
    assert len(updates.made) == 1  # nor tried again, but when it is started again
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [])
    followed.presence.become(w1=1, w2=2)
    wait_until(lambda: followed.gate.is_open(2))


def test_an_error_of_an_update_is_over_with_the_next_one(tf, followed, updates):
    """Nobody may have waited for it."""
    updates.fails.append(tf.errors.InternalError(None, None, "something else"))
    followed.presence.become(w0=1, w1=1, w2=1)
    wait_until(lambda: followed.gate.enter(2))
    did = []
    assert followed.gate.enter(1)
    background(fails_once, tf, followed, did).result(DEADLINE)
    assert did == ["failed", "goes on"]


def test_whatever_the_call_of_a_lost_worker_meets_is_its_loss(tf, followed, updates):
    did = []

    def fails_late():
        assert followed.gate.enter(1)
        with followed.handler.wait_on_failure(
            on_failure_fn=did.append,
            on_recovery_fn=lambda: did.append("goes on"),
            worker_device_name="/job:worker/replica:0/task:1",
        ):
            followed.presence.become(w0=1)
            wait_until(lambda: not followed.gate.is_open(1))
            raise tf.errors.InvalidArgumentError(None, None, "unknown device")

    thread = background(fails_late)
    wait_until(lambda: did)
    assert "/job:worker" in str(did[0])
    followed.presence.become(w0=1, w1=2)
    thread.result(DEADLINE)
    assert did[1:] == ["goes on"]
    assert followed.workers[1].did == []


def test_no_worker_is_taken_out_while_it_runs_something(followed, updates):
    """But for one whose call does not end."""
    assert followed.gate.enter(1)
    followed.presence.become(w0=1, w2=1)
    update = background(wait_until, lambda: updates.made)
    assert stays(update)
    followed.gate.leave(1)
    update.result(DEADLINE)
    assert updates.made == [{0: "a:1", 2: "c:1"}]
    assert followed.workers[1].did == ["lost"]


def test_a_call_of_a_lost_worker_that_does_not_end_is_not_waited_for(tf, followed, updates, monkeypatch):
    from tf2dist.compat import partial_recovery

    monkeypatch.setattr(partial_recovery, "_FAILURE_SECONDS", 0.1)
    assert followed.gate.enter(1)
    followed.presence.become(w0=1, w2=1)
    wait_until(lambda: followed.gate.enter(2))
    assert followed.workers[1].did == []
    followed.gate.leave(1)
    wait_until(lambda: followed.workers[1].did == ["lost"])


def test_without_any_worker_the_cluster_stays_as_it_was(followed, updates):
    followed.presence.become()
    followed.presence.become(w2=1)
    wait_until(lambda: followed.gate.enter(2))
    assert updates.made == [{2: "c:1"}]
    assert [worker.did for worker in followed.workers] == [["lost"], ["lost"], ["lost", "recovered"]]


def test_an_update_that_fails_since_a_worker_is_lost_is_made_again(tf, followed, updates):
    updates.fails.append(tf.errors.UnavailableError(None, None, "/job:worker/replica:0/task:2: Connection refused"))
    followed.presence.become(w0=1, w1=1, w2=1)
    wait_until(lambda: followed.gate.enter(2))
    assert updates.made == [ADDRESSES]


def test_where_a_server_is_lost_those_who_wait_have_the_error(tf, followed, updates):
    updates.fails.append(tf.errors.UnavailableError(None, None, "/job:ps/replica:0/task:0: Connection refused"))
    assert followed.gate.enter(1)
    background(fails_once, tf, followed, []).result(DEADLINE)
    assert followed.gate.enter(1)
    with pytest.raises(tf.errors.UnavailableError, match="/job:ps"):
        fails_once(tf, followed, [])


def test_the_gate_ends_a_wait_that_is_over(tf):
    from tf2dist.compat.partial_recovery import WorkerGate

    gate, over = WorkerGate([]), threading.Event()
    waiting = background(gate.wait_until_open, 0, over.is_set)
    assert stays(waiting)
    over.set()
    waiting.result(DEADLINE)
    assert not gate.enter(0)
    assert WorkerGate().enter(5)  # without a handler all workers are used


def test_a_strategy_is_connected_to_some(tf, monkeypatch):
    from tensorflow.python.eager import remote

    from tf2dist.compat.partial_recovery import connecting_to

    found = []
    monkeypatch.setattr(remote, "connect_to_cluster", lambda spec, **kwargs: found.append((spec.as_dict(), kwargs)))
    spec = tf.train.ClusterSpec({"ps": ["y:1"], "worker": list(ADDRESSES.values())})
    with connecting_to([0, 2]):
        remote.connect_to_cluster(spec, job_name="chief")
    remote.connect_to_cluster(spec, job_name="chief")
    assert found[0] == ({"ps": ["y:1"], "worker": {0: "a:1", 2: "c:1"}}, {"job_name": "chief"})
    assert found[1][0]["worker"] == list(ADDRESSES.values())
