"""Products timed on devices, as a user runs them."""

import json

import numpy as np
import pytest
from PIL import Image

from tests.conftest import every_third

MATMUL = "trainers.matmul"
KEYS = {"device", "size", "gflops", "to_device_seconds", "compute_seconds", "to_host_seconds", "result"}


def total(size, seed=1):
    """The sum of all that is in A Aᵀ."""
    return float(np.square(np.random.default_rng(seed).random((size, size), np.float32).astype(float).sum(0)).sum())


def timed(run, tmp_path, *arguments):
    done = run(*arguments, "--report=it.json", module=MATMUL)
    assert (done.status, done.err) == (0, ""), done
    report = json.loads((tmp_path / "it.json").read_text())
    for one in report["runs"]:
        assert one.keys() >= KEYS
        assert one["result"] == pytest.approx(total(one["size"]), rel=1e-4)
        assert one["gflops"] == pytest.approx(2 * one["size"] ** 3 / one["compute_seconds"] / 1e9)
    return report["runs"], done.out


@pytest.mark.slow
def test_plain_arguments_sweep_and_chart(run, tmp_path):
    runs, out = timed(run, tmp_path, "cpu", "1,37,400", "--repeats=1", "--numpy", "--chart=it.png")
    assert [(one["device"], one["size"]) for one in runs] == [
        (device, size) for size in (1, 37, 400) for device in ("/cpu:0", "numpy")
    ]
    assert all(one["to_device_seconds"] > 0 for one in runs if one["device"] != "numpy")
    lines = out.splitlines()
    assert lines[0].split()[:3] == ["device", "size", "dtype"]
    assert [line.split()[:3] for line in lines[-2:]] == [["/cpu:0", "400", "float32"], ["numpy", "400", "float32"]]
    with Image.open(tmp_path / "it.png") as picture:
        assert picture.size == (1000, 400)
        assert len(np.unique(np.asarray(picture.convert("L")))) > 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [("--full",), ("--dtype=float64",), ("--xla",), ("--dtype=float16", "--full"), ("--dtype=bfloat16",)],
    ids=str,
)
def test_other_ways(run, tmp_path, arguments):
    done = run("--sizes=360", *arguments, "--report=it.json", module=MATMUL)
    assert (done.status, done.err) == (0, ""), done
    (one,) = json.loads((tmp_path / "it.json").read_text())["runs"]
    assert one["result"] == pytest.approx(total(360), rel=2e-2 if "16" in arguments[0] else 1e-4)


@pytest.mark.slow
def test_rows_on_several_devices(run, tmp_path):
    ((one,), _) = timed(run, tmp_path, "--split", "--replicas=3", "--sizes=100", "--log_device_placement")
    assert one["device"] == "/cpu:0, /cpu:1, /cpu:2"


@pytest.mark.slow
def test_a_gpu_that_is_not_there(run):
    said = run("gpu:1", "1500", module=MATMUL, env={"CUDA_VISIBLE_DEVICES": ""}).refused()
    assert said == "matmul: there is no gpu:1 here; the devices are /cpu:0"


BAD = {
    ("cpu", "0"): "size '0' is no positive whole number",
    ("cpu", "-5"): "-5 is no device or sizes",
    ("cpu", "many"): "size 'many'",
    ("--sizes=100,,200",): "size ''",
    ("--sizes=1.5",): "size '1.5'",
    ("--sizes=10000000",): "size 10000000 needs",
    ("tpu", "100"): "--device=tpu is no device of this machine",
    ("cpu", "100", "more"): "unexpected argument 'more'",
    ("cpu", "--device=gpu"): "'cpu' and --device=gpu both say which device",
    ("--dtype=int8",): "float16|bfloat16|float32|float64",
    ("--repeats=0",): "--repeats=0",
    ("--split", "--device=gpu:1"): "--device=gpu:1 is one",
    ("--split", "--xla"): "--split uses several",
    ("--numpy", "--dtype=float16"): "--numpy has no fast product in float16",
    ("--chart=it.txt",): "must end in .png, .svg or .pdf",
    ("--chart=nowhere/it.png",): "--chart=nowhere/it.png cannot be written",
    ("--strategy=ps",): "matmul runs in one",
    ("--mixed_precision",): "--dtype=bfloat16",
}


@every_third("arguments", BAD, rarely=pytest.mark.exhaustive, quickly=6, ids=" ".join)
def test_refused_before_tensorflow_is_imported(run, no_tensorflow, tree, arguments):
    line = run(*arguments, module=MATMUL, env=no_tensorflow).refused()
    assert line.startswith("matmul: ")
    assert BAD[arguments] in line
    assert tree() == {}
