"""What a training writes: checkpoints and summaries; and how a program reads its command."""

import pathlib
import re

import numpy as np
import pytest

from tests.parity import regression, tf1
from tests.parity.processes import alone, caught

pytestmark = pytest.mark.slow

STEPS = 6


def saved_in_tf1(directory):
    tf = tf1.begin()
    x, y = (tf.constant(part) for part in regression.batch(0))
    step = tf.train.get_or_create_global_step()
    train = tf.train.MomentumOptimizer(0.05, 0.9).minimize(regression.tf1_loss(tf, x, y), global_step=step)
    saver = tf.train.Saver(max_to_keep=2)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for number in range(STEPS):
            session.run(train)
            saver.save(session, f"{directory}/model.ckpt", global_step=number + 1)
    path = tf.train.latest_checkpoint(directory)
    return (
        pathlib.Path(path).name,
        len(list(pathlib.Path(directory).glob("*.index"))),
        {name: tf.train.load_variable(path, name) for name, _ in tf.train.list_variables(path)},
    )


def saved_here(directory):
    import h5py
    import keras

    import tf2dist
    from tf2dist.training import checkpoint_files

    x, y = regression.batch(0)
    with tf2dist.make_strategy("one").scope():
        model = regression.model(keras.optimizers.SGD(0.05, momentum=0.9))
    callback = tf2dist.Checkpoint(directory, every_steps=1, keep=2)
    tf2dist.fit(model, (x, y), batch_size=len(x), steps_per_epoch=STEPS, callbacks=[callback], steps_per_execution=1)
    paths, found = checkpoint_files.list_checkpoints(directory), {}
    with h5py.File(f"{paths[-1]}/model.weights.h5") as file:
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return pathlib.Path(paths[-1]).name, len(paths), found


def test_saver(tf, tmp_path):
    """The same arrays under other names: a variable's name there, its place in the model here."""
    (tmp_path / "1").mkdir()
    name, kept, theirs = alone(saved_in_tf1, str(tmp_path / "1"))
    our_name, our_kept, ours = saved_here(str(tmp_path / "2"))
    assert (name, our_name) == ("model.ckpt-6", "checkpoint-6")
    assert kept == our_kept == 2
    assert sorted(theirs) == ["bias", "bias/Momentum", "global_step", "kernel", "kernel/Momentum"]
    for mine, name in (("layers/dense/vars/0", "kernel"), ("layers/dense/vars/1", "bias")):
        np.testing.assert_allclose(ours.pop(mine), theirs[name], rtol=2e-5)
    assert ours.pop("optimizer/vars/0") == theirs["global_step"] == STEPS
    rate = ours.pop("optimizer/vars/1")
    # Keras keeps what it adds to the weights, TensorFlow 1 the sum of gradients that the rate is still to be put on.
    for mine, name in (("optimizer/vars/2", "kernel"), ("optimizer/vars/3", "bias")):
        np.testing.assert_allclose(ours.pop(mine), -rate * theirs[f"{name}/Momentum"], rtol=2e-5)
    assert ours == {}


def summarized_in_tf1(directory):
    """Of each step: the loss and the gradients before the update, the weights after it."""
    tf = tf1.begin()
    x, y = tf.placeholder(tf.float32, [None, 3]), tf.placeholder(tf.float32, [None, 1])
    loss = regression.tf1_loss(tf, x, y)
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    gradients = optimizer.compute_gradients(loss)
    with tf.control_dependencies([optimizer.apply_gradients(gradients)]):
        tf.summary.scalar("cost", loss)
        for gradient, variable in gradients:
            tf.summary.histogram(variable.op.name, variable.read_value())
            tf.summary.histogram(f"{variable.op.name}/gradient", gradient)
    merged = tf.summary.merge_all()
    with tf.Session() as session, tf.summary.FileWriter(directory) as writer:
        session.run(tf.global_variables_initializer())
        for step in range(STEPS):
            summary = session.run(merged, dict(zip((x, y), regression.batch(step), strict=True)))
            writer.add_summary(summary, global_step=step + 1)


def summarized_here(directory):
    """An epoch a step, since a scalar is the mean of its epoch so far."""
    from tf2dist.optimizers.averaging import AveragingSGD
    from trainers.common.summaries import Summaries

    regression.fit(
        lambda: AveragingSGD(0.1, keep_gradients=True, use_ema=False), 1, epochs=STEPS,
        callbacks=[Summaries(directory, every=1)],
    )  # fmt: skip


def shown(directory):
    """What TensorBoard has read, by the end of the tag: scalars, and count, least and greatest of each histogram."""
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
    from tensorflow import make_ndarray

    read = EventAccumulator(directory, tensor_size_guidance={"scalars": 0, "histograms": 0}).Reload()
    found = {}
    for tag in read.Tags()["tensors"]:
        name = re.search(r"(cost|kernel|bias)(?:_1)?(/gradient)?(?:_1)?$", tag)
        if name is None:  # of an epoch
            continue
        steps = found[name[1] + (name[2] or "")] = {}
        for event in read.Tensors(tag):
            value = make_ndarray(event.tensor_proto)
            if value.ndim:  # rows of the histogram: from, to, how many
                value = value[:, 2].sum(), value[0, 0], value[-1, 1]
            steps[event.step] = value
    return found


def test_summaries(tf, tmp_path):
    """A training as TensorBoard shows it: the cost, and weights and gradients as histograms, at the same steps."""
    alone(summarized_in_tf1, str(tmp_path / "1"))
    summarized_here(str(tmp_path / "2"))
    theirs, ours = shown(str(tmp_path / "1")), shown(str(tmp_path / "2"))
    tags = ["bias", "bias/gradient", "cost", "kernel", "kernel/gradient"]
    assert sorted(ours) == sorted(theirs) == tags
    for tag in tags:
        assert list(theirs[tag]) == list(range(1, STEPS + 1))
        assert set(ours[tag]) == set(theirs[tag])
        for step in theirs[tag]:
            np.testing.assert_allclose(ours[tag][step], theirs[tag][step], rtol=1e-4, err_msg=f"{tag} {step}")


HOSTS = "--ps_hosts=a:1,b:2", "--worker_hosts=c:3,d:4"
COMMAND = ["program", "-job_name=worker", "--task_index", "1", *HOSTS, "--nosync"]


def flags_of_tf1(command):
    """What a program finds in its command: cluster, task and a switch, and what is left."""
    import absl.flags

    tf = tf1.begin()
    flags = tf.app.flags
    flags.DEFINE_string("job_name", "", "")
    flags.DEFINE_integer("task_index", 0, "")
    flags.DEFINE_string("ps_hosts", "", "")
    flags.DEFINE_string("worker_hosts", "", "")
    flags.DEFINE_boolean("sync", True, "")
    found = []

    def main(arguments):
        FLAGS = flags.FLAGS
        assert absl.flags.FLAGS["task_index"] is FLAGS["task_index"]  # the same object
        spec = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
        found.append((spec.as_dict(), (FLAGS.job_name, FLAGS.task_index), FLAGS.sync, arguments[1:]))

    try:
        tf.app.run(main, command)
    except SystemExit:
        return found[0]


def flags_here(command):
    """The same of the flags of a trainer; or how `app.run` ends without having come to `main`."""
    from absl import app, flags

    from trainers import mnist  # noqa: F401 (--sync)
    from trainers.common import shared_flags

    found = []

    def main(arguments):
        cluster = shared_flags.read().cluster
        spec = {job: list(hosts) for job, hosts in cluster.spec.items()}
        found.append((spec, (cluster.task.job, cluster.task.index), flags.FLAGS.sync, arguments[1:]))

    try:
        with caught() as lines:
            app.run(main, command)
    except SystemExit as end:
        return found[0] if found else (end.code, lines)


def test_flags():
    """The same command line, with one dash or two. A flag that is not there was left to `main`, and is refused now."""
    ours = alone(flags_here, [*COMMAND, "rest"])
    assert ours == alone(flags_of_tf1, [*COMMAND, "rest"])
    assert ours == ({"ps": ["a:1", "b:2"], "worker": ["c:3", "d:4"]}, ("worker", 1), False, ["rest"])
    assert alone(flags_of_tf1, [*COMMAND, "--snyc"])[-1] == ["--snyc"]
    status, lines = alone(flags_here, [*COMMAND, "--snyc"])
    assert status == 1
    assert any("Unknown command line flag 'snyc'. Did you mean: sync" in line for line in lines)
