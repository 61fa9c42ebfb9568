"""Strategies by name, virtual devices, and `join` where there is no cluster."""

import subprocess
import sys
import textwrap

import pytest

import tf2dist


@pytest.mark.parametrize(("name", "replicas"), [("one", 1), ("mirrored", 2), ("central", 2)])
def test_strategies_of_one_process(tf, name, replicas):
    assert tf2dist.make_strategy(name).num_replicas_in_sync == replicas


def test_replicas_become_virtual_cpus(tf):
    strategy = tf2dist.make_strategy("central", replicas=3)
    devices = {tf.DeviceSpec.from_string(d).device_index for d in strategy.extended.worker_devices}
    assert devices == {0, 1, 2}


def test_unknown_name(tf):
    with pytest.raises(ValueError, match="unknown strategy 'horovod'; strategies are one, mirrored"):
        tf2dist.make_strategy("horovod")


@pytest.mark.parametrize("name", ["ps", "multiworker"])
def test_cluster_strategies_say_how_to_start_a_cluster(tf, monkeypatch, name):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(tf2dist.ClusterError, match=r"python -m tf2dist launch local .*--workers=2 -- YOUR_SCRIPT"):
        tf2dist.join(name)


def test_too_many_replicas_for_devices_that_exist_already(tf):
    tf.constant(1) + 1  # the four devices of these tests are made now
    with pytest.raises(ValueError, match=r"9 virtual CPU devices are wanted, .* call tf2dist.join"):
        tf2dist.make_strategy("mirrored", replicas=9)
    with pytest.raises(ValueError, match="replicas must be at least 1, found 0"):
        tf2dist.make_strategy("mirrored", replicas=0)


@pytest.mark.parametrize("name", ["one", "ps"])
@pytest.mark.parametrize("begin", [tf2dist.make_strategy, tf2dist.join])
def test_several_replicas_where_there_is_one(name, begin):
    with pytest.raises(tf2dist.errors.UsageError, match="replicas=2 needs a strategy with several"):
        begin(name, replicas=2)


@pytest.mark.slow
def test_join_makes_virtual_devices_in_a_fresh_process():
    program = """
        import tf2dist
        strategy = tf2dist.join("mirrored", replicas=3)
        print(strategy.num_replicas_in_sync, len(strategy.extended.worker_devices))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "3 3\n"
    assert done.stderr == ""  # TensorFlow's start-up noise does not reach the user
