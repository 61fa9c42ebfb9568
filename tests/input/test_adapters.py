"""Data adapters: every example once a pass, for any replicas, workers and shards."""

import subprocess
import sys
import threading

import numpy as np
import pytest

from tests.conftest import every_third, sampled
from tf2dist import Examples
from tf2dist.errors import TrainingError, UsageError
from tf2dist.input.batch_slicing import ReplicaSlices, one_slice_an_element, slice_bounds
from tf2dist.input.dataset_adapter import DatasetAdapter, slice_of
from tf2dist.input.input_progress import Unwatched
from tf2dist.input.make_adapter import make_data_adapter, make_finite_adapter

ROWS, BATCH = 103, 10
STEPS = 11


@pytest.fixture(autouse=True)
def without_global_seed(tf):
    """An earlier test's, with which nothing would be without a seed."""
    tf.random.set_seed(None)


@pytest.fixture
def feed(tf):
    return Examples((np.arange(ROWS), np.arange(ROWS) * 2), BATCH, seed=5)


def received(feed):
    """The tensors on a remote worker."""
    import tensorflow as tf

    return tf.nest.map_structure(tf.constant, feed.remote_arrays())


def batches_of(feed, slices, start, *workers):
    return feed.training_batches(received(feed), slices, start, *workers)


def labels(batches):
    return [y.numpy().tolist() for _, y in batches]


def parts_of(stream, total):
    """A stream's parts, in one list; checks that each element holds those of `total` replicas."""
    elements = list(stream)
    assert all(len(element) == total for element in elements)
    return [part for element in elements for part in element]


def test_a_pass_has_every_row_once_in_a_new_order_each_time(feed):
    batches = list(batches_of(feed, ReplicaSlices(), 0).take(2 * STEPS))
    assert [len(x) for x, _ in batches] == ([BATCH] * 10 + [3]) * 2
    first, second = (np.concatenate([x for x, _ in batches[i : i + STEPS]]) for i in (0, STEPS))
    assert sorted(first) == sorted(second) == list(range(ROWS))
    assert first.tolist() != second.tolist() != list(range(ROWS))
    assert all((y == 2 * x).numpy().all() for x, y in batches)


def test_the_seed_decides_the_order(tf):
    def order(seed):
        feed = Examples((np.arange(ROWS),), ROWS, seed=seed)
        return next(iter(batches_of(feed, ReplicaSlices(), 0))).numpy().tolist()

    assert order(1) == order(1) != order(2)


def test_a_stream_goes_on_at_any_step(feed):
    whole = labels(batches_of(feed, ReplicaSlices(), 0).take(30))
    assert labels(batches_of(feed, ReplicaSlices(), 17).take(13)) == whole[17:]


def test_what_is_mapped_has_the_order_of_its_seed(feed):
    """As with class weights."""
    whole = labels(batches_of(feed, ReplicaSlices(), 0).take(2 * STEPS))
    assert labels(batches_of(feed.map(lambda *batch: batch), ReplicaSlices(), 0).take(2 * STEPS)) == whole


@pytest.mark.parametrize("kind", ["arrays", "dataset"])
def test_synchronous_workers_go_on_at_any_step(feed, tf, kind):
    """The slices of all workers, in turn, are those of the batches from there on; a batch of 3 rows is among them."""
    if kind == "dataset":
        feed = DatasetAdapter(tf.data.Dataset.from_tensor_slices(feed.arrays).batch(BATCH))
    start, total, workers = 7, 2, 3
    held = received(feed)
    streams = [feed.training_slices(held, total, start, w, workers).take(4) for w in range(workers)]
    parts = [part for turn in zip(*streams, strict=True) for part in turn]
    pairs = zip(parts[::total], parts[1::total], strict=True)
    joined = [[v for (_, y), _ in pair for v in y.numpy().tolist()] for pair in pairs]
    assert joined == labels(feed.training_batches(held, ReplicaSlices(), start).take(6))
    assert [float(weight) for _, weight in parts[:2]] == [0.5, 0.5]


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_function_goes_on_where_each_replica_was(tf, replicas):
    """Each has taken a batch of its own in every step before."""
    feed = make_data_adapter(lambda context: tf.data.Dataset.range(ROWS).batch(BATCH))
    slices = ReplicaSlices(0, replicas, replicas)

    def first_rows(start):
        stream = feed.training_batches((), slices, start).take(4)
        return [int((element if replicas == 1 else element[0])[0]) for element in stream]

    assert first_rows(2) == [BATCH * (2 * replicas + n) for n in range(4)]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_asynchronous_workers_take_disjoint_batches(feed, workers):
    streams = [labels(batches_of(feed, ReplicaSlices(), 0, w, workers).take(STEPS)) for w in range(workers)]
    together = [batch for step in zip(*streams, strict=True) for batch in step]
    assert together == labels(batches_of(feed, ReplicaSlices(), 0).take(STEPS * workers))


@pytest.mark.parametrize("total", sampled([2, 3, 4, 16], [3], [2, 4, 16]))
@pytest.mark.parametrize("kind", ["arrays", "dataset"])
def test_parts_make_up_the_global_batch(feed, tf, kind, total):
    """Parts of all replicas, joined, are the batch; shares sum to one; an empty part has share 0."""
    if kind == "dataset":
        feed = DatasetAdapter(tf.data.Dataset.from_tensor_slices(feed.arrays).batch(BATCH))
        whole = labels(feed.single_pass(feed.local_tensors(), ReplicaSlices()))
        parts = parts_of(feed.single_pass(feed.local_tensors(), ReplicaSlices(0, total, total)), total)
    else:
        whole = labels(batches_of(feed, ReplicaSlices(), 0).take(STEPS))
        parts = parts_of(batches_of(feed, ReplicaSlices(0, total, total), 0).take(STEPS), total)
    assert len(parts) == STEPS * total
    for step, expected in enumerate(whole):
        mine = parts[step * total : (step + 1) * total]
        joined = [v for (_, y), share in mine if share > 0 for v in y.numpy().tolist()]
        assert joined == expected
        assert sum(float(share) for _, share in mine) == pytest.approx(1.0)
        for (x, _), share in mine:
            assert len(x) >= 1
            assert float(share) == pytest.approx(len(x) / len(expected)) or float(share) == 0.0


def test_parts_of_no_rows_weigh_nothing(tf):
    for total in (1, 2):
        weights = [float(slice_bounds(tf.constant(0), rank, total)[2]) for rank in range(total)]
        assert weights == [0.0] * total


def test_parts_one_by_one(feed):
    part = ReplicaSlices(0, 3, 3)
    stream = batches_of(feed, part, 0).take(STEPS)
    singles = list(one_slice_an_element(stream, part))
    for ((x, _), share), ((x2, _), share2) in zip(singles, parts_of(stream, 3), strict=True):
        assert (x.numpy() == x2.numpy()).all()
        assert share == share2


def test_peers_hold_the_parts_that_one_process_would(feed):
    together = parts_of(batches_of(feed, ReplicaSlices(0, 4, 4), 0).take(STEPS), 4)
    peers = [parts_of(batches_of(feed, ReplicaSlices(2 * p, 2, 4), 0).take(STEPS), 2) for p in range(2)]
    for step in range(STEPS):
        mine = [e for peer in peers for e in peer[2 * step : 2 * step + 2]]
        theirs = together[4 * step : 4 * step + 4]
        for ((x, _), share), ((x2, _), share2) in zip(mine, theirs, strict=True):
            assert x.numpy().tolist() == x2.numpy().tolist()
            assert share == share2


@every_third("shards", [11, 1, 2, 5])
@pytest.mark.parametrize("kind", ["arrays", "dataset"])
def test_shards_of_a_pass_hold_every_row_once(feed, tf, kind, shards):
    if kind == "dataset":
        feed = DatasetAdapter(tf.data.Dataset.from_tensor_slices(feed.arrays).batch(BATCH))
    held = received(feed)  # as on a remote worker, also for the dataset: through its serialized graph
    rows = [
        x
        for s in range(shards)
        for batch in feed.single_pass(held, ReplicaSlices(), None, s, shards)
        for x in batch[0].numpy()
    ]
    assert sorted(rows) == list(range(ROWS))


def test_transform_runs_on_batches(tf):
    pixels = np.arange(24, dtype=np.uint8).reshape(6, 4)
    feed = Examples((pixels, np.arange(6)), 4, shuffle=False, transform=lambda x, y: (tf.cast(x, tf.float32) / 2, y))
    assert feed.element_spec()[0].dtype == tf.float32
    assert feed.element_spec()[0].shape.as_list() == [None, 4]
    first, _ = next(iter(batches_of(feed, ReplicaSlices(), 0)))
    np.testing.assert_array_equal(first, pixels[:4] / 2)


def test_a_dataset_that_calls_python_cannot_travel(tf):
    numbers = tf.data.Dataset.range(3)
    calls = numbers.map(lambda v: tf.numpy_function(lambda a: a, [v], tf.int64))
    assert DatasetAdapter(calls).needs_this_process
    images = tf.data.Dataset.from_tensors(tf.zeros([4, 4, 3])).map(tf.image.random_flip_left_right)
    assert not DatasetAdapter(images.batch(2)).needs_this_process


def test_batches_of_arrays_follow_from_their_numbers(feed, tf):
    """Across passes, the short last batch among them."""
    held, maker = received(feed), feed.by_number()
    for start in (0, 7):
        made = [maker.make(held, tf.constant(start + n, tf.int64)) for n in range(9)]
        assert labels(made) == labels(feed.training_batches(held, ReplicaSlices(), start).take(9))


def test_what_makes_batches_by_number_is_the_same_for_other_data(tf):
    """So that a step is traced once: for arrays of any number of rows, and any seed. It holds no data."""
    first, second = (Examples((np.arange(rows),), 3, seed=rows) for rows in (5, 7))
    assert first.by_number() == second.by_number()
    assert first.by_number() != Examples((np.arange(5),), 3, shuffle=False).by_number()


def test_a_transform_is_called_in_one_place_of_a_graph(tf):
    """By number it would be in several, where its random operations begin anew, and hold what it was traced with."""
    assert Examples((np.arange(5),), 3, transform=lambda x: x).by_number() is None
    assert Examples((np.arange(5),), 3).map(lambda x: x).by_number() is None
    assert make_data_adapter(tf.data.Dataset.range(3).batch(2)).by_number() is None


def test_arrays_that_travel_are_not_copied(tf):
    x, y = np.zeros((6, 4))[::2], np.zeros(3)
    arrays, _ = Examples(({"x": x}, (y,)), 2).remote_arrays()
    assert arrays[0]["x"] is x
    assert arrays[1][0] is y


@pytest.mark.slow
def test_an_iterator_over_arrays_makes_no_copy_of_them():
    """The second number says that `tf2dist.input.without_rewriting` is needed."""
    command = [sys.executable, "-m", "tests.programs.opened_arrays"]
    ours, theirs = map(float, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert ours < 0.3
    assert theirs > 0.8


def test_data_of_another_kind(tf):
    with pytest.raises(ValueError, match="found dict"):
        make_data_adapter({"x": 1})


@pytest.mark.parametrize("kind", ["Dataset", "generator"])
def test_a_batch_size_beside_what_is_batched_already_is_ignored(tf, kind, caplog):
    """As Keras's `fit` ignores it, where published programs give one; but not without a word."""
    made = {"Dataset": lambda: tf.data.Dataset.range(6).batch(3), "generator": lambda: iter([np.zeros((3, 1))] * 2)}
    assert make_finite_adapter(made[kind](), batch_size=2).steps == 2
    assert "batch_size=2 is ignored, as by Keras" in caplog.text
    with pytest.raises(ValueError, match="found batch_size=2 for a function"):
        make_data_adapter(lambda context: tf.data.Dataset.range(3), batch_size=2)


def test_a_function_that_makes_a_generator_is_named():
    """Where the generator itself was meant."""

    def rows():
        yield np.zeros((2, 1)), np.zeros(2)

    for make in (make_data_adapter, make_finite_adapter):
        with pytest.raises(UsageError, match=r"a function, rows, .*InputContext: too many positional.*as rows\(\)"):
            make(rows)


def of_each_kind(tf, options=None):
    """A feed of arrays, one of a dataset and one of a function; the options are the user's."""

    dataset = tf.data.Dataset.range(ROWS).batch(BATCH).map(lambda x: x + 1, num_parallel_calls=tf.data.AUTOTUNE)
    if options is not None:
        dataset = dataset.with_options(options)
    return [
        make_data_adapter((np.arange(ROWS),)),
        make_data_adapter(dataset),
        make_data_adapter(lambda context: dataset),
    ]


def streams(feed, tensors):
    """All that is iterated of a feed."""

    yield feed.training_batches(tensors, ReplicaSlices(), 0)
    yield feed.training_batches(tensors, ReplicaSlices(count=2, total=2), 3, worker=1, workers=2)
    yield feed.training_slices(tensors, 2, 0, 1, 2)
    if feed.steps is not None:
        yield feed.single_pass(tensors, ReplicaSlices())


def tunes(tf, dataset):
    """What the outermost options in a dataset's graph say of tuning it; None if they leave it to TensorFlow."""
    from tensorflow.core.framework import dataset_options_pb2

    graph = tf.raw_ops.DatasetToGraphV2(input_dataset=tf.data.experimental.to_variant(dataset))
    said = None
    for node in tf.compat.v1.GraphDef.FromString(graph.numpy()).node:
        if node.op == "OptionsDataset":
            options = dataset_options_pb2.Options.FromString(node.attr["serialized_options"].s)
            if options.autotune_options.WhichOneof("optional_enabled"):
                said = options.autotune_options.enabled
    return said


@pytest.mark.slow
def test_what_is_iterated_has_no_thread_that_tunes_it(tf):
    """It would hold up the end of an iterator for as long as this one has lived, now and then."""
    for feed in of_each_kind(tf):
        for tensors in (feed.local_tensors(), received(feed)):
            assert {tunes(tf, dataset) for dataset in streams(feed, tensors)} == {False}


def test_whoever_wants_that_thread_has_it(tf):
    options = tf.data.Options()
    options.autotune.enabled = True
    _, *own = of_each_kind(tf, options)
    for feed in own:
        for tensors in (feed.local_tensors(), received(feed)):
            assert {tunes(tf, dataset) for dataset in streams(feed, tensors)} == {True}


def random_datasets(tf):
    """Datasets that are random and have no seed, each of `ROWS` numbers or fewer."""
    numbers = tf.data.Dataset.range(ROWS)
    drawn = tf.data.Dataset.random().take(ROWS)
    mixed = [numbers.shard(2, rest) for rest in range(2)]
    return {
        "shuffle": numbers.shuffle(ROWS),
        "shuffle once": numbers.shuffle(ROWS, reshuffle_each_iteration=False),
        "inside of a function": numbers.batch(50).flat_map(lambda v: tf.data.Dataset.from_tensor_slices(v).shuffle(50)),
        "filter": numbers.filter(lambda v: tf.random.uniform([]) < 0.5),
        "map": numbers.map(lambda v: v + tf.random.uniform([], maxval=9000, dtype=tf.int64)),
        "sample": tf.data.Dataset.sample_from_datasets(mixed, [0.5, 0.5]),
        "random": tf.data.Dataset.zip(numbers, drawn).map(lambda v, drawn: drawn),
    }


@every_third("kind", ["shuffle", "shuffle once", "inside of a function", "filter", "map", "sample", "random"])
def test_processes_that_read_one_dataset_see_one_order(tf, kind):
    """Each rebuilds it from the same graph; without that they would repeat some examples and miss others."""
    data = DatasetAdapter(random_datasets(tf)[kind].batch(BATCH))

    def order(held):
        batches = data.training_batches(held, ReplicaSlices(), 0).take(2 * STEPS)
        return [v for batch in batches for v in batch.numpy().tolist()]

    held = received(data)
    assert order(held) == order(held) != order(received(data))
    shared = [data.shared_tensors(lambda: 7) for _ in range(2)]
    assert order(shared[0]) == order(shared[1]) != order(data.shared_tensors(lambda: 8))
    if kind == "shuffle":
        first, second = order(held)[:ROWS], order(held)[ROWS : 2 * ROWS]
        assert sorted(first) == sorted(second) == list(range(ROWS))
        assert first != second


@pytest.mark.parametrize("whose", ["operation", pytest.param("dataset", marks=pytest.mark.slow)])
def test_an_operation_that_gives_elements_as_they_come(tf, whose):
    """The first of four that are read together is slow: in whatever order the others come, each process has one."""

    def slow_at_first(v):
        size = tf.cast(v == 0, tf.int32) * 1500 + 1
        matrix = tf.zeros([size, size])
        return v + tf.cast(tf.reduce_sum(matrix @ matrix @ matrix), tf.int64)

    options = tf.data.Options()
    options.deterministic = False
    options.autotune.enabled = True  # without it there is one thread
    if whose == "operation":
        numbers = tf.data.Dataset.range(ROWS).map(slow_at_first, num_parallel_calls=4, deterministic=False)
    else:
        numbers = tf.data.Dataset.range(ROWS).map(slow_at_first, num_parallel_calls=4).with_options(options)
    numbers = numbers.prefetch(1)  # TensorFlow makes one operation of a map and a batch
    data = DatasetAdapter(numbers.batch(BATCH))
    for held in (received(data), data.shared_tensors(lambda: 7)):
        (first, *_) = data.training_batches(held, ReplicaSlices(), 0).take(1)
        assert first.numpy().tolist() == list(range(BATCH))


def test_a_dataset_with_seeds_is_read_as_it_is(tf):
    data = DatasetAdapter(tf.data.Dataset.range(ROWS).shuffle(ROWS, seed=3).batch(BATCH))
    assert data.shared_tensors(lambda: pytest.fail("a seed is asked for")) is None


def test_a_generator_can_be_shuffled_by_peers(tf):
    """In the process that has it; its order becomes the same in all of them."""
    spec = tf.TensorSpec([], tf.int64)
    data = DatasetAdapter(
        tf.data.Dataset.from_generator(lambda: range(ROWS), output_signature=spec).shuffle(ROWS).batch(BATCH)
    )
    held = [data.shared_tensors(lambda: 7) for _ in range(2)]
    orders = [np.concatenate(list(data.single_pass(h, ReplicaSlices()))).tolist() for h in held]
    assert orders[0] == orders[1] != list(range(ROWS))
    assert sorted(orders[0]) == list(range(ROWS))


def test_a_data_service_is_read_by_one_process(tf):
    """It gives another one other elements: peers cannot read it together."""
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    numbers = tf.data.Dataset.range(ROWS).batch(BATCH)
    served = numbers.apply(service.distribute("parallel_epochs", dispatcher.target)).map(lambda x: x + 1)
    assert not DatasetAdapter(numbers).needs_this_process
    data = DatasetAdapter(served)
    assert data.needs_this_process
    with pytest.raises(UsageError, match="gives each peer other elements"):
        data.shared_tensors(lambda: 7)


@every_third("kind", ["shuffle", "inside of a function", "random", "generator", "table"])
def test_counting_batches_leaves_the_order_as_it_is(tf, kind):
    """A dataset of unknown length has its first order in the first epoch, though it was read before."""

    def make():
        numbers = tf.data.Dataset.range(ROWS)
        spec = tf.TensorSpec([], tf.int64)
        table = tf.lookup.KeyValueTensorInitializer(tf.range(ROWS, dtype=tf.int64), 2 * tf.range(ROWS, dtype=tf.int64))
        found = {
            "shuffle": lambda: numbers.shuffle(ROWS, seed=3),
            "inside of a function": lambda: numbers.batch(50).flat_map(
                lambda v: tf.data.Dataset.from_tensor_slices(v).shuffle(50, seed=2)
            ),
            "random": lambda: numbers.map(lambda v: v + tf.random.uniform([], 0, 1000, tf.int64, seed=4)),
            "generator": lambda: tf.data.Dataset.from_generator(lambda: range(ROWS), output_signature=spec).shuffle(
                9, 1
            ),
            "table": lambda: numbers.shuffle(ROWS, seed=3).map(tf.lookup.StaticHashTable(table, -1).lookup),
        }[kind]()
        return found.filter(lambda number: True).batch(BATCH)

    def passes(dataset):
        return [[batch.tolist() for batch in dataset.as_numpy_iterator()] for _ in range(2)]

    counted = DatasetAdapter(make())
    assert counted.steps == -(-ROWS // BATCH)
    assert passes(counted.dataset) == passes(make())


class Watcher(Unwatched):
    """How often it was told that data is read, and that a batch does not come."""

    moved = waited = 0

    def moves(self):
        self.moved += 1

    def waits_for_input(self, waits):
        self.waited += waits


def test_whoever_watches_is_told_that_batches_are_counted(tf):
    watcher = Watcher()
    batches = tf.data.Dataset.range(ROWS).batch(BATCH).filter(lambda batch: True)
    data = make_data_adapter(batches, progress=watcher).map(lambda batch: batch + 1)
    assert data.steps == watcher.moved == -(-ROWS // BATCH)
    assert data.first(2).steps == 2


def test_a_dataset_that_gives_no_more_while_it_is_counted(tf, monkeypatch):
    monkeypatch.setenv("TF2DIST_BATCH_TIMEOUT", "1")
    may_end, watcher = threading.Event(), Watcher()

    def numbers():
        yield from range(2)
        may_end.wait(60)

    batches = tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec([], tf.int64))
    with pytest.raises(TrainingError, match=r"^batch 2 of the Dataset has not come in 1 s; "):
        _ = make_data_adapter(batches, progress=watcher).steps
    may_end.set()
    assert watcher.moved == 2
    assert watcher.waited


def test_a_dataset_that_fails_while_it_is_counted_says_at_which_batch(tf):
    batches = (
        tf.data.Dataset.range(5)
        .map(lambda n: tf.debugging.check_numerics(1 / (3 - n), "a row"))
        .filter(lambda batch: True)
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="a row") as caught:
        _ = make_data_adapter(batches).steps
    assert caught.value.__notes__ == ["(at batch 3 of the Dataset, counted from 0)"]


def test_seeds_do_not_depend_on_what_else_a_process_has_made(tf):
    """Names of functions have a number that counts them, and the graph's library is in the order of a hash of names."""

    def rows():
        numbers = tf.data.Dataset.range(ROWS)
        for _ in range(4):
            numbers = numbers.map(lambda v: v + tf.random.uniform([], 0, 1000, tf.int64))
        numbers = numbers.interleave(lambda v: tf.data.Dataset.from_tensors(v).shuffle(2))
        data = DatasetAdapter(numbers.batch(ROWS))
        (batch,) = data.training_batches(data.shared_tensors(lambda: 5), ReplicaSlices(), 0, stop=1)
        return tuple(batch.numpy().tolist())

    assert len({rows() for _ in range(8)}) == 1


@pytest.mark.parametrize(
    ("sizes", "cuts", "weights"),
    [
        ((5, 5), ((2, 2), (3, 3)), (0.4, 0.6)),
        ((9, 18), ((4, 8), (5, 10)), (4 / 9, 5 / 9)),
        ((18, 9), ((8, 4), (10, 5)), (4 / 9, 5 / 9)),
        ((4, 6), ((2, 3), (2, 3)), (0.5, 0.5)),
        ((5, 8), ((5, 8), (5, 8)), (0, 1)),  # what counts nothing is a copy
        ((1, 8), ((1, 8), (1, 8)), (0, 1)),
    ],
)
def test_parts_of_a_batch_are_cut_in_the_same_proportion(tf, sizes, cuts, weights):
    """They may have different numbers of rows, as unlabelled examples beside labelled ones."""
    batch = {"labelled": np.arange(sizes[0]), "unlabelled": np.arange(sizes[1])}
    found = [slice_of(batch, rank, 2) for rank in range(2)]
    assert tuple((len(s["labelled"]), len(s["unlabelled"])) for s, _ in found) == cuts
    np.testing.assert_allclose([float(weight) for _, weight in found], weights, rtol=1e-6)
    counted = [s for s, weight in found if weight > 0]
    for name, rows in batch.items():
        np.testing.assert_array_equal(np.concatenate([s[name] for s in counted]), rows)


def test_a_dataset_is_read_here_by_a_thread_that_ends(tf):
    adapter, before = make_data_adapter(tf.data.Dataset.range(6)), threading.active_count()
    read = adapter.read(adapter.dataset)
    assert [int(next(read)) for _ in range(2)] == [0, 1]
    assert threading.active_count() == before + 1
    del read
    assert threading.active_count() == before
    assert [int(batch) for batch in adapter.read(adapter.dataset)] == [*range(6)]
    never_begun = adapter.read(adapter.dataset)
    del never_begun
    assert threading.active_count() == before


def test_a_dataset_of_which_no_batch_comes(tf, monkeypatch, caplog):
    """It is said after some time, whoever watches knows it, and there is an end."""
    from tf2dist.input import timed_batch_reader

    goes_on = threading.Event()

    def batches():
        yield 0
        goes_on.wait(60)
        yield 1

    waits = []

    class Watched(Unwatched):
        def waits_for_input(self, waiting):
            waits.append(waiting)

    monkeypatch.setattr(timed_batch_reader, "_NAMED_SECONDS", 0.5)
    monkeypatch.setenv("TF2DIST_BATCH_TIMEOUT", "1")
    dataset = tf.data.Dataset.from_generator(batches, output_signature=tf.TensorSpec([], tf.int64))
    read = DatasetAdapter(dataset, 2, Watched()).read(dataset, 10)
    assert int(next(read)) == 0
    with pytest.raises(TrainingError, match=r"^batch 11 of the Dataset has not come in 1 s; more time is given by TF2"):
        next(read)
    assert "batch 11 of the Dataset has not come for 0 s" in caplog.text
    assert waits == [True, True]
    goes_on.set()
