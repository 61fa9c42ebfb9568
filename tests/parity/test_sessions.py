"""Sessions that look after a training, their hooks, and the callbacks of today."""

import pathlib

import numpy as np
import pytest

from tests.parity import regression, tf1
from tests.parity.processes import alone, cluster, tf1_cluster

pytestmark = pytest.mark.slow

EVERY, STEPS = 4, 10


def network(tf, rate=0.1):
    """The loss and the train operation on one batch after the other, by the global step."""
    step = tf.train.get_or_create_global_step()
    x, y = (tf.constant(part) for part in regression.data())
    start = tf.cast(step % regression.BATCHES, tf.int32) * regression.BATCH
    loss = regression.tf1_loss(tf, x[start : start + regression.BATCH], y[start : start + regression.BATCH])
    return loss, tf.train.GradientDescentOptimizer(rate).minimize(loss, global_step=step), step


def supervised_in_tf1(logdir):
    """Two lives of one training; each makes half of the steps, so far as it finds them not made."""
    tf = tf1.begin()
    seen = []
    for life in (1, 2):
        tf.reset_default_graph()
        _, train, step = network(tf)
        # Its own thread could save an early step after our last one.
        supervisor = tf.train.Supervisor(logdir=logdir, global_step=step, save_model_secs=0, summary_op=None)
        with supervisor.managed_session() as session:
            seen.append(int(session.run(step)))
            while not supervisor.should_stop() and session.run(step) < life * STEPS // 2:
                session.run(train)
            supervisor.saver.save(session, supervisor.save_path, global_step=step)
            weights, made = session.run([tf.trainable_variables(), step])
    return seen, int(made), weights


def monitored_in_tf1(logdir):
    tf = tf1.begin()
    seen = []
    for life in (1, 2):
        tf.reset_default_graph()
        _, train, step = network(tf)
        hooks = [tf.train.StopAtStepHook(last_step=life * STEPS // 2)]
        with tf.train.MonitoredTrainingSession(checkpoint_dir=logdir, hooks=hooks) as session:
            seen.append(int(tf1.without_hooks(session, step)))
            while not session.should_stop():
                session.run(train)
    reader = tf.train.load_checkpoint(logdir)
    weights = [reader.get_tensor(v.op.name) for v in tf.trainable_variables()]
    return seen, reader.get_tensor("global_step").item(), weights


def resumed_here(logdir):
    import keras

    import tf2dist

    seen = []

    class Life(keras.callbacks.Callback):
        """Notes at which update it began, and ends after so many of them, in the middle of the epoch."""

        def __init__(self, updates):
            super().__init__()
            self.updates = updates

        def on_epoch_begin(self, epoch, logs=None):
            seen.append(tf2dist.updates(self.model))

        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = tf2dist.updates(self.model) >= self.updates

    for life in (1, 2):
        callbacks = [tf2dist.Checkpoint(logdir), Life(life * STEPS // 2)]
        model = regression.fit(lambda: keras.optimizers.SGD(0.1), STEPS, callbacks=callbacks, steps_per_execution=1)
    return seen, tf2dist.updates(model), regression.weights(model)


@pytest.fixture(scope="module")
def resumed(tf, tmp_path_factory):
    return resumed_here(str(tmp_path_factory.mktemp("resumed")))


def test_supervisor(tmp_path, resumed):
    """A training that is started again goes on from its checkpoint, to the same weights."""
    seen, made, theirs = alone(supervised_in_tf1, str(tmp_path))
    assert resumed[:2] == (seen, made) == ([0, STEPS // 2], STEPS)
    regression.assert_close(resumed[2], theirs)


def test_monitored_training_session(tmp_path, resumed):
    """The same of the session that restores and saves by itself."""
    seen, made, theirs = alone(monitored_in_tf1, str(tmp_path))
    assert resumed[:2] == (seen, made) == ([0, STEPS // 2], STEPS)
    regression.assert_close(resumed[2], theirs)


def hooked_in_tf1(logdir):
    """What every hook did, and when: one training with all of them."""
    tf = tf1.begin()
    loss, train, _ = network(tf)
    counted, saved = [], []

    class Counter(tf.train.StepCounterHook):
        def _log_and_record(self, elapsed_steps, elapsed_time, global_step):
            counted.append(int(global_step))

    class Listener(tf.train.CheckpointSaverListener):
        def after_save(self, session, global_step_value):
            saved.append(int(global_step_value))

    hooks = [
        tf.train.StopAtStepHook(last_step=STEPS),
        Counter(every_n_steps=EVERY, output_dir=logdir),
        tf.train.CheckpointSaverHook(logdir, save_steps=EVERY, listeners=[Listener()]),
        tf.train.SummarySaverHook(1, output_dir=logdir, summary_op=tf.summary.scalar("cost", loss)),
    ]
    with tf.train.MonitoredSession(tf.train.ChiefSessionCreator(), hooks) as session:
        while not session.should_stop():
            session.run(train)
    (file,) = pathlib.Path(logdir).glob("events*")
    events = [event for event in tf.train.summary_iterator(str(file)) if event.HasField("summary")]
    scalars = {e.step: e.summary.value[0].simple_value for e in events if e.summary.value[0].tag == "cost"}
    return counted, saved, scalars


def called_back_here(directory):
    import keras
    import tensorflow as tf

    import tf2dist
    from tf2dist.training import checkpoint_files
    from trainers.common.progress_lines import StepLines
    from trainers.common.summaries import Summaries

    lines = []
    callbacks = [
        tf2dist.Checkpoint(directory, every_steps=EVERY, keep=10),
        StepLines(lines.append, EVERY, regression.BATCH, STEPS),
        Summaries(directory, EVERY),
    ]
    regression.fit(lambda: keras.optimizers.SGD(0.1), STEPS, callbacks=callbacks, steps_per_execution=1)
    (file,) = pathlib.Path(directory).glob("events*")
    scalars = {}
    for event in tf.compat.v1.train.summary_iterator(str(file)):
        for value in event.summary.value:
            if value.tag == "cost":
                scalars[event.step] = float(tf.make_ndarray(value.tensor))
    saved = [step_of(path) for path in checkpoint_files.list_checkpoints(directory)]
    return [int(line.split()[1]) for line in lines], saved, scalars


def step_of(path):
    """The step in the name of a checkpoint, "checkpoint-40"."""
    return int(pathlib.Path(path).name.rpartition("-")[2])


@pytest.fixture(scope="module")
def hooked(tf, tmp_path_factory):
    """What hooks did in TensorFlow 1, and callbacks here: steps counted, steps saved, and scalars by step."""
    theirs = alone(hooked_in_tf1, str(tmp_path_factory.mktemp("theirs")))
    return theirs, called_back_here(str(tmp_path_factory.mktemp("ours")))


def test_step_counter(hooked):
    """A line every so many steps. TensorFlow 1 counted from the first step on, so it was one late."""
    (theirs, *_), (ours, *_) = hooked
    assert theirs == [5, 9]
    assert ours == [4, 8]


MEANWHILE = 3  # updates of the other worker while TensorFlow 1 saves


def saved_beside_a_worker_in_tf1(directory):
    """Steps and kernels of checkpoints, by the step in their names; worker 1 trains only while worker 0 saves."""
    tf = tf1.begin()
    server, cluster, _, index = tf1.serve(tf)
    with tf.device(tf.train.replica_device_setter(worker_device=f"/job:worker/task:{index}", cluster=cluster)):
        _, _, train = regression.tf1_push(tf)
    (ask, asked), (say, said) = ((q.enqueue(0), q.dequeue()) for q in (tf1.queue(tf, "ask"), tf1.queue(tf, "say")))

    class Listener(tf.train.CheckpointSaverListener):
        def before_save(self, session, global_step_value):
            if global_step_value:  # the other one has begun
                session.run(ask)
                session.run(said)

    hooks = [] if index else [tf.train.CheckpointSaverHook(directory, save_steps=EVERY, listeners=[Listener()])]
    with tf1.monitored(tf, server, index, hooks) as session:
        for _ in range(2 if index else EVERY):  # asked at step EVERY, and at the end
            if index:
                tf1.without_hooks(session, asked)
                for _ in range(MEANWHILE):
                    session.run(train)
                tf1.without_hooks(session, say)
            else:
                session.run(train)
    paths = [str(path.with_suffix("")) for path in pathlib.Path(directory).glob("*.index")]
    read = {step_of(path): tf.train.load_checkpoint(path) for path in paths}
    return {step: (r.get_tensor("global_step").item(), r.get_tensor("kernel")) for step, r in read.items()}


def saved_beside_workers_here(directory, updates):
    import h5py

    import tf2dist
    from tf2dist.training import checkpoint_files

    callbacks = [tf2dist.Checkpoint(directory, every_steps=EVERY, keep=updates)]
    regression.push(tf2dist.join("ps"), updates, callbacks=callbacks, steps_per_execution=1)
    saved = {}
    for path in checkpoint_files.list_checkpoints(directory):
        with h5py.File(f"{path}/model.weights.h5") as file:
            saved[step_of(path)] = int(file["optimizer/vars/0"][()]), file["layers/dense/vars/0"][()]
    return saved


def test_checkpoint_saver(hooked, tmp_path):
    """Every so many steps and at the end; TensorFlow 1 also before the first step.

    With several workers, those of TensorFlow 1 trained on while one saved: there is more in a file than its name says.
    """
    (_, theirs, _), (_, ours, _) = hooked
    assert theirs == [0, *ours]
    assert ours == [EVERY, 2 * EVERY, STEPS]
    saved = tf1_cluster(saved_beside_a_worker_in_tf1, {"ps": 1, "worker": 2}, str(tmp_path / "theirs"))["worker 0"]
    assert {name: step for name, (step, _) in saved.items()} == {
        0: 0, EVERY: EVERY + MEANWHILE, EVERY + MEANWHILE: EVERY + 2 * MEANWHILE,
    }  # fmt: skip
    jobs, updates = {"ps": 1, "chief": 1, "worker": 2}, 10 * EVERY
    saved_here = cluster(saved_beside_workers_here, jobs, str(tmp_path / "ours"), updates)["chief 0"]
    assert 0 == min(saved_here) < max(saved_here) == updates  # with servers, which may be lost, it begins with one, too
    assert len(saved_here) > 2
    for name, (step, kernel) in saved_here.items():
        assert step == name
        regression.assert_pushed(kernel, step)
    for step, kernel in saved.values():
        regression.assert_pushed(kernel, step)


def test_summary_saver(hooked):
    """Scalars of the same steps; those of logs are means since the beginning of the epoch."""
    (*_, theirs), (*_, ours) = hooked
    assert list(ours) == list(theirs) == list(range(1, STEPS + 1))
    means = np.cumsum(list(theirs.values())) / np.arange(1, STEPS + 1)
    np.testing.assert_allclose(list(ours.values()), means, rtol=1e-5)


def exploded_in_tf1():
    tf = tf1.begin()
    loss, train, _ = network(tf, rate=1e30)
    ran = 0
    try:
        with tf.train.MonitoredSession(hooks=[tf.train.NanTensorHook(loss)]) as session:
            while ran < 50:
                session.run(train)
                ran += 1
    except tf.train.NanLossDuringTrainingError as error:
        return ran, str(error)


def exploded_here():
    import keras

    ran = []

    class Count(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            ran.append(batch)

    try:
        regression.fit(lambda: keras.optimizers.SGD(1e30), 50, callbacks=[Count()], steps_per_execution=1)
    except ValueError as error:
        return len(ran), str(error)


def test_nan(tf):
    """Training ends with an error after the first step whose loss is no number."""
    (ours, error), (theirs, their_error) = exploded_here(), alone(exploded_in_tf1)
    assert ours == theirs == 2
    assert "NaN" in their_error
    assert error.startswith("the loss is NaN after 3 updates")


def hooks_in_tf1():
    tf = tf1.begin()
    _, train, _ = network(tf)
    called = []

    class Hook(tf.train.SessionRunHook):
        def after_create_session(self, session, coord):
            called.append("begin")

        def before_run(self, run_context):
            called.append("before")

        def after_run(self, run_context, run_values):
            called.append("after")

        def end(self, session):
            called.append("end")

    with tf.train.MonitoredSession(hooks=[Hook(), tf.train.StopAtStepHook(num_steps=3)]) as session:
        while not session.should_stop():
            session.run(train)
    return called


def callbacks_here():
    import keras

    called = []

    class Callback(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            called.append("begin")

        def on_train_batch_begin(self, batch, logs=None):
            called.append("before")

        def on_train_batch_end(self, batch, logs=None):
            called.append("after")

        def on_train_end(self, logs=None):
            called.append("end")

    regression.fit(lambda: keras.optimizers.SGD(0.1), 3, callbacks=[Callback()], steps_per_execution=1)
    return called


def test_hooks(tf):
    """Called at the same moments."""
    assert callbacks_here() == alone(hooks_in_tf1) == ["begin", *["before", "after"] * 3, "end"]
