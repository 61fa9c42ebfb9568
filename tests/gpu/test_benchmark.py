"""`python -m benchmarks gpu`: what it says without a GPU, and that all of it runs, tiny and on the CPU."""

import json
import os
import subprocess
import sys

import pytest

from tests.gpu.conftest import ON_GPU
from tests.gpu_fakes import fake_nvidia_smi
from tests.house.source import ROOT


def run(*arguments, limit, **env):
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "gpu", *arguments],
        env={name: value for name, value in os.environ.items() if name != "TF2DIST_TESTS_GPU"} | env,
        capture_output=True, text=True, timeout=limit, cwd=ROOT,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_without_a_gpu_there_is_one_line():
    assert run(limit=60, CUDA_VISIBLE_DEVICES="-1") == (
        2, "", "benchmarks: there is no GPU here; TF2DIST_TESTS_GPU=cpu tries the programs on the CPU\n",
    )  # fmt: skip


def test_what_it_runs_on_is_cpu_or_gpu():
    assert run(limit=60, TF2DIST_TESTS_GPU="one") == (2, "", "benchmarks: TF2DIST_TESTS_GPU=one must be cpu or gpu\n")


@pytest.mark.slow
@pytest.mark.skipif(ON_GPU, reason="TensorFlow finds the GPU of this machine")
def test_nothing_is_measured_where_tensorflow_finds_no_gpu(tmp_path, monkeypatch):
    fake_nvidia_smi(tmp_path, monkeypatch, 1)
    assert run(limit=120) == (
        2, "", "benchmarks: nvidia-smi shows a GPU, and TensorFlow finds none: python -m tf2dist.doctor says why\n",
    )  # fmt: skip


def test_the_card_that_is_visible_is_named(tmp_path, monkeypatch):
    from benchmarks import gpu

    fake_nvidia_smi(tmp_path, monkeypatch, 2)
    path = tmp_path / "nvidia-smi"
    path.write_text(path.read_text().replace("550.54.14, NVIDIA Fake", "550.54.14, NVIDIA First", 1))
    named = []
    for visible in ("0", "1", "GPU-111", "GPU-000"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        named.append(gpu._machine()["gpu"])
    assert named == ["NVIDIA First", "NVIDIA Fake", "NVIDIA Fake", "NVIDIA First"]


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_all_of_it_runs(tmp_path):
    path = tmp_path / "report.json"
    status, out, err = run(
        "--rounds=1", f"--report={path}", limit=580, TF2DIST_TESTS_GPU="cpu", CUDA_VISIBLE_DEVICES=""
    )
    assert status == 0, err
    report = json.loads(path.read_text())
    assert set(report["fit"]) == {"mlp", "resnet", "transformer"}
    assert all(set(case) == {"XLA", "no XLA"} for case in report["fit"].values())
    assert all(len(way["examples_per_second"]) >= 4 for way in report["fit"]["mlp"].values())
    ways = [way["examples_per_second"] for case in report["fit"].values() for way in case.values()]
    for part in (*ways, report["life"]["figures"], *(found["figures"] for found in report["matmul"].values())):
        assert all(figure > 0 for figures in part.values() for figure in figures)
    assert 0 <= report["input"]["overlap"] <= 1
    assert set(report["matmul"]) == {"TF32", "float32", "bfloat16"}
    last = out.splitlines()[-1]
    [heading] = [line for line in (ROOT / "docs" / "gpu.md").read_text().splitlines() if line.startswith("| card |")]
    assert last.count("|") == heading.count("|"), "the row fits the table of docs/gpu.md"


def test_peaks_are_found_by_the_names_that_drivers_give():
    """TFLOP/s of float32, TF32 and bfloat16, and GB/s."""
    from benchmarks.gpu import _peak

    found = {
        "NVIDIA H200": (66.9, 494.7, 989.4, 4800), "NVIDIA H200 NVL": (60.0, 417.5, 835.5, 4800),
        "NVIDIA H100 80GB HBM3": (66.9, 494.7, 989.4, 3350), "NVIDIA H100 NVL": (60.0, 417.5, 835.5, 3938),
        "NVIDIA H100 PCIe": (51.2, 378.0, 756.0, 2000),
        "NVIDIA A100-SXM4-40GB": (19.5, 156.0, 312.0, 1555), "NVIDIA A100-PCIE-40GB": (19.5, 156.0, 312.0, 1555),
        "NVIDIA A100-SXM4-80GB": (19.5, 156.0, 312.0, 2039), "NVIDIA A100 80GB PCIe": (19.5, 156.0, 312.0, 1935),
        "NVIDIA A10": (31.2, 62.5, 125.0, 600), "Tesla T4": (8.1, None, None, 320),
        "NVIDIA L40S": (91.6, 183.0, 362.0, 864),
    }  # fmt: skip
    peaks = {name: _peak(name) for name in found}
    assert {name: (p.float32, p.tf32, p.bfloat16, p.memory) for name, p in peaks.items()} == found
    assert [_peak(name) for name in ("Quadro", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA GH200 480GB")] == [None] * 3


def test_tf32_is_on_for_all_or_for_none(monkeypatch):
    from benchmarks.gpu import _PRECISIONS, _most, _peak, _set_precision

    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    monkeypatch.setenv("CUPY_TF32", "0")
    _set_precision("TF32")
    assert [os.environ.get(name) for name in ("NVIDIA_TF32_OVERRIDE", "CUPY_TF32")] == [None, "1"]
    _set_precision("float32")
    assert [os.environ.get(name) for name in ("NVIDIA_TF32_OVERRIDE", "CUPY_TF32")] == ["0", "0"]
    most = {card: [_most(_peak(card), name) for name in _PRECISIONS] for card in ("NVIDIA H200", "Tesla T4")}
    assert most == {"NVIDIA H200": [494.7, 66.9, 989.4], "Tesla T4": [8.1, 8.1, None]}


@pytest.mark.slow
def test_what_a_card_allows_life(tf):
    """Sums of nine cells, and the rule, take some thirty gates."""
    from benchmarks.gpu import _bounds_of_life, _gates_of_life, _peak

    gates = _gates_of_life()
    assert 25 < gates < 35
    bounds = _bounds_of_life(_peak("NVIDIA H100 80GB HBM3"), gates)
    assert bounds["memory"] == pytest.approx(3350e9 / 16 * 64 / 1e6)  # million cells/s
    assert bounds["computing"] == pytest.approx(66.9e12 / 4 / (2 * gates) * 64 / 1e6)
