"""Greetings and pinned arithmetic: alone, by hand on a job of any name, on ps and workers, and by the launcher."""

import json

import pytest

from tests.conftest import every_third
from tf2dist.launch import free_ports

HELLO = "trainers.hello"
GREETING = "Hello, distributed TensorFlow!"


def by_hand(start, tasks, jobs, *arguments):
    """Starts each task as a process of its own, in this order, on free ports; returns how they ended, by task."""
    with free_ports.hold(sum(jobs.values())) as held:
        free = iter(f"127.0.0.1:{port}" for port in held)
        hosts = {name: ",".join(next(free) for _ in range(count)) for name, count in jobs.items()}
        flags = [f"--{'' if name == 'local' else name + '_'}hosts={places}" for name, places in hosts.items()]
        processes = {
            (job, index): start(
                *flags, f"--job_name={job}", f"--task_index={index}", f"--report={job}{index}.json", *arguments,
                module=HELLO,
            )
            for job, index in tasks
        }  # fmt: skip
        done = {task: process.finish() for task, process in processes.items()}
    assert all(process.all_gone() for process in processes.values())
    assert {task: (one.status, one.err) for task, one in done.items()} == dict.fromkeys(tasks, (0, ""))
    return done


@pytest.mark.slow
def test_two_tasks_of_a_job_of_any_name(start, tmp_path):
    done = by_hand(start, [("local", 1), ("local", 0)], {"local": 2}, "--log_device_placement")
    assert done["local", 1].out == ""
    lines = done["local", 0].out.splitlines()
    assert [line.partition(" at ")[0] for line in lines[:2]] == ["local 0", "local 1"]
    assert all(line.endswith(GREETING) for line in lines[:2])
    assert lines[2] == "238"
    report = json.loads((tmp_path / "local0.json").read_text())
    assert (report["result"], report["trainer"], report["processes"]) == (238, "hello", {"local": 2})
    first, second = (f"/job:local/task:{index}/cpu:0" for index in (0, 1))
    assert report["placement"] == [
        {"op": "x - 66", "wanted": second, "got": second},
        {"op": "x + 300", "wanted": first, "got": first},
        {"op": "sum", "wanted": first, "got": first},
    ]
    rows = [line.split() for line in lines[7:]]
    assert lines[7].split() == ["operation", "wanted", "got"]
    assert ["Sub", second, second] in rows
    assert ["StringJoin", second, second] in rows
    assert ["AddV2", first, first] in rows
    assert not (tmp_path / "local1.json").exists()


@pytest.mark.exhaustive
def test_parameter_servers_and_workers_in_any_order(start, tmp_path):
    tasks = [("worker", 0), ("ps", 0), ("worker", 1)]
    for order in (tasks, tasks[::-1]):
        done = by_hand(start, order, {"ps": 1, "worker": 2}, "--devices=/job:worker/task:1/cpu:0,/job:ps/task:0")
        assert done["worker", 0].out.count(GREETING) == 3
        assert "238" in done["worker", 0].out.splitlines()
        report = json.loads((tmp_path / "worker0.json").read_text())
        assert [step["got"] for step in report["placement"]] == [
            "/job:ps/task:0/cpu:0", "/job:worker/task:1/cpu:0", "/job:worker/task:1/cpu:0",
        ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("--strategy=ps", "--ps=2"), ("--strategy=multiworker", "--workers=3")], ids=str)
def test_its_own_local_cluster(run, tmp_path, arguments):
    done = run(*arguments, "--report=it.json", module=HELLO)
    assert (done.status, done.err) == (0, ""), done
    assert done.out.count(GREETING) == (5 if "--ps=2" in arguments else 3)
    assert json.loads((tmp_path / "it.json").read_text())["result"] == 238


PINNED = ("--devices=/cpu:0,/gpu:1", "--report=it.json")


@pytest.mark.slow
def test_a_device_that_is_not_there(run, tmp_path):
    done = run(*PINNED, module=HELLO)
    assert (done.status, done.err) == (2, (
        "hello: operation x - 66 cannot be placed on /gpu:1; the devices are /cpu:0; --soft_placement lets TensorFlow "
        "choose another device\n"
    ))  # fmt: skip
    assert not (tmp_path / "it.json").exists()


@pytest.mark.slow
def test_alone(run, tmp_path):
    done = run(*PINNED, "--soft_placement", module=HELLO)
    assert (done.status, done.err) == (0, ""), done
    report = json.loads((tmp_path / "it.json").read_text())
    assert (report["result"], report["placement"][0]) == (238, {"op": "x - 66", "wanted": "/gpu:1", "got": "/cpu:0"})
    done = run("--replicas=2", "--report=it.json", module=HELLO)
    assert (done.status, done.err) == (0, ""), done
    report = json.loads((tmp_path / "it.json").read_text())
    assert [step["got"] for step in report["placement"]] == ["/cpu:1", "/cpu:0", "/cpu:0"]


@pytest.mark.parametrize(("index", "missing"), [(0, "local 1"), (1, "local 0")])
def test_who_is_missing_is_named(run, index, missing, no_tensorflow):
    with free_ports.hold(2) as held:
        hosts = ",".join(f"127.0.0.1:{port}" for port in held)
        arguments = (f"--hosts={hosts}", "--job_name=local", f"--task_index={index}", "--start_timeout=1")
        done = run(*arguments, module=HELLO, env=no_tensorflow)
    assert done.refused(status=1)
    assert f"{missing} at 127.0.0.1:{held[1 - index]}" in done.err


BAD = {
    ("--devices=/cpu:0",): "names 1; two are right",
    ("--devices=/cpu:0,there",): "'there' in --devices is no device",
    ("--devices=/cpu:0,/tpu:0",): "'/tpu:0' in --devices is no device",
    ("--job_name=local",): "--job_name=local needs --task_index",
    ("--hosts=a:1,b:1",): "--hosts=a:1,b:1 needs --job_name",
    ("--job_name=local", "--task_index=2"): "this task is local 2, but the cluster has 2 of job local",
    ("--job_name=my-job", "--task_index=0"): "cannot be called 'my-job'",
    ("--job_name=local", "--task_index=0", "--hosts=here"): "'here'",
    ("--job_name=worker", "--task_index=0"): "--job_name=worker is given without --worker_hosts",
    ("--hosts=a:1", "--worker_hosts=b:1", "--job_name=worker"): "give one",
    ("238",): "unexpected argument '238'",
    ("--start_timeout=0",): "--start_timeout=0",
}


@every_third("arguments", BAD, rarely=pytest.mark.exhaustive, quickly=6, ids=" ".join)
def test_refused_before_tensorflow_is_imported(run, no_tensorflow, arguments):
    line = run(*arguments, module=HELLO, env=no_tensorflow).refused()
    assert line.startswith("hello: ")
    assert BAD[arguments] in line
