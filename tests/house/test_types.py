"""What the type checker is told to look at, and that it sees an implementation that does not fit its interface."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib

import pytest

from tests.house.source import ROOT

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pyright"]
# Classes by file, each without one of its methods. Of several classes in one union or tuple the checker names the first
# that does not fit, so one of them stands for all.
IMPLEMENTATIONS = {
    "tf2dist/execution/replica_dispatcher.py": [("ReplicaDispatcher", "schedule")],
    "tf2dist/parameter_server/asynchronous.py": [("AsynchronousDispatcher", "schedule")],
    "tf2dist/parameter_server/synchronous.py": [("SynchronousDispatcher", "schedule")],
    "tf2dist/execution/keras_train_step.py": [("KerasTrainStep", "zero_sums"), ("KerasTrainStep", "fractions")],
    "tf2dist/execution/custom_train_step.py": [("CustomTrainStep", "zero_sums")],
    "tf2dist/input/python_adapter.py": [("PythonAdapter", "by_number")],
    "tf2dist/input/given_batches.py": [("GivenBatches", "raise_failure")],
    "tf2dist/parameter_server/worker_batches.py": [("NumberedBatches", "take")],
    "tf2dist/cluster/environments/slurm.py": [("Slurm", "detect")],
    "tf2dist/cluster/environments/host_flags.py": [("HostFlags", "detect")],
    "tf2dist/launch/backends/local.py": [("LocalBackend", "start")],
    "tf2dist/launch/backends/ssh.py": [("SshBackend", "start")],
    "tf2dist/launch/backends/slurm.py": [("SlurmBackend", "start")],
    "tf2dist/launch/backends/k8s.py": [("K8sBackend", "start")],
}
# Code above an interface that uses what the interface lacks.
CALLERS = {
    "tf2dist/training/fit_loop.py": ("self._dispatcher.cancel()", "self._dispatcher.flush()"),
    "tf2dist/training/metric_sums.py": ("self._step.logs(", "self._step.metric_logs("),
    "tf2dist/execution/replica_dispatcher.py": ("data.training_batches(", "data.batches("),
}


def strict(module):
    """Whether a module, by its path, is checked strictly."""
    return any(module == each or module.startswith(f"{each}/") for each in SETTINGS["strict"])


def test_the_public_names_are_checked_strictly():
    import tf2dist

    homes = {name.replace(".", "/") for name in (*tf2dist._HOME.values(), *tf2dist._ROOMS)}
    paths = [f"tf2dist/{home}" if (ROOT / "tf2dist" / home).is_dir() else f"tf2dist/{home}.py" for home in homes]
    assert len(paths) > 10
    assert [path for path in paths if not strict(path)] == []


def test_cluster_and_launcher_are_checked_strictly():
    assert strict("tf2dist/cluster")
    assert strict("tf2dist/launch")
    assert strict("launch")
    assert not strict("tf2dist/clusters")


@pytest.mark.slow
def test_what_does_not_fit_an_interface_is_seen(tmp_path):
    pytest.importorskip("pyright")
    shutil.copytree(ROOT / "tf2dist", tmp_path / "tf2dist", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for file, methods in IMPLEMENTATIONS.items():
        text = (tmp_path / file).read_text()
        for kind, method in methods:
            before, head, after = text.partition(f"class {kind}")
            assert head, (file, kind)
            assert f"def {method}(" in after, (file, kind, method)
            text = before + head + after.replace(f"def {method}(", f"def {method}_is_gone(", 1)
        (tmp_path / file).write_text(text)
    for file, (right, wrong) in CALLERS.items():
        text = (tmp_path / file).read_text()
        assert right in text, (file, right)
        (tmp_path / file).write_text(text.replace(right, wrong))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "tf2dist"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=380, env={**os.environ})
    assert done.returncode == 1, done.stderr
    kinds = [kind for methods in IMPLEMENTATIONS.values() for kind, _ in methods]
    unseen = [kind for kind in kinds if f'"{kind}" is incompatible with protocol' not in done.stdout]
    assert unseen == [], done.stdout
    assert [wrong for _, wrong in CALLERS.values() if wrong.strip("()").rpartition(".")[2] not in done.stdout] == []
