"""--log_device_placement and --soft_placement on trainers that have a strategy."""

import pytest

from tests.conftest import sampled

SHORT = ("--dataset=synthetic", "--steps=2", "--batch_size=64", "--log_device_placement")


def rows(out):
    """The table that was printed: (operation, wanted, got)."""
    _, _, table = out.partition("\noperation ")
    lines = table.splitlines()
    assert lines[0].split() == ["wanted", "got"]
    return [tuple(line.rsplit(maxsplit=2)) for line in lines[1:]]


@pytest.mark.slow
def test_workers_and_servers_tell_the_coordinator(run):
    done = run("--strategy=ps", *SHORT)
    assert (done.status, done.err) == (0, ""), done
    placed = rows(done.out)
    assert {got for op, _, got in placed if op.endswith("(MatMul)")} == {
        "/job:worker/task:0/cpu:0", "/job:worker/task:1/cpu:0",
    }  # fmt: skip
    assert {got for op, _, got in placed if op.endswith("(AssignSubVariableOp)")} == {"/job:ps/task:0/cpu:0"}


DEVICES = {
    "one": {"/cpu:0"},
    "mirrored": {"/cpu:0", "/cpu:1"},
    "central": {"/cpu:0", "/cpu:1"},
    "multiworker": {"/job:worker/task:0/cpu:0"},
}


@pytest.mark.parametrize("strategy", sampled(DEVICES, (), ("mirrored", "multiworker")))
def test_replicas(run, strategy):
    done = run(f"--strategy={strategy}", *SHORT)
    assert (done.status, done.err) == (0, ""), done
    products = [(wanted, got) for op, wanted, got in rows(done.out) if op.endswith("(MatMul)")]
    assert {got for _, got in products} == DEVICES[strategy]
    assert all(wanted == got for wanted, got in products)


TRAINERS = {
    "trainers.life": ("--generations=10",),
    "trainers.recommender": ("--users=100", "--items=100", "--steps=2", "--batch_size=64"),
    "trainers.linear": ("--max_steps=100",),
    "trainers.matmul": ("cpu", "100", "--repeats=1"),
}


@pytest.mark.parametrize("module", sampled(TRAINERS, (), ("trainers.life",)))
def test_every_trainer(run, module):
    done = run(*TRAINERS[module], "--log_device_placement", module=module)
    assert (done.status, done.err) == (0, ""), done
    assert {got for _, _, got in rows(done.out)} == {"/cpu:0"}
