"""What a device is called, and one line for an operation that cannot be where it asks to be."""

import subprocess
import sys

import pytest

from tf2dist.runtime import placement_log


@pytest.mark.parametrize(
    ("device", "short"),
    [
        ("/job:localhost/replica:0/task:0/device:CPU:0", "/cpu:0"),
        ("/job:worker/replica:0/task:1/device:GPU:3", "/job:worker/task:1/gpu:3"),
        ("/device:CPU:1", "/cpu:1"),
        ("/job:ps/task:0", "/job:ps/task:0"),
        ("", ""),
    ],
)
def test_short(device, short):
    assert placement_log.short(device) == short


def test_is_device():
    for right in (
        "/cpu:0",
        "/gpu:1",
        "/GPU:1",
        "/gpu",
        "/device:GPU:0",
        "/job:local/task:1",
        "/job:a/task:0/device:CPU:0",
    ):
        assert placement_log.is_device(right), right
    for wrong in ("", "gpu:0", "/tpu:0", "/job:a-b", "/task:0", "/cpu:x", "/cpu:0/", "/cpu:0\n"):
        assert not placement_log.is_device(wrong), wrong


def test_table():
    rows = [("add", "any", "/cpu:0"), ("a longer name", "/gpu:0", "/cpu:0")]
    assert placement_log.table(("op", "wanted", "got"), rows).splitlines() == [
        "op             wanted  got",
        "add            any     /cpu:0",
        "a longer name  /gpu:0  /cpu:0",
    ]
    assert placement_log.table(("op", "got"), []) == "op  got"


@pytest.fixture
def hard(tf):
    """Without soft placement, which TensorFlow 2 has by default."""
    before = tf.config.get_soft_device_placement()
    tf.config.set_soft_device_placement(False)
    yield tf
    tf.config.set_soft_device_placement(before)


def alone(tf):
    x = tf.constant(1.0)
    with tf.device("/gpu:7"):
        return tf.add(x, x, name="mine")


def constant(tf):
    with tf.device("/gpu:7"):
        return tf.constant(1.0)


def in_a_function(tf):
    @tf.function
    def function(x):
        with tf.device("/gpu:7"):
            return tf.sin(x, name="mine")

    return function(tf.constant(1.0))


def in_a_loop(tf):
    @tf.function
    def function(x):
        for _ in tf.range(3):
            with tf.device("/gpu:7"):
                x = tf.sin(x, name="mine")
        return x

    return function(tf.constant(1.0))


def variable(tf):
    with tf.device("/gpu:7"):
        return tf.Variable(1.0)


CASES = {alone: "AddV2", constant: "Const", in_a_function: "mine (Sin)", in_a_loop: "/mine", variable: ""}


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_one_line_names_operation_wanted_and_devices(hard, make):
    with pytest.raises(hard.errors.InvalidArgumentError) as caught:
        make(hard)
    line = placement_log.explain(caught.value)
    assert line is not None, caught.value
    operation, _, rest = line.removeprefix("operation ").partition(" cannot be placed on ")
    assert CASES[make] in operation
    assert rest.startswith("/gpu:7; the devices are /cpu:0, /cpu:1")
    assert placement_log.explain(caught.value, "x + y", "/GPU:7").startswith(
        "operation x + y cannot be placed on /GPU:7;"
    )


def test_other_errors_are_not_its_business(tf):
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        tf.matmul(tf.zeros([2, 3]), tf.zeros([2, 3]))
    assert placement_log.explain(caught.value) is None


def test_the_log_needs_no_directory_that_can_be_written():
    code = """
import ctypes, os, sys, tempfile
tempfile.tempdir = "/proc/nowhere"
from tf2dist.runtime import placement_log
assert placement_log.begin(leads=False) is None
ctypes.CDLL(None).puts(b"a placement")
print(open("/proc/self/fd/1").read(), end="")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "a placement\n", "")
