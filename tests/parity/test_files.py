"""What a training writes: checkpoints and summaries; and how a program reads its command."""

import pathlib

import numpy as np
import pytest

from tests.parity import regression, tf1
from tests.parity.processes import alone

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
    tf = tf1.begin()
    x = tf.placeholder(tf.float32, [None], name="x")
    tf.summary.scalar("cost", tf.reduce_mean(x))
    tf.summary.histogram("values", x)
    merged = tf.summary.merge_all()
    with tf.Session() as session, tf.summary.FileWriter(directory) as writer:
        for step in range(STEPS):
            writer.add_summary(session.run(merged, {x: np.arange(4.0) * step}), global_step=step)
    return events(tf, directory)


def summarized_here(directory):
    import tensorflow as tf

    with tf.summary.create_file_writer(directory).as_default():
        for step in range(STEPS):
            x = np.arange(4.0) * step
            tf.summary.scalar("cost", x.mean(), step=step)
            tf.summary.histogram("values", x, step=step)
    return events(tf.compat.v1, directory)


def events(tf, directory):
    """Scalars by step, and the steps of histograms with the number of their values."""
    from tensorflow import make_ndarray  # in TensorFlow 2 a summary's value is a tensor

    scalars, histograms = {}, {}
    (file,) = pathlib.Path(directory).glob("events*")
    for event in tf.train.summary_iterator(str(file)):
        for value in event.summary.value:
            kind = value.WhichOneof("value")
            if value.tag == "cost":
                scalars[event.step] = (
                    value.simple_value if kind == "simple_value" else float(make_ndarray(value.tensor))
                )
            elif value.tag == "values":
                histograms[event.step] = value.histo.num if kind == "histo" else make_ndarray(value.tensor)[:, 2].sum()
    return scalars, histograms


def test_summaries(tf, tmp_path):
    """Scalars and histograms of the same steps."""
    theirs, ours = alone(summarized_in_tf1, str(tmp_path / "1")), summarized_here(str(tmp_path / "2"))
    assert ours == theirs
    assert theirs[0] == {step: 1.5 * step for step in range(STEPS)}
    assert theirs[1] == dict.fromkeys(range(STEPS), 4)


COMMAND = ["program", "-job_name=worker", "--task_index", "1", "--ps_hosts=a:1,b:2", "--nosync", "rest"]


def flags_of_tf1():
    tf = tf1.begin()
    flags = tf.app.flags
    flags.DEFINE_string("job_name", "", "")
    flags.DEFINE_integer("task_index", 0, "")
    flags.DEFINE_string("ps_hosts", "", "")
    flags.DEFINE_boolean("sync", True, "")
    found = []

    def main(arguments):
        FLAGS = flags.FLAGS
        found.append((FLAGS.job_name, FLAGS.task_index, FLAGS.ps_hosts.split(","), FLAGS.sync, arguments[1:]))

    try:
        tf.app.run(main, COMMAND)
    except SystemExit:
        return found[0]


def flags_here():
    from absl import app, flags

    flags.DEFINE_string("job_name", "", "")
    flags.DEFINE_integer("task_index", 0, "")
    flags.DEFINE_list("ps_hosts", [], "")
    flags.DEFINE_boolean("sync", True, "")
    found = []

    def main(arguments):
        FLAGS = flags.FLAGS
        found.append((FLAGS.job_name, FLAGS.task_index, FLAGS.ps_hosts, FLAGS.sync, arguments[1:]))

    try:
        app.run(main, COMMAND)
    except SystemExit:
        return found[0]


def test_flags():
    """The same command line, with one dash or two."""
    assert alone(flags_here) == alone(flags_of_tf1) == ("worker", 1, ["a:1", "b:2"], False, ["rest"])
