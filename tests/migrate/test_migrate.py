"""Finding TensorFlow 1 in programs, whatever they call it and whatever Python they are for."""

import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf2dist.migrate import python_tokens
from tf2dist.migrate.__main__ import main
from tf2dist.migrate.uses import uses

PROGRAM = """
import tensorflow as tf, os
import tensorflow.compat.v1 as tf1
from tensorflow.python.training import (server_lib,
    sync_replicas_optimizer as sync)
from tensorflow.python.training.monitored_session import MonitoredTrainingSession as Monitored
from tensorflow import train as T
from .tensorflow import train
flags = tf.app.flags
FLAGS = flags.FLAGS
flags.DEFINE_string("ps_hosts", "", "tf.train.Server in a string, and 'a quote")
spec = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts})  # tf.train.Server in a comment
class Job:
    '''tf.train.Supervisor in "a docstring" '''
    def __init__(self):
        self.server = T.Server(spec)
        self.server.join()
with tf.device("/job:ps/task:%d" % 1), tf.device(tf.train.replica_device_setter(cluster=spec)):
    train_op = (tf
                .train
                .AdagradOptimizer(0.1)).minimize(0)
with Monitored(Job().server.target, is_chief=True) as session:
    session.run(train_op, feed_dict={x: 1})
sync.SyncReplicasOptimizer(tf.train. \\
    AdamOptimizer(1), replicas_to_aggregate=2)
config = tf1.ConfigProto(allow_soft_placement=True)
config.log_device_placement = True
server_lib.Server(spec)
os.environ['TF_CONFIG']
"""
FOUND = [
    (4, "cluster-spec"),
    (5, "sync-replicas"),
    (6, "monitored-training-session"),
    (9, "flags"),
    (10, "flags"),
    (11, "flags"),
    (12, "cluster-spec"),
    (16, "server"),
    (17, "server-join"),
    (18, "device"),
    (18, "replica-device-setter"),
    (21, "adagrad"),
    (22, "monitored-training-session"),
    (22, "session"),
    (23, "placeholders"),
    (24, "sync-replicas"),
    (25, "optimizers"),
    (25, "sync-replicas"),
    (26, "soft-placement"),
    (27, "log-device-placement"),
    (28, "server"),
    (29, "cluster-spec"),
]


def rows(text):
    return sorted({(use.line, use.concept.row) for use in uses(text)})


def test_every_way_to_say_it():
    assert rows(PROGRAM) == FOUND
    assert {use.symbol for use in uses(PROGRAM) if use.line == 18} == {
        "tf.device",
        "'/job:ps/task:%d'",
        "tf.train.replica_device_setter",
    }


def test_what_a_method_returns_is_not_its_object():
    text = "import tensorflow as tf\nsv = tf.train.Supervisor()\nsession = sv.managed_session()\nsession.run(1)\n"
    assert rows(text) == [(2, "supervisor"), (3, "supervisor")]


WRAPPED = """
import tensorflow as tf
slim = tf.contrib.slim
partitioner = lambda shape: [1, 1]
def train(server, session, graph, feed_dict, is_chief):
    if is_chief:
        strategy = tf.contrib.training.GreedyLoadBalancingStrategy(2, tf.contrib.training.byte_size_load_fn)
        tf.train.replica_device_setter(worker_device=d,
                                       ps_strategy=strategy)
    ps_strategy = tf.contrib.training.RandomStrategy(2)
    setter(worker_device=d,
           ps_strategy=ps_strategy)
    feed_dict.update(more)
    session.run(graph.get_collection("train_op"), feed_dict)
    with graph.colocate_with(v), tf.colocate_with(w):
        tf.contrib.training.train(op, hooks=[tf.contrib.training.StopAfterNEvalsHook(1)])
    slim.l2_regularizer(0.1)
    slim.learning.create_train_op(loss, optimizer); tf.train.queue_runner.QueueRunner(queue, [op])
    session.run(init_op)
    self.server.join()
    ",".join(server.target)
    connect("grpc://" + hosts[0], os.environ["CLUSTER_SPEC"], "a sentence about grpc://")
    build(w, partitioner, global_step=step, partitioner=partitioner)
    options.experimental.collective_graph_key = 6
"""


def test_objects_that_come_from_elsewhere():
    """Arguments and methods whose names say what they are, in a program of TensorFlow."""
    assert rows(WRAPPED) == [
        (4, "partitioned-variables"),
        (5, "monitored-training-session"),
        (5, "placeholders"),
        (6, "monitored-training-session"),
        (7, "load-balancing"),
        (8, "device"),
        (8, "replica-device-setter"),
        (9, "load-balancing"),
        (10, "load-balancing"),
        (11, "device"),
        (12, "load-balancing"),
        (13, "placeholders"),
        (14, "collections-of-losses"),
        (14, "placeholders"),
        (15, "device"),
        (16, "hooks"),
        (16, "monitored-training-session"),
        (17, "l2-regularizers"),
        (18, "optimizers"),
        (18, "queues"),
        (19, "initializers"),
        (20, "server-join"),
        (21, "session"),
        (22, "cluster-spec"),
        (22, "session"),
        (23, "global-step"),
        (23, "partitioned-variables"),
        (24, "towers"),
    ]
    assert rows("self.server.join(); server.target") == []  # no program of TensorFlow


def test_wrappers_of_contrib():
    """Packages had a module of that name, with functions that import a part of tf.contrib when it is asked for."""
    text = "from a.utils import contrib\ncontrib.tpu().TPUEstimator(x)\ncontrib.layers().l2_regularizer(1)\n"
    text += "contrib.distribute().MirroredStrategy()\ncontrib.framework(\n).load_checkpoint(x)\ncontrib.other().x()\n"
    text += "from django.contrib import auth\nauth.layers().x\n"
    assert rows(text) == [
        (2, "estimators"),
        (3, "l2-regularizers"),
        (4, "contrib-distribute"),
        (6, "checkpoint-names"),
    ]


def test_names_of_others():
    """Nothing of TensorFlow, whatever it looks like."""
    others = "import torch as tf\nfrom x.train import Server\ntf.train.Server()\nServer().join()\n','.join(a)\n"
    assert rows(others) == []
    assert rows("train.Server()") == []


@pytest.mark.parametrize(
    "text", ["", "from ..compat import tfv1 as tf", "tf1, tf, version = try_import_tf()", "from .common import *"]
)
def test_tf_is_tensorflow_wherever_it_comes_from(text):
    """A cell of a notebook, a package with a module for its imports."""
    assert rows(f"{text}\ntf.train.Server()") == [(2, "server")]


PYTHON2 = """
import tensorflow as tf
print "training", `x`
mode = 0755
try:
	server = tf.train.Server(spec)
        print >>log, ur'tf.train.Saver', 10L <> 9
except ValueError, error:
    exec "raise" in {}
server.join()
"""


def test_python_2_is_read_on(tmp_path, capsys):
    path = tmp_path / "old.py"
    path.write_text(PYTHON2)
    assert main([str(path)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"{path}: this Python cannot parse it (line ")
    assert said[0].endswith("perhaps it is for Python 2; read by its words")
    assert [line.removeprefix(f"{path}:").split("]")[0] for line in said[1:-1]] == [
        "6: tf.train.Server  [server",
        "10: tf.train.Server.join  [server-join",
    ]
    assert said[-1] == "2 uses of 2 concepts in 1 file; docs/mapping.md#ROW says more"
    assert path.read_text() == PYTHON2


def test_directories_and_encodings(tmp_path, capsys):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "latin.py").write_bytes(
        b"# -*- coding: latin-1 -*-\r\nimport tensorflow as tf\r\nname = '\xe9'\r\ntf.train.Saver()\r\n"
    )
    (tmp_path / "none.py").write_bytes(b"\xff\xfe unreadable '''")
    (tmp_path / "odd.py").write_bytes(b"# -*- coding: idna -*-\n\xff")
    (tmp_path / "empty.py").touch()
    (tmp_path / "wide.py").write_bytes(b"# coding: utf-16\n\nimport tensorflow as tf\ntf.train.Server()\n")
    (tmp_path / "deep" / "again").symlink_to(tmp_path)
    (tmp_path / "notes.txt").write_text("tf.train.Server")
    assert main([str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert f"{tmp_path}/deep/latin.py:4: tf.train.Saver  [saver]" in said
    assert f"{tmp_path}/wide.py:4: tf.train.Server  [server]" in said
    assert said.endswith("2 uses of 2 concepts in 5 files; docs/mapping.md#ROW says more\n")


@pytest.mark.timeout(60)
def test_what_is_no_program_is_passed_over(tmp_path, capsys):
    """One line each, and on with the rest."""
    (tmp_path / "a.py").write_bytes(b"\x7fELF\x00\x01")
    (tmp_path / "b.ipynb").write_text('{"cells": []}')
    (tmp_path / "c.py").symlink_to("c.py")
    os.mkfifo(tmp_path / "d.py")
    (tmp_path / "e.py").write_text("import tensorflow as tf\ntf.train.Server()\n")
    assert main([str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        f"tf2dist.migrate: {tmp_path}/a.py is no program: it holds bytes that are no text",
        f"tf2dist.migrate: {tmp_path}/b.ipynb is a notebook; `jupyter nbconvert --to script` makes a program of it",
        f"tf2dist.migrate: {tmp_path}/c.py cannot be read: Too many levels of symbolic links",
        f"tf2dist.migrate: {tmp_path}/d.py is no program: it is no regular file",
    ]
    assert said.out.splitlines()[0].startswith(f"{tmp_path}/e.py:2: tf.train.Server  [server]")
    assert main([str(tmp_path / "missing.py"), str(tmp_path / "e.py")]) == 2
    said = capsys.readouterr()
    assert said.err == f"tf2dist.migrate: there is no file {tmp_path}/missing.py\n"
    assert said.out.endswith("1 uses of 1 concepts in 1 file; docs/mapping.md#ROW says more\n")


def test_a_name_that_is_no_text(tmp_path):
    path = os.fsencode(tmp_path / "name") + b"\xff.py"
    with open(path, "w") as file:
        file.write("import tensorflow as tf\ntf.train.Server('\N{SNOWMAN}')\ntf.device('/job:\N{SNOWMAN}')\n")
    done = subprocess.run(
        [sys.executable, "-m", "tf2dist.migrate", path],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "[server]" in done.stdout


def test_nothing_there(tmp_path, capsys):
    assert main([str(tmp_path / "a.py")]) == 2
    said = capsys.readouterr()
    assert said.err == f"tf2dist.migrate: there is no file {tmp_path}/a.py\n"
    assert said.out == ""
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == "no distributed concept of TensorFlow 1 in 0 files\n"


def test_it_runs_nothing_and_imports_no_tensorflow(tmp_path):
    path = tmp_path / "program.py"
    path.write_text("import tensorflow as tf\nopen('ran', 'w')\ntf.train.Server\n")
    code = (
        "import sys\nfrom tf2dist.migrate.__main__ import main\nmain(sys.argv[1:])\nprint('tensorflow' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "False", done.stderr
    assert not (tmp_path / "ran").exists()


def test_a_closed_pipe(tmp_path):
    path = tmp_path / "program.py"
    path.write_text("import tensorflow as tf\n" + "tf.train.Server\n" * 20_000)
    done = subprocess.run(
        f"{sys.executable} -m tf2dist.migrate {path} | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "[server]" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    "text",
    ["'", '"""', "(", "\\", "import", "from", "from x", "import a as", "a =", "from . import", "x = tf.", "\t\f"],
)
def test_unfinished_programs(text):
    assert uses(text) == []
    assert rows(f"import tensorflow as tf\ntf.train.Server\n{text}") == [(2, "server")]


@settings(deadline=None, derandomize=True)
@given(st.text(alphabet="tf.=()'\"#\\\n aimport", max_size=60))
def test_any_text_is_read(text):
    uses("import tensorflow as tf\n" + text)
    for token in python_tokens.tokens(text):
        assert 1 <= token.line <= text.count("\n") + 1


def test_a_long_program_is_read_in_time():
    """Unfinished strings and brackets do not make it slow."""
    for text in ("'" * 50_000, '"""' * 30_000 + "'", "(" * 50_000, "a." * 50_000, "\\\n" * 50_000):
        uses(text)
