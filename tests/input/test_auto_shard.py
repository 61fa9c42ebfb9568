"""Datasets whose options name an auto-shard policy, divided among asynchronous workers."""

import numpy as np
import pytest

from tests.input.test_adapters import received
from tf2dist.errors import UsageError
from tf2dist.input.batch_slicing import ReplicaSlices
from tf2dist.input.dataset_adapter import DatasetAdapter

FILES, LINES, BATCH = 5, 7, 3


@pytest.fixture(autouse=True)
def without_global_seed(tf):
    """An earlier test's, with which nothing would be without a seed."""
    tf.random.set_seed(None)


@pytest.fixture
def files(tmp_path):
    """Files of lines whose numbers say from which file they are."""
    for file in range(FILES):
        tmp_path.joinpath(f"{file}.txt").write_text("".join(f"{100 * file + n}\n" for n in range(LINES)))
    return str(tmp_path / "*.txt")


def lines(tf, files, policy=None, shuffle=True):
    """Batches of lines, shuffled without a seed."""
    dataset = tf.data.Dataset.list_files(files, shuffle=shuffle)
    dataset = dataset.interleave(tf.data.TextLineDataset, cycle_length=2)
    dataset = dataset.shuffle(2 * LINES) if shuffle else dataset
    return with_policy(tf, dataset.map(lambda line: tf.strings.to_number(line, tf.int32)).batch(BATCH), policy)


def with_policy(tf, dataset, policy):
    options = tf.data.Options()
    if policy:
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
    return dataset.with_options(options)


def shards(dataset, workers, steps, start=0):
    """The first batches of each worker, as lists; read in a graph, as on workers."""
    import tensorflow as tf

    feed = DatasetAdapter(dataset).divided(workers)
    held = received(feed)

    @tf.function(autograph=False)
    def first_batches(worker):
        batches = feed.training_batches(held, ReplicaSlices(), start, worker, workers).take(steps)
        return next(iter(batches.padded_batch(steps, padding_values=-1)))

    return [
        [[v for v in batch.tolist() if v >= 0] for batch in first_batches(tf.constant(w, tf.int64)).numpy()]
        for w in range(workers)
    ]


def rows(batches):
    return [row for batch in batches for row in batch]


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_each_worker_reads_its_files(tf, files, workers):
    """Each line of them once a pass, in a new order."""
    for worker, batches in enumerate(shards(lines(tf, files, "FILE"), workers, 20)):
        mine = [100 * f + n for f in range(worker, FILES, workers) for n in range(LINES)]
        passes = [batches[i : i + -(-len(mine) // BATCH)] for i in (0, -(-len(mine) // BATCH))]
        assert [sorted(rows(batches)) for batches in passes if len(rows(batches)) == len(mine)]
        assert sorted(rows(passes[0])) == mine
        assert rows(passes[0]) != mine
        assert rows(passes[1]) != rows(passes[0])


def test_a_worker_goes_on_in_its_files(tf, files):
    dataset = lines(tf, files, "FILE", shuffle=False)
    whole, later = shards(dataset, 2, 12), shards(dataset, 2, 8, start=8)
    assert [batches[4:12] for batches in whole] == later


def test_each_worker_takes_its_elements_of_one_order(tf, files):
    first, second = shards(lines(tf, files, "DATA"), 2, 6)
    assert sorted(rows(first + second)) == [100 * f + n for f in range(FILES) for n in range(LINES)]


def test_each_worker_reads_all_of_it(tf, files):
    """In an order of its own."""
    passes = -(-FILES * LINES // BATCH)
    first, second = shards(lines(tf, files, "OFF"), 2, passes)
    assert sorted(rows(first)) == sorted(rows(second)) == [100 * f + n for f in range(FILES) for n in range(LINES)]
    assert rows(first) != rows(second)


@pytest.mark.parametrize("policy", [None, "FILE", "DATA", "OFF"])
def test_slices_and_shards_of_passes_are_of_one_order(tf, files, policy):
    """Synchronous workers cut the same batches, and those that evaluate divide one pass, whatever the policy."""
    feed = DatasetAdapter(lines(tf, files, policy))
    held, everything = received(feed), [100 * f + n for f in range(FILES) for n in range(LINES)]
    batches = -(-len(everything) // BATCH)
    slices = [feed.training_slices(held, 2, 0, worker, 2).take(batches) for worker in range(2)]
    assert sorted(rows(cut.numpy().tolist() for of_worker in slices for cut, _ in of_worker)) == everything
    passes = [feed.single_pass(held, ReplicaSlices(), batches, shard, 2) for shard in range(2)]
    assert sorted(rows(batch.numpy().tolist() for shard in passes for batch in shard)) == everything


def test_hints_are_refused(tf):
    """What has one has no length, and cannot be read, before it is divided."""
    hint = tf.data.experimental.SHARD_HINT
    numbers = with_policy(tf, tf.data.Dataset.range(1000).shard(hint, hint).batch(10), "HINT")
    with pytest.raises(UsageError, match=r"HINT is not supported; give a function of tf.distribute.InputContext"):
        DatasetAdapter(numbers)


def test_who_reads_it(tf, files):
    """The coordinator, unless workers are told how to divide it."""
    assert DatasetAdapter(lines(tf, files)).needs_one_reader
    assert DatasetAdapter(lines(tf, files, "AUTO")).needs_one_reader
    assert not DatasetAdapter(lines(tf, files, "FILE")).needs_one_reader
    calls = tf.data.Dataset.range(3).map(lambda v: tf.numpy_function(np.abs, [v], tf.int64)).batch(1)
    assert DatasetAdapter(with_policy(tf, calls, "DATA")).needs_one_reader


@pytest.mark.parametrize(
    ("policy", "workers", "said"),
    [
        ("FILE", 6, r"auto_shard_policy=FILE for 6 workers: the last one would read nothing; give fewer workers, or"),
        ("numbers", 2, "auto_shard_policy=FILE for 2 workers: the Dataset cannot be sharded so: Found an unshardable"),
    ],
)
def test_what_cannot_be_divided_is_refused(tf, files, policy, workers, said):
    numbers = with_policy(tf, tf.data.Dataset.range(9).batch(2), "FILE")
    with pytest.raises(UsageError, match=said) as raised:
        DatasetAdapter(numbers if policy == "numbers" else lines(tf, files, policy)).divided(workers)
    assert "\n" not in str(raised.value)


def test_caches_in_files_are_refused(tf, files, tmp_path):
    """A complete one is read as it is, whatever files it was made of."""
    for cached, refused in ((lines(tf, files).cache(), False), (lines(tf, files).cache(str(tmp_path / "c")), True)):
        feed = DatasetAdapter(with_policy(tf, cached, "FILE"))
        if refused:
            with pytest.raises(UsageError, match=r"has a cache\(filename\), in which a worker would find"):
                feed.divided(2)
        else:
            feed.divided(2)
        feed.divided(1)


def test_what_can_be_divided_is_not_refused(tf, files):
    for policy, workers in (("FILE", FILES), ("DATA", 50), ("OFF", 50), (None, 50)):
        DatasetAdapter(lines(tf, files, policy)).divided(workers)
