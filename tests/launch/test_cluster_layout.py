"""What the options say of the cluster."""

import argparse

import pytest

from tf2dist.errors import UsageError
from tf2dist.launch import cluster_layout


def parse(*arguments):
    parser = argparse.ArgumentParser()
    cluster_layout.add_arguments(parser)
    return parser.parse_args(arguments)


def read(*arguments):
    return cluster_layout.from_options(parse(*arguments))


def places(found):
    return [f"{p.task} {p.host}" + (f":{p.port}" if p.port else "") for p in found.placed]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["worker 0 localhost"]),
        (["--ps=1", "--workers=1"], ["chief 0 localhost", "worker 0 localhost", "ps 0 localhost"]),
        (["--hosts=a,b:2"], ["worker 0 a", "worker 1 b", "worker 2 b"]),
        (["--hosts=a,b:2", "--workers=2"], ["worker 0 a", "worker 1 b"]),
        (
            ["--hosts=a,b", "--ps=3", "--evaluator"],
            ["chief 0 a", "worker 0 a", "worker 1 b", "ps 0 a", "ps 1 b", "ps 2 a", "evaluator 0 a"],
        ),
        (["--hosts=a,b", "--ps=1", "--no-chief"], ["worker 0 a", "worker 1 b", "ps 0 a"]),
        (
            ["--hosts=a,b", "--ps=1", "--data_workers=3", "--evaluator"],
            [
                *("chief 0 a", "worker 0 a", "worker 1 b", "ps 0 a"),
                *("data_worker 0 a", "data_worker 1 b", "data_worker 2 a", "evaluator 0 a"),
            ],
        ),
        (["--data_workers=1"], ["worker 0 localhost", "data_worker 0 localhost"]),
        (["--hosts=me@a,[fe80::1]:2"], ["worker 0 me@a", "worker 1 [fe80::1]", "worker 2 [fe80::1]"]),
    ],
)
def test_places(arguments, expected):
    assert places(read(*arguments)) == expected


def test_how_few_workers_the_job_may_go_on_with():
    found = read("--hosts=a,b:2,c", "--workers=2:4", "--evaluator")
    assert (found.fewest_workers, found.count("worker")) == (2, 4)
    assert read("--workers=4").fewest_workers is None
    left = found.without([place for place in found.placed if place.host == "b"])
    assert places(left) == ["worker 0 a", "worker 1 c", "evaluator 0 a"]
    assert left.without([left.placed[0]]) is None  # fewer than two
    assert found.without([place for place in found.placed if place.host == "a"]) is None  # with the evaluator


def test_with_how_few_workers_a_job_with_servers_may_begin():
    """It goes on without those that are lost later anyway, and is not started again with fewer."""
    options = parse("--workers=2:4", "--ps=1")
    found = cluster_layout.from_options(options)
    assert (found.fewest_workers, found.count("worker")) == (None, 4)
    assert cluster_layout.task_environment(options)["TF2DIST_MIN_WORKERS"] == "2"
    for arguments in (["--workers=4", "--ps=1"], ["--workers=2:4"]):
        assert "TF2DIST_MIN_WORKERS" not in cluster_layout.task_environment(parse(*arguments))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workers=2:4", "--hosts=a,b"], "4 workers do not fit in the 2 slots"),
        (["--workers=2:2", "--cluster=x.toml"], "both say the tasks"),
    ],
)
def test_where_there_cannot_be_fewer_workers(arguments, said):
    with pytest.raises(UsageError, match=said):
        read(*arguments)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        ("4:2", "of 4:2 the first"),
        ("0:2", "of 0:2 the first"),
        ("2:", "neither"),
        (":2", "neither"),
        ("1:2:3", "neither"),
    ],
)
def test_numbers_of_workers_that_are_none(number, said, capsys):
    with pytest.raises(SystemExit):
        read(f"--workers={number}")
    assert said in capsys.readouterr().err


def test_a_host_file(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# ours\na\n\nb slots=2  # big\nc:1\n")
    assert places(read(f"--hostfile={file}")) == ["worker 0 a", "worker 1 b", "worker 2 b", "worker 3 c"]


def test_cluster_toml(tmp_path):
    file = tmp_path / "cluster.toml"
    file.write_text('ps = ["c"]\nworker = ["a:5000", "b", "b"]\nevaluator = ["a"]\n')
    found = read(f"--cluster={file}")
    assert places(found) == ["worker 0 a:5000", "worker 1 b", "worker 2 b", "ps 0 c", "evaluator 0 a"]
    assert found.cluster().spec == {"worker": ["a:5000", "b:2222", "b:2223"], "ps": ["c:2222"]}
    assert [found.serves(task) for task in found.tasks] == [False, True, True, True, False]
    file.write_text('worker = ["a"]\ndata_worker = ["a", "b"]\n')
    found = read(f"--cluster={file}")
    assert places(found) == ["worker 0 a", "data_worker 0 a", "data_worker 1 b"]
    assert found.cluster().spec == {"worker": ["a:2222"]}
    assert found.cluster().described == {"worker": ["a:2222"], "data_worker": ["a:2223", "b:2222"]}
    assert [(found.serves(task), found.coordinator_needs(task)) for task in found.tasks] == [
        (False, False), (True, True), (True, True),
    ]  # fmt: skip
    file.write_text('worker = ["a", "b"]\ndata_worker = ["a"]\n')
    with pytest.raises(UsageError, match="found 2 peers"):
        read(f"--cluster={file}")


def test_ports_follow_each_other_on_a_host():
    spec = read("--hosts=a,b:2", "--ps=1").cluster(7000, address=lambda host: f"{host}.example").spec
    assert spec == {
        "chief": ["a.example:7000"],
        "worker": ["a.example:7001", "b.example:7000", "b.example:7001"],
        "ps": ["a.example:7002"],
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workers=0"], "workers is 0"),
        (["--ps=-1"], "servers is -1"),
        (["--data_workers=-1"], "data workers is -1"),
        (["--data_workers=65536"], "data workers is 65536"),
        (["--data_workers=1", "--workers=2"], "found 2 peers, which would get other elements each"),
        (["--data_workers=1", "--workers=2:4"], "found 4 peers"),
        (["--data_workers=1", "--workers=1", "--chief"], "found 2 peers"),
        (["--cluster=/dev/null", "--data_workers=1"], "--data_workers and --cluster=/dev/null both"),
        (["--hosts=a,b", "--workers=3"], "3 workers do not fit in the 2 slots of a, b"),
        (["--hosts=a,a"], "host a is named 2 times"),
        (["--hosts=a,,b"], "has ''"),
        (["--hosts="], "has ''"),
        (["--hosts=a:x"], "'x' is not a number of slots"),
        (["--hosts=a:0"], "'0' is not a number of slots"),
        (["--hosts=-oProxyCommand=x"], "names no host"),
        (["--hosts=a", "--hostfile=x"], "--hosts and --hostfile both"),
        (["--hostfile=/nowhere"], "--hostfile=/nowhere cannot be read"),
        (["--cluster=/nowhere"], "--cluster=/nowhere cannot be read"),
        (["--cluster=/dev/null"], "names no worker"),
        (["--cluster=/dev/null", "--ps=1"], "--ps and --cluster=/dev/null both"),
        (["--port=0"], "--port=0 is no port"),
        (["--start_timeout=0"], "--start_timeout=0"),
        (["--stall_timeout=-1"], "--stall_timeout=-1 must be a number of seconds, or 0 for never"),
        (["--stall_timeout=nan"], "--stall_timeout=nan must be a number of seconds"),
    ],
)
def test_what_cannot_be(arguments, said):
    with pytest.raises(UsageError) as error:
        read(*arguments)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("worker = 3", "worker is 3"),
        ("worker = [3]", "worker is [3]"),
        ("workers = ['a']", "has 'workers'"),
        ("worker = ['a'", "is not TOML"),
        ("worker = ['a:99999']", "'99999' is not a port"),
        ("worker = ['a']\nchief = ['a', 'b']", "several chiefs"),
        ("ps = ['a']", "names no worker"),
        ("", "names no worker"),
    ],
)
def test_what_a_file_cannot_say(tmp_path, text, said):
    file = tmp_path / "cluster.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"cluster\.toml") as error:
        read(f"--cluster={file}")
    assert said in str(error.value)


def test_one_address_for_two_tasks(tmp_path):
    file = tmp_path / "cluster.toml"
    file.write_text('worker = ["a:5000", "a:5000"]')
    with pytest.raises(UsageError, match="a:5000 is given to worker 0 and to worker 1"):
        read(f"--cluster={file}").cluster()
