"""Commands that cannot be right are refused in one line, nothing on the disk changes and no process stays."""

import json
import socket
import struct
from dataclasses import dataclass

import pytest

from tests.conftest import every_third
from tf2dist.launch import free_ports

HOSTS = "--ps_hosts=127.0.0.1:2222", "--worker_hosts=127.0.0.1:2223,127.0.0.1:2224"


@dataclass(frozen=True)
class Case:
    """Arguments, and what the answer to them says; `config` is the text of a TF_CONFIG."""

    arguments: tuple
    said: tuple
    config: str | None = None

    def __str__(self):
        return " ".join([*self.arguments, self.config or ""]).strip()


def case(*arguments, said, config=None):
    return Case(arguments, (said,) if isinstance(said, str) else said, config)


def config(cluster, job, index):
    return json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})


FLAGS = [
    case("--strategy=horovod", said=("--strategy=horovod", "one|mirrored|central|multiworker|ps")),
    case("--preset=resnet", said=("--preset=resnet", "mlp|softmax|sigmoid|towers")),
    case("--stratgy=ps", said=("'stratgy'", "see --help")),
    case("--completely_unknown=1", said=("'completely_unknown'", "see --help")),
    case("-x", said=("'x'", "see --help")),
    case("ps", said=("unexpected argument 'ps'", "--name=value")),
    case("--strategy=one", "--", "more", said="unexpected argument 'more'"),
    case("--report", said="--report"),
    case("--flagfile=nowhere", said="nowhere"),
    case("--batch_size=0", said=("--batch_size=0", "positive integer")),
    case("--batch_size=-5", said=("--batch_size=-5", "positive integer")),
    case("--batch_size=many", said=("--batch_size=many", "'many'")),
    case("--batch_size=1.5", said=("--batch_size=1.5", "'1.5'")),
    case("--batch_size=", said="--batch_size="),
    case("--epochs=0", said="--epochs=0"),
    case("--steps=-1", said="--steps=-1"),
    case("--epochs=1", "--steps=100", said=("--epochs=1 and --steps=100", "give one")),
    case("--learning_rate=-0.1", said="--learning_rate=-0.1"),
    case("--learning_rate=fast", said="--learning_rate=fast"),
    case("--learning_rate=nan", said="--learning_rate=nan"),
    case("--learning_rate=inf", said="--learning_rate=inf"),
    case("--seed=-1", said="--seed=-1"),
    case("--seed=4294967296", said=("--seed=4294967296", "[0, 4294967295]")),
    case("--replicas=0", said=("--replicas=0", "an integer in the range [1, 1024]")),
    case("--ps=0", "--strategy=ps", said="--ps=0"),
    case("--workers=0", "--strategy=ps", said="--workers=0"),
    case("--workers=99999999999", "--strategy=ps", said=("--workers=99999999999", "[1, 65535]")),
    case("--replicas=99999999999", "--strategy=mirrored", said=("--replicas=99999999999", "[1, 1024]")),
    case("--xla=maybe", said="--xla=maybe"),
]
TOGETHER = [
    case("--strategy=mirrored", "--replicas=2", "--batch_size=101",
         said=("--batch_size=101", "2 replicas", "100 or 102")),
    case("--strategy=central", "--replicas=3", "--batch_size=2", said=("--batch_size=2", "3 replicas; 3 would")),
    case("--strategy=multiworker", "--workers=3", "--replicas=2", "--batch_size=64",
         said=("6 replicas", "60 or 66")),
    case("--strategy=multiworker", "--ps=2", said=("--ps", "multiworker has no parameter servers")),
    case("--workers=2", said=("--workers", "the strategy is one")),
    case("--strategy=mirrored", "--ps=2", said=("--ps", "the strategy is mirrored")),
    case("--strategy=ps", "--replicas=2", said=("--replicas=2", "mirrored, central or multiworker")),
    case("--replicas=2", said="--replicas=2"),
    case("--strategy=ps", "--xla", said=("--xla", "--strategy=ps", "one, mirrored and multiworker")),
    case("--strategy=central", "--xla", said=("--xla", "--strategy=central")),
]  # fmt: skip
DATA = [
    case("--dataset=cifar", said=("--dataset=cifar", "auto, mnist")),
    case("--dataset=", said="--dataset="),
    case("--dataset=nowhere/train.tfrecords", said="nowhere/train.tfrecords"),
    case("--data_dir=nowhere", said=("--data_dir=nowhere", "not a directory")),
    case("--dataset=mnist", "--data_dir=file", said=("--data_dir=file", "not a directory")),
    case("--dataset=folder", said=("folder", "no training part")),
    case("--dataset=file", said="file"),
    case("--dataset=truncated/train.tfrecords", said=("train.tfrecords is truncated", "inside record 2")),
    case("--dataset=truncated", "--strategy=ps", said=("train.tfrecords is truncated", "inside record 2")),
    case("--dataset=truncated", "--strategy=multiworker", said="is truncated"),
    case("--dataset=foreign", said=("train.tfrecords holds other records", "image_raw, pixels, label")),
]
PLACES = [
    case("--report=file/report.json", said=("--report=file/report.json", "not a directory")),
    case("--report=nowhere/report.json", said=("--report=nowhere/report.json", "no such file or directory")),
    case("--report=folder", said=("--report=folder", "is a directory; name a file in it")),
    case("--report=/proc/report.json", said="--report=/proc/report.json"),
    case("--logdir=file", said=("--logdir=file", "not a directory")),
    case("--logdir=file/logs", said=("--logdir=file/logs", "not a directory")),
    case("--logdir=/proc/logs", said="--logdir=/proc/logs"),
    case("--logdir=file/logs", "--strategy=ps", said="--logdir=file/logs"),
    case("--logdir=gs://bucket/x", said=("--logdir=gs://bucket/x is a URL", "as /mnt/bucket/x")),
    case("--logdir=gs://bucket/x", "--strategy=ps", said="--logdir=gs://bucket/x is a URL"),
    case("--logdir=gs://bucket/x", *HOSTS, "--job_name=ps", "--task_index=0", said="--logdir=gs://bucket/x is a URL"),
    case("--report=new://bucket/x", said="--report=new://bucket/x is a URL of an unknown scheme; file://, s3://"),
    case("--report=abfs://bucket/x", said=("--report=abfs://bucket/x needs the package adlfs", "pip install adlfs")),
    case("--report=s3://bucket/x", "--logdir=s3://bucket/x", said="--logdir=s3://bucket/x is a URL"),
    case("--dataset=mnist", "--data_dir=new://bucket/x", said="--data_dir=new://bucket/x is a URL of an unknown"),
    case("--dataset=abfs://bucket/x", "--strategy=ps", said="--dataset=abfs://bucket/x needs the package adlfs"),
    # Something else is wrong, and the directory is not made before that is found.
    case("--logdir=new/logs", "--dataset=cifar", said="--dataset=cifar"),
]
HOST_FLAGS = [
    case(HOSTS[0], said=("--ps_hosts=127.0.0.1:2222", "without --worker_hosts")),
    case(HOSTS[0], "--job_name=ps", "--task_index=0", said="without --worker_hosts"),
    case(*HOSTS, said=("--job_name=ps|worker", "--task_index")),
    case(*HOSTS, "--task_index=0", said="--job_name=ps|worker"),
    case(*HOSTS, "--job_name=worker", said=("2 tasks", "--task_index")),
    case(*HOSTS, "--job_name=master", "--task_index=0", said=("--job_name=master", "ps, worker")),
    case(*HOSTS, "--job_name=worker", "--task_index=2", said=("worker 2", "from 0 to 1")),
    case(*HOSTS, "--job_name=worker", "--task_id=2", said=("worker 2", "from 0 to 1")),
    case(*HOSTS, "--job_name=worker", "--task_index=-1", said="=-1"),
    case(HOSTS[1], "--job_name=ps", "--task_index=0", said=("--job_name=ps", "this job has worker")),
    case("--job_name=worker", said=("--job_name=worker", "without --worker_hosts")),
    case("--task_index=0", said=("--task_index=0", "without --worker_hosts")),
    case("--ps_hosts=here", "--worker_hosts=127.0.0.1:2", "--job_name=ps", said=("'here'", "host:port")),
    case("--worker_hosts=a:1,a:1", "--job_name=worker", "--task_index=0", said="a:1 is given to worker 0 and to"),
    case(*HOSTS, "--job_name=ps", "--strategy=multiworker", said="no parameter servers, but the cluster has 1"),
    case(*HOSTS, "--job_name=ps", "--strategy=one", said=("one runs in one process", "3 tasks")),
    case(HOSTS[1], "--job_name=worker", "--task_id=0", "--strategy=ps", said="one ps and one worker, found 0 and 2"),
    case(*HOSTS, "--job_name=ps", "--workers=3", said=("--workers=3", "has 2")),
]
TF_CONFIG = [
    case(config="worker 0", said=("TF_CONFIG is not JSON", "found worker 0")),
    case(config='{\n  "task":\n  {}\n}', said=("TF_CONFIG", '"cluster"', 'found { "task": {} }')),
    case(config='{"cluster": {"worker": ["a:1"]}}', said=("TF_CONFIG", '"task"')),
    case(config=config({"worker": ["a:1", "b:1"]}, "worker", 2), said=("worker 2", "from 0 to 1")),
    case(config=config({"worker": ["a:1"]}, "ps", 0), said=("ps 0", "jobs are worker")),
    case(config=config({"chief": ["a:1", "b:1"], "worker": ["c:1"]}, "worker", 0), said="2 chiefs, a:1, b:1"),
    case(config=config({"worker": ["a:1", "a:1"]}, "worker", 0), said="a:1 is given to worker 0 and to worker 1"),
    case(config=config({"worker": ["a"]}, "worker", 0), said=("'a'", "host:port")),
    case(config=config({"worker": ["a:1"]}, "evaluator", 0), said=("evaluator", "--logdir")),
    case("--strategy=mirrored", config=config({"worker": ["a:1", "b:1"]}, "worker", 0), said="2 tasks"),
    case("--strategy=ps", config=config({"worker": ["a:1", "b:1"]}, "worker", 0), said="one ps and one worker"),
]


@pytest.fixture
def files(tmp_path):
    """A file, a directory, and TFRecord files that are none."""
    (tmp_path / "file").write_text("something")
    (tmp_path / "folder").mkdir()
    good = record({"image_raw": b"\0" * 784, "pixels": 784, "label": 3})
    for name, train in (("truncated", good + good[:100]), ("foreign", record({"image": b"\0"}))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.tfrecords").write_bytes(train)
        (tmp_path / name / "test.tfrecords").write_bytes(good)


CASES = [*FLAGS, *TOGETHER, *DATA, *PLACES, *HOST_FLAGS, *TF_CONFIG]


@every_third("case", CASES, rarely=pytest.mark.exhaustive, quickly=6, ids=str)
def test_refused_before_tensorflow_is_imported(case, run, files, tree, no_tensorflow):
    before = tree()
    arguments = case.arguments
    if not any(argument.startswith(("--dataset", "--data_dir")) for argument in arguments):
        arguments = ("--dataset=digits", *arguments)
    said = run(*arguments, env={**no_tensorflow, **({"TF_CONFIG": case.config} if case.config else {})}).refused()
    assert said.startswith("mnist: ")
    for part in case.said:
        assert part in said
    assert tree() == before


TAKEN = {
    "ps, by host flags": (["ps", "worker"], "ps", False),
    "a worker, by host flags": (["ps", "worker"], "worker 1", False),
    "worker 0, which coordinates": (["ps", "worker"], "worker 0", False),
    "ps, by TF_CONFIG": (["ps", "worker"], "ps", True),
    "worker 0, by TF_CONFIG": (["ps", "worker"], "worker 0", True),
    "a chief": (["chief", "ps", "worker"], "chief", True),
    "the first peer": (["worker"], "worker 0", False),
    "another peer": (["worker"], "worker 1", True),
}


@pytest.mark.parametrize(("jobs", "task", "by_config"), TAKEN.values(), ids=TAKEN.keys())
def test_a_port_that_is_taken(jobs, task, by_config, start, tree, no_tensorflow):
    job, _, index = task.partition(" ")
    index = int(index or 0)
    with free_ports.hold(4) as held, socket.socket() as other:
        free = iter(held)
        cluster = {name: [f"127.0.0.1:{next(free)}" for _ in range(2 if name == "worker" else 1)] for name in jobs}
        address = cluster[job][index]
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", int(address.rpartition(":")[2])))
        other.listen()
        if by_config:
            arguments, env = [], {"TF_CONFIG": config(cluster, job, index)}
        else:
            arguments = [f"--{name}_hosts={','.join(addresses)}" for name, addresses in cluster.items()]
            arguments += [f"--job_name={job}", f"--task_index={index}"]
            env = {}
        said = start("--dataset=digits", *arguments, env={**no_tensorflow, **env}).finish(timeout=60).refused()
    assert f"port {address.rpartition(':')[2]} of {job} {index} ({address}) is in use on this host" in said
    assert tree() == {}


@pytest.mark.slow
def test_a_record_that_is_damaged_is_found_while_running(run, tmp_path, tree):
    good = record({"image_raw": b"\0" * 784, "pixels": 784, "label": 3})
    bad = bytearray(good)
    bad[400] ^= 1
    (tmp_path / "train.tfrecords").write_bytes(good * 30 + bytes(bad) + good * 30)
    (tmp_path / "test.tfrecords").write_bytes(good)
    before = tree()
    done = run("--dataset=.", "--steps=100", "--batch_size=10", "--report=report.json")
    assert (done.status, done.err.count("\n")) == (1, 1), done
    assert done.err.startswith("mnist: DataLossError: ")
    assert "corrupted record" in done.err
    assert tree() == before


@pytest.mark.slow
def test_a_wrong_label_is_found_while_running(run, tmp_path, tree):
    good = record({"image_raw": b"\0" * 784, "pixels": 784, "label": 3})
    wrong = record({"image_raw": b"\0" * 784, "pixels": 784, "label": 10})
    (tmp_path / "train.tfrecords").write_bytes(good * 30 + wrong)
    (tmp_path / "test.tfrecords").write_bytes(good)
    before = tree()
    done = run("--dataset=.", "--steps=100", "--batch_size=31", "--report=report.json")
    assert (done.status, done.err.count("\n")) == (1, 1), done
    assert "Traceback" not in done.err
    assert "label" in done.err
    assert "10" in done.err
    assert tree() == before


def record(features):
    """One TFRecord record: an Example with bytes and integers, made without TensorFlow."""

    def field(number, payload):
        return bytes([number << 3 | 2]) + varint(len(payload)) + payload

    def varint(value):
        low, high = value & 127, value >> 7
        return bytes([low | 128]) + varint(high) if high else bytes([low])

    def feature(value):
        if isinstance(value, bytes):
            return field(1, field(1, value))
        return field(3, field(1, varint(value)))

    entries = b"".join(field(1, field(1, name.encode()) + field(2, feature(v))) for name, v in features.items())
    example = field(1, entries)
    length = struct.pack("<Q", len(example))
    return length + struct.pack("<I", masked(length)) + example + struct.pack("<I", masked(example))


def masked(data):
    """TFRecord's masked CRC-32C, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
