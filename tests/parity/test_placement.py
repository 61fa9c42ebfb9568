"""Where variables and operations go: device functions, setters, partitioners, and what is said of it."""

import contextlib
import os
import re
import tempfile

import numpy as np
import pytest

from tests.parity import tf1
from tests.parity.processes import alone, cluster

pytestmark = pytest.mark.slow

TABLE = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
IDS = np.array([[0, 6, 3], [3, 5, 0]])


def by_function_in_tf1():
    tf = tf1.begin()

    def choose(op):
        return "/cpu:1" if op.type in ("VarHandleOp", "VariableV2") else "/cpu:2"

    with tf.device(choose):
        variables = [tf.get_variable(name, initializer=1.0) for name in ("a", "b")]
        total = variables[0] + variables[1]
    with tf.colocate_with(variables[0].op):
        beside = variables[0] * 3.0
    options, metadata = tf.RunOptions(output_partition_graphs=True), tf.RunMetadata()
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": 3})) as session:
        session.run(tf.global_variables_initializer())
        value, _ = session.run([total, beside], options=options, run_metadata=metadata)
    placed = {node.name: node.device for graph in metadata.partition_graphs for node in graph.node}
    return float(value), [placed[v.op.name] for v in variables], placed[total.op.name], placed[beside.op.name]


def by_creator_here():
    import tensorflow as tf

    from tf2dist.runtime import devices

    devices.make_virtual_cpus(3)

    def creator(create, **kwargs):
        with tf.device("/cpu:1"):
            return create(**kwargs)

    with tf.variable_creator_scope(creator):
        variables = [tf.Variable(1.0, name=name) for name in ("a", "b")]
    with tf.device("/cpu:2"):
        total = variables[0] + variables[1]
    with tf.device(variables[0].device):
        beside = variables[0] * 3.0
    return float(total), [v.device for v in variables], total.device, beside.device


def test_device_function():
    """Variables by a creator scope, operations by `tf.device`, end where a function of the operation put them.

    And an operation that was colocated with a variable is where its device is.
    """
    ours = alone(by_creator_here)
    assert ours == alone(by_function_in_tf1)
    assert [device[-1] for device in (*ours[1], *ours[2:])] == ["1", "1", "2", "1"]


def placed_by_tf1(ps):
    tf = tf1.begin()
    with tf.device(tf.train.replica_device_setter(ps_tasks=ps)):
        made = [tf.get_variable(f"{layer}/{part}", shape) for layer, part, shape in SHAPES]
    return [int(re.search(r"/job:ps/task:(\d)", v.device)[1]) for v in made]


SHAPES = [
    ("a", "kernel", [3, 5]),
    ("a", "bias", [5]),
    ("b", "kernel", [5, 4]),
    ("b", "bias", [4]),
    ("c", "kernel", [4, 2]),
]


def placed_here():
    import tf2dist

    strategy = tf2dist.join("ps")
    import keras

    with strategy.scope():
        layers = [keras.layers.Dense(5), keras.layers.Dense(4), keras.layers.Dense(2, use_bias=False)]
        model = keras.Sequential([keras.Input((3,)), *layers])
        embedding = tf2dist.layers.ShardedEmbedding(1000, 8)
        embedding.build()
    return [int(re.search(r"/job:ps/.*task:(\d)", v.value.device)[1]) for v in model.weights + embedding.weights], [
        v.value.shape.num_elements() for v in embedding.weights
    ]


@pytest.fixture(scope="module")
def here():
    return cluster(placed_here, {"ps": 2, "chief": 1, "worker": 1})["chief 0"]


def test_replica_device_setter(here):
    """Variables go to the servers in turn, in the order in which they are made."""
    assert here[0][: len(SHAPES)] == alone(placed_by_tf1, 2) == [0, 1, 0, 1, 0]


def balanced_by_tf1(shapes):
    """The load-balancing strategy of tf.contrib, which has gone, was a function like this one."""
    tf = tf1.begin()
    load = [0, 0]

    def lightest(op):
        server = load.index(min(load))
        load[server] += op.outputs[0].shape.num_elements() if op.type == "VariableV2" else 0
        return server

    with tf.device(tf.train.replica_device_setter(ps_tasks=2, ps_strategy=lightest)):
        for number, shape in enumerate(shapes):
            tf.get_variable(f"v{number}", shape, use_resource=False)
    return load


def test_load_balancing(here):
    """A strategy by size cannot cut a large table: one server has all of it. Cut into shards, each has half."""
    assert alone(balanced_by_tf1, [[1000, 8], [10], [20]]) == [8000, 30]
    servers, sizes = here[0][len(SHAPES) :], here[1]
    assert sorted(servers) == [0, 1]
    assert sizes == [4000, 4000]


def partitioned_by_tf1():
    tf = tf1.begin()
    with tf.device(tf.train.replica_device_setter(ps_tasks=2)):
        placed = [part.device for part in tf.get_variable("placed", [7, 4], partitioner=tf.fixed_size_partitioner(2))]
    tf.reset_default_graph()

    def begin(shape, dtype=None, partition_info=None):
        first = partition_info.var_offset[0]
        return TABLE[first : first + shape[0]]

    table = tf.get_variable("table", [7, 4], initializer=begin, partitioner=tf.fixed_size_partitioner(2))
    rows = tf.nn.embedding_lookup(table, IDS, partition_strategy="div")
    train = tf.train.AdagradOptimizer(0.5).minimize(tf.reduce_sum(tf.square(tf.reduce_mean(rows, 1))))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(5):
            session.run(train)
        return placed, [tuple(p.shape.as_list()) for p in table], session.run(tf.convert_to_tensor(table))


def partitioned_here():
    import tf2dist

    strategy = tf2dist.join("ps")
    import keras

    with strategy.scope():
        table = tf2dist.layers.ShardedEmbedding(7, 4, keras.initializers.Constant(TABLE))
        model = keras.Sequential([keras.Input((3,), dtype="int64"), table, keras.layers.GlobalAveragePooling1D()])
        # Summed over everything, as on the other side; y is 0.
        model.compile(keras.optimizers.Adagrad(0.5), lambda y, y_pred: keras.ops.sum(keras.ops.square(y_pred - y)))
    tf2dist.fit(model, (IDS, np.zeros((2, 4), np.float32)), batch_size=2, steps_per_epoch=5)
    return [e.value.device for e in table.embeddings], [e.shape for e in table.embeddings], table.get_table()


def test_partitioned_variables():
    """A part on each server, and the same table after five steps of Adagrad on it."""
    theirs = alone(partitioned_by_tf1)
    ours = cluster(partitioned_here, {"ps": 2, "chief": 1, "worker": 1})["chief 0"]
    assert sorted(d[:18] for d in theirs[0]) == ["/job:ps/task:0", "/job:ps/task:1"]
    assert sorted(re.sub("/replica:0", "", d)[:14] for d in ours[0]) == ["/job:ps/task:0", "/job:ps/task:1"]
    assert ours[1] == theirs[1] == [(4, 4), (3, 4)]
    np.testing.assert_allclose(ours[2], theirs[2], rtol=2e-5, atol=1e-6)
    assert not np.allclose(ours[2], TABLE)


@contextlib.contextmanager
def caught():
    """What TensorFlow writes to the standard streams, below Python, in the list that it gives."""
    lines = []
    with tempfile.TemporaryFile("w+") as file:
        kept = [os.dup(stream) for stream in (1, 2)]
        try:
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)
            yield lines
        finally:
            for stream, copy in zip((1, 2), kept, strict=True):
                os.dup2(copy, stream)
        file.seek(0)
        lines += file.read().splitlines()


def logged_by_tf1():
    tf = tf1.begin()
    x = tf.placeholder(tf.float32, [2, 2])
    with tf.device("/cpu:1"):
        y = tf.matmul(x, x, name="product")
    config = tf.ConfigProto(log_device_placement=True, device_count={"CPU": 2})
    with caught() as lines, tf.Session(config=config) as session:
        session.run(y, {x: np.eye(2)})
    return lines


def logged_here():
    import tensorflow as tf

    from tf2dist.runtime import devices

    devices.make_virtual_cpus(2)
    tf.debugging.set_log_device_placement(True)

    @tf.function
    def square(x):
        with tf.device("/cpu:1"):
            return tf.matmul(x, x, name="product")

    with caught() as lines:
        square(tf.eye(2))
    return lines


def test_log_device_placement():
    """The same line on standard output, when an operation is placed."""
    line = "product: (MatMul): /job:localhost/replica:0/task:0/device:CPU:1"
    assert line in alone(logged_by_tf1)
    assert line in alone(logged_here)


def softly_by_tf1(soft):
    tf = tf1.begin()
    with tf.device("/gpu:99"):
        total = tf.add(tf.constant(1.0), tf.placeholder_with_default(2.0, []), name="total")
    with tf.Session(config=tf.ConfigProto(allow_soft_placement=soft)) as session:
        try:
            return float(session.run(total))
        except tf.errors.InvalidArgumentError as error:
            return str(error)


def softly_here(soft):
    import tensorflow as tf

    tf.config.set_soft_device_placement(soft)
    try:
        with tf.device("/gpu:99"):
            return float(tf.add(tf.constant(1.0), tf.constant(2.0), name="total"))
    except tf.errors.InvalidArgumentError as error:
        return str(error)


def test_soft_placement():
    """A device that is not there is another one with it, and an error without it that lists those there are."""
    assert alone(softly_here, True) == alone(softly_by_tf1, True) == 3.0
    for error in (alone(softly_here, False), alone(softly_by_tf1, False)):
        assert re.search("GPU:99", error, re.IGNORECASE)
        assert "/job:localhost/replica:0/task:0/device:CPU:0" in error
