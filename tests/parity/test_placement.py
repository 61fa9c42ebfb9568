"""Where variables and operations go: device functions, setters, partitioners, and what is said of it."""

import re

import numpy as np
import pytest

from tests.parity import tf1
from tests.parity.processes import alone, caught, cluster, command, tf1_cluster
from tf2dist.runtime.placement_log import short

pytestmark = pytest.mark.slow


def traced(tf):
    """Options and metadata for a run, and a function that then tells on which device each operation was."""
    options, metadata = tf.RunOptions(output_partition_graphs=True), tf.RunMetadata()
    return options, metadata, lambda: {n.name: n.device for graph in metadata.partition_graphs for n in graph.node}


def ps(device):
    """The index of the parameter server that a device is on."""
    return int(re.match(r"/job:ps/(?:replica:0/)?task:(\d+)", device)[1])


def by_function_in_tf1():
    tf = tf1.begin()

    def choose(op):
        return "/cpu:1" if op.type in ("VarHandleOp", "VariableV2") else "/cpu:2"

    with tf.device(choose):
        variables = [tf.get_variable(name, initializer=1.0) for name in ("a", "b")]
        total = variables[0] + variables[1]
    with tf.colocate_with(variables[0].op):
        beside = variables[0] * 3.0
    options, metadata, placed = traced(tf)
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": 3})) as session:
        session.run(tf.global_variables_initializer())
        value, _ = session.run([total, beside], options=options, run_metadata=metadata)
    devices = placed()
    return float(value), [devices[v.op.name] for v in variables], devices[total.op.name], devices[beside.op.name]


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


def test_device_function(tf):
    """Variables by a creator scope, operations by `tf.device`, end where a function of the operation put them.

    And an operation that was colocated with a variable is where its device is.
    """
    ours = alone(by_creator_here)
    assert ours == alone(by_function_in_tf1)
    assert [device[-1] for device in (*ours[1], *ours[2:])] == ["1", "1", "2", "1"]
    with pytest.raises(RuntimeError, match="does not support functions"), tf.device(lambda op: "/cpu:0"):
        pass


SHAPES = {"a/kernel": [3, 5], "a/bias": [5], "b/kernel": [5, 4], "b/bias": [4], "c/kernel": [4, 2]}
ROWS, COLUMNS = 1000, 8  # of a table, larger than all of these


class Greedy:
    """What `GreedyLoadBalancingStrategy` of tf.contrib did, which is gone: the server with the fewest bytes so far."""

    def __init__(self, servers):
        self.bytes = [0] * servers

    def __call__(self, op):
        lightest = self.bytes.index(min(self.bytes))
        elements = int(np.prod([dimension.size for dimension in op.get_attr("shape").dim]))
        self.bytes[lightest] += elements * op.get_attr("dtype").size
        return lightest


def placed_by_tf1():
    """On which server of a cluster a session has put each variable, for each way to choose."""
    tf = tf1.begin()
    server, cluster, _, _ = tf1.serve(tf)
    ways = {
        "setter": tf.train.replica_device_setter(cluster=cluster),
        "greedy": tf.train.replica_device_setter(cluster=cluster, ps_strategy=Greedy(2)),
    }
    made = {}
    for way, device in ways.items():
        with tf.variable_scope(way), tf.device(device):
            shapes = SHAPES | {"table": [ROWS, COLUMNS]}
            made[way] = [tf.get_variable(name, shape) for name, shape in shapes.items()]
    options, metadata, placed = traced(tf)
    with tf.Session(server.target) as session:
        session.run(tf.global_variables_initializer(), options=options, run_metadata=metadata)
    devices = placed()
    return {way: [ps(devices[v.op.name]) for v in variables] for way, variables in made.items()}


def placed_here():
    import os

    import tf2dist

    os.environ["TF2DIST_ONE_SERVER_BYTES"] = "0"
    strategy = tf2dist.join("ps")
    import keras

    with strategy.scope():
        layers = [keras.layers.Dense(5), keras.layers.Dense(4), keras.layers.Dense(2, use_bias=False)]
        model = keras.Sequential([keras.Input((3,)), *layers])
        table = tf2dist.layers.ShardedEmbedding(ROWS, COLUMNS)
        table.build()
    assert [v.shape for v in model.weights] == [tuple(shape) for shape in SHAPES.values()]
    return {
        "layers": [ps(v.value.device) for v in model.weights],
        "shards": [ps(v.value.device) for v in table.weights],
        "rows": [v.shape[0] for v in table.weights],
    }


def small_here():
    import os

    import tf2dist

    del os.environ["TF2DIST_ONE_SERVER_BYTES"]
    strategy = tf2dist.join("ps")
    import tensorflow as tf

    with strategy.scope():
        return [ps(tf.Variable(tf.zeros(shape)).device) for shape in SHAPES.values()]


@pytest.fixture(scope="module")
def theirs():
    return tf1_cluster(placed_by_tf1, {"ps": 2, "worker": 1})["worker 0"]


@pytest.fixture(scope="module")
def here():
    jobs = {"ps": 2, "chief": 1, "worker": 1}
    return cluster(placed_here, jobs)["chief 0"] | {"small": cluster(small_here, jobs)["chief 0"]}


def test_replica_device_setter(theirs, here):
    """Both choose the server for each variable as it is made: there in turn, here by what the servers hold."""
    assert theirs["setter"][: len(SHAPES)] == [0, 1, 0, 1, 0]
    assert here["layers"] == [0, 1, 1, 0, 0]
    assert {*here["small"]} == {0}


def test_load_balancing(theirs, here):
    """By size, one server has all of a large table, whatever is done with the rest. Cut into shards, each has half.

    The rest goes to the same servers on both sides.
    """
    sizes = [int(np.prod(shape)) for shape in SHAPES.values()]

    def loads(servers, sizes):
        return [sum(size for at, size in zip(servers, sizes, strict=True) if at == server) for server in (0, 1)]

    greedy = loads(theirs["greedy"], [*sizes, ROWS * COLUMNS])
    assert here["layers"] == theirs["greedy"][: len(SHAPES)] == [0, 1, 1, 0, 0]
    assert greedy == [27, 25 + ROWS * COLUMNS]
    ours = loads(here["layers"] + here["shards"], [*sizes, *(rows * COLUMNS for rows in here["rows"])])
    assert ours == [27 + ROWS * COLUMNS // 2, 25 + ROWS * COLUMNS // 2]


TABLE = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
IDS = np.array([[0, 6, 3], [3, 5, 0]])
BLOCKS = np.split(TABLE, [4])
MODULO = [TABLE[0::2], TABLE[1::2]]


def partitioned_by_tf1():
    """Servers and rows of the parts of two tables, after five steps on each: looked up by default, and as blocks."""
    tf = tf1.begin()
    server, cluster, _, _ = tf1.serve(tf)
    tables, losses = [], []
    for name, parts, options in (("default", MODULO, {}), ("blocks", BLOCKS, {"partition_strategy": "div"})):

        def begin(shape, dtype=None, partition_info=None, parts=parts):
            return parts[1 if partition_info.var_offset[0] else 0]

        with tf.device(tf.train.replica_device_setter(cluster=cluster)):
            table = tf.get_variable(name, [7, 4], initializer=begin, partitioner=tf.fixed_size_partitioner(2))
            rows = tf.nn.embedding_lookup(table, IDS, **options)
        tables.append(list(table))
        losses.append(tf.reduce_sum(tf.square(tf.reduce_mean(rows, 1))))
    train = tf.train.AdagradOptimizer(0.5).minimize(losses[0] + losses[1])
    options, metadata, placed = traced(tf)
    with tf.Session(server.target) as session:
        session.run(tf.global_variables_initializer(), options=options, run_metadata=metadata)
        for _ in range(5):
            session.run(train)
        devices = placed()
        return [([ps(devices[part.op.name]) for part in parts], session.run(parts)) for parts in tables]


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
    shards = [keras.ops.convert_to_numpy(e) for e in table.embeddings]
    return [ps(e.value.device) for e in table.embeddings], shards, table.get_table()


def test_partitioned_variables():
    """A part on each server, and the same rows in it after five steps of Adagrad; in blocks, the same table."""
    (places, parts), (block_places, blocks) = tf1_cluster(partitioned_by_tf1, {"ps": 2, "worker": 1})["worker 0"]
    our_places, shards, table = cluster(partitioned_here, {"ps": 2, "chief": 1, "worker": 1})["chief 0"]
    assert our_places == places == block_places == [0, 1]
    for ours, theirs in zip([*shards, table], [*parts, np.concatenate(blocks)], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6)
    trained = np.unique(IDS)
    assert [len(part) for part in (*shards, *blocks)] == [4, 3, 4, 3]
    assert not np.isclose(table[trained], TABLE[trained]).any()


def logged_by_tf1():
    """What is printed on a worker when it trains a line, x w + b, whose variables are on the server."""
    tf = tf1.begin()
    server, cluster, _, index = tf1.serve(tf)
    with tf.device(tf.train.replica_device_setter(worker_device=f"/job:worker/task:{index}", cluster=cluster)):
        x, y = tf.placeholder(tf.float32, [1, 1]), tf.placeholder(tf.float32, [1, 1])
        line = tf.matmul(x, tf.get_variable("w", [1, 1])) + tf.get_variable("b", [1])
        train = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square(line - y)))
    config = tf.ConfigProto(log_device_placement=True, device_filters=["/job:ps", f"/job:worker/task:{index}"])
    with caught() as lines, tf.Session(server.target, config=config) as session:
        session.run(tf.global_variables_initializer())
        session.run(train, {x: [[1.0]], y: [[2.0]]})
    return lines


def placements(lines, pattern):
    """The devices on which operations of each type were; pattern has the groups type and got."""
    found = {}
    for match in filter(None, (re.search(pattern, line) for line in lines)):
        found.setdefault(match["type"], set()).add(short(match["got"]))
    return found


def logged_here(late):
    """What TensorFlow prints of an operation in a function and of one alone; late: it has run something before."""
    import tensorflow as tf

    from tf2dist.runtime import devices

    devices.make_virtual_cpus(2)
    if late:
        tf.eye(2)
    tf.debugging.set_log_device_placement(True)

    @tf.function
    def square(x):
        with tf.device("/cpu:1"):
            return tf.matmul(x, x, name="product")

    with caught() as lines:
        x = square(tf.eye(2))
        with tf.device("/cpu:1"):
            tf.exp(x)
    return lines


PRINTED = r"^\S+: \((?P<type>\w+)\): (?P<got>/\S+)$"


def test_log_device_placement():
    """The table of a trainer has the operations of all tasks, on the devices that TensorFlow 1 printed."""
    workers = tf1_cluster(logged_by_tf1, {"ps": 1, "worker": 2})
    theirs = placements(workers["worker 0"] + workers["worker 1"], PRINTED)
    # Each worker has a part in each update, so that none has done it all before the other has begun.
    run = ("trainers.linear", "--preset=sgd", "--sync", "--max_steps=40", "--log_device_placement")
    status, lines = cluster(command, {"ps": 1, "chief": 1, "worker": 2}, *run)["chief 0"]
    table = lines[next(i for i, line in enumerate(lines) if line.split() == ["operation", "wanted", "got"]) + 1 :]
    ours = placements(table, r"\((?P<type>\w+)\) +\S+ +(?P<got>/\S+)$")
    assert status == 0
    assert ours["MatMul"] == theirs["MatMul"] == {f"/job:worker/task:{i}/cpu:0" for i in (0, 1)}
    assert ours["AssignSubVariableOp"] == theirs["ResourceApplyGradientDescent"] == {"/job:ps/task:0/cpu:0"}
    # What is underneath prints such lines too, of functions and of what runs at once, if it was called first.
    lines = alone(logged_here, False)
    assert "product: (MatMul): /job:localhost/replica:0/task:0/device:CPU:1" in lines
    assert placements(lines, PRINTED)["Exp"] == {"/cpu:1"}
    assert not placements(alone(logged_here, True), PRINTED)


ABSENT = "/gpu:99"


def softly_by_tf1(soft):
    tf = tf1.begin()
    assert not tf.ConfigProto().allow_soft_placement
    with tf.device(ABSENT):
        x = tf.placeholder(tf.float32, [])
        total = tf.add(x, 2.0, name="total")
    options, metadata, placed = traced(tf)
    with tf.Session(config=tf.ConfigProto(allow_soft_placement=soft)) as session:
        try:
            value = session.run(total, {x: 1.0}, options=options, run_metadata=metadata)
        except tf.errors.InvalidArgumentError as error:
            return str(error)
    return float(value), short(placed()["total"])


def softly_here(soft):
    """As it is by default if soft is None."""
    import tensorflow as tf

    if soft is not None:
        tf.config.set_soft_device_placement(soft)
    try:
        with tf.device(ABSENT):
            total = tf.add(tf.constant(1.0), tf.constant(2.0), name="total")
    except tf.errors.InvalidArgumentError as error:
        return str(error)
    return float(total), short(total.device)


def test_soft_placement():
    """A device that is not there is another one with it, and an error without it that lists those there are."""
    run = ("trainers.hello", f"--devices=/cpu:0,{ABSENT}")
    status, lines = alone(command, *run, "--soft_placement")
    rows = {line.rpartition(ABSENT)[0].strip(): line.split()[-1] for line in lines if ABSENT in line}
    assert (status, rows) == (0, {"x - 66": "/cpu:0"})
    assert alone(softly_here, None) == alone(softly_here, True) == alone(softly_by_tf1, True) == (3.0, "/cpu:0")
    for error in (alone(softly_here, False), alone(softly_by_tf1, False)):
        assert re.search("GPU:99", error, re.IGNORECASE)
        assert "/job:localhost/replica:0/task:0/device:CPU:0" in error
    status, lines = alone(command, *run)
    assert (status, lines[-1]) == (2, (
        f"hello: operation x - 66 cannot be placed on {ABSENT}; the devices are /cpu:0; --soft_placement lets "
        "TensorFlow choose another device"
    ))  # fmt: skip
